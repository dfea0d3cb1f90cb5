"""From the body of a feed to records: a pure function that names every line it can't take.

The body is atomic. One bad line refuses all of it, because a run that is left out of a complete
snapshot would look as if it had left the queue.
"""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from flopwatch_server.database.text import storable
from flopwatch_server.scheduler.feed.lines import (
    GpusLine,
    Line,
    Moment,
    NodeLine,
    ReservationLine,
    RunLine,
    ShareLine,
    SnapshotLine,
)
from flopwatch_server.scheduler.records import (
    END_STATES,
    PENDING_STATES,
    RUNNING_STATES,
    JobRecord,
    NodeGpus,
    NodeRecord,
    ReservationRecord,
    ShareRecord,
)

MAX_PROBLEMS = 100
MAX_SNAPSHOT_AGE = timedelta(minutes=10)

# Nothing that a scheduler tells is older or newer; 0 and "year 1" stand for "unknown" in the wild.
_EARLIEST = datetime(2000, 1, 1, tzinfo=UTC)
_LATEST = datetime(2100, 1, 1, tzinfo=UTC)
_RUN_TIMES = ("submitted_at", "started_at", "ended_at")
_FIELD = re.compile(r" - at `(\$.*)`$")
_NAMED_FIELD = re.compile(r"(?:missing required|contains unknown) field `(.+?)`")


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong with one field of one line; `line` counts from 1, `field` is a JSON path."""

    line: int
    field: str
    problem: str


class FeedError(ValueError):
    """The body can't be taken; `problems` holds the first 100 reasons."""

    def __init__(self, problems: list[Problem]) -> None:
        self.problems = tuple(problems)
        first = problems[0]
        super().__init__(f"line {first.line}, {first.field}: {first.problem}")


@dataclass(frozen=True, slots=True)
class FeedSnapshot:
    """A whole body. With `complete`, `jobs` holds all that are pending or running now, and
    `reservations` all of these.

    `shares` then holds those of all associations, or none.
    """

    jobs: list[JobRecord]
    nodes: list[NodeRecord]
    shares: list[ShareRecord]
    reservations: list[ReservationRecord]
    complete: bool


class _FieldError(ValueError):
    def __init__(self, field: str, problem: str) -> None:
        super().__init__(problem)
        # Both may quote the sender, and go into the answer and the database.
        self.field = storable(field)
        self.problem = storable(problem)


def parse(body: bytes, now: datetime) -> FeedSnapshot:
    """Read a body of JSON lines; raise FeedError that names every line and field in its way.

    A complete snapshot of another time than `now` is refused: applied now, it would end runs that
    go on.
    """
    reader = _Reader(now)
    problems: list[Problem] = []
    lines = [(number, text) for number, text in enumerate(body.split(b"\n"), 1) if text.strip()]
    if not lines:
        raise FeedError([Problem(1, "$", "the body holds no line")])
    for number, text in lines:
        try:
            reader.take(_decode(text))
        except _FieldError as error:
            problems.append(Problem(number, error.field, error.problem))
            if len(problems) == MAX_PROBLEMS:
                break
    if problems:
        raise FeedError(problems)
    return FeedSnapshot(
        jobs=list(reader.jobs.values()),
        nodes=list(reader.nodes.values()),
        shares=list(reader.shares.values()),
        reservations=list(reader.reservations.values()),
        complete=reader.is_complete,
    )


class _Reader:
    """Collects the lines of one body and refuses what is told twice."""

    def __init__(self, now: datetime) -> None:
        self._now = now
        self.jobs: dict[tuple[int, datetime], JobRecord] = {}
        self.nodes: dict[str, NodeRecord] = {}
        self.shares: dict[tuple[str, str | None, str], ShareRecord] = {}
        self.reservations: dict[str, ReservationRecord] = {}
        self.snapshot: SnapshotLine | None = None

    @property
    def is_complete(self) -> bool:
        return self.snapshot is not None and self.snapshot.complete

    def take(self, line: Line) -> None:
        match line:
            case RunLine():
                self._take_run(_job(line))
            case NodeLine():
                if line.name in self.nodes:
                    raise _FieldError("$.name", "an earlier line tells the same node")
                self.nodes[line.name] = NodeRecord(**msgspec.structs.asdict(line))
            case ShareLine():
                self._take_share(_share(line))
            case ReservationLine():
                self._take_reservation(_reservation(line))
            case SnapshotLine():
                self._take_snapshot(line)

    def _take_run(self, job: JobRecord) -> None:
        key = (job.raw_job_id, job.submitted_at)
        if key in self.jobs:
            raise _FieldError("$.raw_job_id", "an earlier line tells the same run")
        self.jobs[key] = job

    def _take_share(self, share: ShareRecord) -> None:
        key = (share.account, share.user, share.partition)
        if key in self.shares:
            raise _FieldError("$.account", "an earlier line tells the same association")
        self.shares[key] = share

    def _take_reservation(self, reservation: ReservationRecord) -> None:
        if not self.is_complete:
            told = "reservations are told all together, behind the line of a complete snapshot"
            raise _FieldError("$.kind", told)
        if reservation.name in self.reservations:
            raise _FieldError("$.name", "an earlier line tells the same reservation")
        self.reservations[reservation.name] = reservation

    def _take_snapshot(self, line: SnapshotLine) -> None:
        if self.snapshot is not None:
            raise _FieldError("$.kind", "an earlier line is the snapshot")
        age = self._now - _utc("time", line.time)
        if line.complete and abs(age) > MAX_SNAPSHOT_AGE:
            told = f"{age.total_seconds():.0f} s before the server's clock"
            raise _FieldError("$.time", f"a complete snapshot must be recent, not {told}")
        self.snapshot = line


def _decode(text: bytes) -> Line:
    """One line as its struct.

    Python's own JSON reader lets half surrogates through, as a sender writes them for a job name
    that is no UTF-8; msgspec's would refuse the line for the sake of one user's name.
    """
    try:
        content = json.loads(text.decode(), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise _FieldError("$", f"not JSON in UTF-8: {error}") from error
    return _convert(content)


def _convert(content: Any) -> Line:
    try:
        line: Line = msgspec.convert(content, Line)
    except UnicodeEncodeError as error:
        raise _FieldError("$", "half a surrogate in a name, a date or a kind") from error
    except msgspec.ValidationError as error:
        message = str(error)
        found = _FIELD.search(message)
        path = found[1] if found else "$"
        problem = message[: found.start()] if found else message
        named = _NAMED_FIELD.search(problem)
        raise _FieldError(f"{path}.{named[1]}" if named else path, problem) from error
    return line


def _refuse_constant(text: str) -> float:
    raise ValueError(f"{text} is not a number")


def _utc(field: str, moment: Moment) -> datetime:
    if isinstance(moment, datetime):
        plausible = _EARLIEST <= moment <= _LATEST
    else:
        plausible = _EARLIEST.timestamp() <= moment <= _LATEST.timestamp()
    if not plausible:
        raise _FieldError(f"$.{field}", "the time is outside the years 2000 to 2100")
    if isinstance(moment, datetime):
        return moment.astimezone(UTC)
    return datetime.fromtimestamp(moment, UTC)


def _job(line: RunLine) -> JobRecord:
    fields = msgspec.structs.asdict(line)
    for name in _RUN_TIMES:
        if fields[name] is not None:
            fields[name] = _utc(name, fields[name])
    for field, problem in _contradictions(line, fields["started_at"], fields["ended_at"]):
        raise _FieldError(f"$.{field}", problem)
    gpus = None if line.gpus is None else tuple(_held(held) for held in line.gpus)
    if gpus is not None:
        fields["gpu_count"] = sum(held.count for held in gpus)
        fields["nodes"] = line.nodes or tuple(dict.fromkeys(held.node for held in gpus))
    return JobRecord(
        **fields | {"gpus": gpus, "display_id": line.display_id or str(line.raw_job_id)}
    )


def _share(line: ShareLine) -> ShareRecord:
    level = None if line.level_fs is None else float(line.level_fs)
    return ShareRecord(**msgspec.structs.asdict(line) | {"level_fs": level})


def _reservation(line: ReservationLine) -> ReservationRecord:
    fields = msgspec.structs.asdict(line)
    for name in ("starts_at", "ends_at"):
        fields[name] = _utc(name, fields[name])
    if fields["ends_at"] <= fields["starts_at"]:
        raise _FieldError("$.ends_at", "not after starts_at")
    return ReservationRecord(**fields)


def _held(line: GpusLine) -> NodeGpus:
    return NodeGpus(line.node, line.count, line.ordinals, line.type, line.shared)


_Check = Callable[[RunLine, datetime | None, datetime | None], bool]
_CONTRADICTIONS: tuple[tuple[str, str, _Check], ...] = (
    (
        "state",
        "not one of Slurm's job states, in capitals",
        lambda run, start, end: run.state not in RUNNING_STATES | PENDING_STATES | END_STATES,
    ),
    (
        "started_at",
        "missing, though the run has started",
        lambda run, start, end: run.state in RUNNING_STATES and start is None,
    ),
    (
        "started_at",
        "told, though the run is pending: an expected start is no start",
        lambda run, start, end: run.state in PENDING_STATES and start is not None,
    ),
    (
        "ended_at",
        "missing, though the run is over",
        lambda run, start, end: run.state in END_STATES and end is None,
    ),
    (
        "ended_at",
        "told, though the run is not over",
        lambda run, start, end: run.state not in END_STATES and end is not None,
    ),
    (
        "ended_at",
        "before started_at",
        lambda run, start, end: start is not None and end is not None and end < start,
    ),
    (
        "gpus",
        "told, though the run has never started",
        lambda run, start, end: bool(run.gpus) and start is None,
    ),
)
"""(field, problem, whether it is so): what each field may hold, but not together."""


def _contradictions(
    run: RunLine, start: datetime | None, end: datetime | None
) -> Iterator[tuple[str, str]]:
    for field, problem, holds in _CONTRADICTIONS:
        if holds(run, start, end):
            yield field, problem
    taken: set[tuple[str, int]] = set()
    for index, held in enumerate(run.gpus or ()):
        ordinals = held.ordinals
        if ordinals is None:
            continue
        if len(ordinals) != held.count:
            yield f"gpus[{index}].ordinals", f"{len(ordinals)} ordinals for a count of {held.count}"
        places = {(held.node, ordinal) for ordinal in ordinals}
        if len(places) != len(ordinals) or places & taken:
            yield f"gpus[{index}].ordinals", "an ordinal of this node is told twice"
        taken |= places
