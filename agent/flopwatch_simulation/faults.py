"""What goes wrong in a cluster, on purpose: each fault has a kind, a node and a stretch of time.

There are none unless a test asks for them, by a list of its own or by `drawn`, which draws some
from a seed. The same faults make the same batches; what is true under them the ledger knows.

* `agent down`: no samples; the agent comes back as a new epoch
* `agent restart`: the interval in which it restarts is lost, and a new epoch begins
* `node lost`: as agent down, the scheduler calls the node DOWN and its jobs start anew afterwards
* `gpu lost`: one GPU falls off the bus (Xid 79) and tells nothing; the others go on
* `stuck counters`: activity of one GPU reads 0 while it works
* `sentinels`: activity of one GPU reads as DCGM's blank value
* `clock skew`: the agent's clock is `seconds` ahead (or behind, if negative); where it steps back
  a new epoch begins
* `late`: the batches of the stretch arrive at its end
* `duplicates`: the batches of the stretch arrive twice
* `scheduler outage`: nobody tells of jobs; of the whole cluster, so `node` counts for nothing
* `requeue`: the node's jobs are sent back to the queue at the start, and start anew at the end
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Literal, get_args

from flopwatch_simulation.hardware import kind_of
from flopwatch_simulation.job import Job
from flopwatch_simulation.physics import INTERVAL_SECONDS

Kind = Literal[
    "agent down", "agent restart", "node lost", "gpu lost", "stuck counters", "sentinels",
    "clock skew", "late", "duplicates", "scheduler outage", "requeue",
]  # fmt: skip
KINDS: tuple[Kind, ...] = get_args(Kind)

RESTART_SECONDS = 120
"""From a node's return, or a requeue's end, to the new start of a job."""

_SILENT: frozenset[Kind] = frozenset({"agent down", "agent restart", "node lost"})
_STOPS: frozenset[Kind] = frozenset({"node lost", "requeue"})
_LEAST_REST_SECONDS = 600
_LONGEST_SECONDS = 1200
_MOST_SKEW_SECONDS = 90


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault over [start, end), multiples of 10 s. `place` is the GRES ordinal of one GPU."""

    kind: Kind
    node: int
    start: int
    end: int
    place: int = 0
    seconds: int = 0

    def covers(self, time: int) -> bool:
        """Whether it touches the interval (time - 10 s, time]."""
        return self.start < time and time - INTERVAL_SECONDS < self.end


def drawn(
    seed: int, nodes: int, start: int, end: int, kinds: Sequence[Kind], per_node: float = 1.0
) -> tuple[Fault, ...]:
    """Faults within [start, end): `per_node` of each kind for every node on average."""
    random = Random(f"faults/{seed}")
    count = round(nodes * per_node)
    return tuple(_draw(random, kind, nodes, start, end) for kind in kinds for _ in range(count))


def _draw(random: Random, kind: Kind, nodes: int, start: int, end: int) -> Fault:
    node = random.randrange(nodes)
    begin = random.randrange(start, end - INTERVAL_SECONDS, INTERVAL_SECONDS)
    lasts = random.randrange(INTERVAL_SECONDS, _LONGEST_SECONDS, INTERVAL_SECONDS)
    if kind == "agent restart":
        lasts = INTERVAL_SECONDS
    skew = random.randrange(-_MOST_SKEW_SECONDS, _MOST_SKEW_SECONDS + 1, INTERVAL_SECONDS)
    return Fault(
        kind, node, begin, min(end, begin + lasts), random.randrange(kind_of(node).places), skew
    )


class Faults:
    """All faults of a cluster, by what they touch."""

    def __init__(self, faults: Iterable[Fault] = ()) -> None:
        self.all = tuple(sorted(faults, key=lambda fault: (fault.start, fault.node, fault.kind)))
        self._of_node: dict[int, list[Fault]] = {}
        for fault in self.all:
            self._of_node.setdefault(fault.node, []).append(fault)

    def of(self, node: int, time: int, *kinds: Kind) -> Iterator[Fault]:
        """Those of a node and of these kinds that touch (time - 10 s, time]."""
        for fault in self._of_node.get(node, ()):
            if fault.kind in kinds and fault.covers(time):
                yield fault

    def on(self, node: int, place: int, time: int, *kinds: Kind) -> bool:
        """Whether one of these kinds touches this GPU over (time - 10 s, time]."""
        return any(fault.place == place for fault in self.of(node, time, *kinds))

    def silent(self, node: int, time: int) -> bool:
        """Whether the node's agent has nothing of (time - 10 s, time]."""
        return any(self.of(node, time, *_SILENT))

    def down(self, node: int, time: float) -> bool:
        """Whether the scheduler calls the node DOWN."""
        return any(
            fault.kind == "node lost" and fault.start <= time < fault.end
            for fault in self._of_node.get(node, ())
        )

    def rebirths(self, node: int, time: int) -> list[int]:
        """When later lives of the node's agent began before (time - 10 s, time], in order: after a
        silence, and wherever its clock stepped back."""
        begins = (_new_life_at(fault) for fault in self._of_node.get(node, ()))
        return sorted(begin for begin in begins if begin is not None and begin < time)

    def began(self, node: int, start: int, end: int) -> list[Fault]:
        """Those of a node that began in (start, end]."""
        return [fault for fault in self._of_node.get(node, ()) if start < fault.start <= end]

    def skew_seconds(self, node: int, time: int) -> int:
        """How far the agent's clock is ahead over (time - 10 s, time]."""
        return sum(fault.seconds for fault in self.of(node, time, "clock skew"))

    def scheduler_is_away(self, time: float) -> bool:
        """Whether nobody tells of jobs at this time."""
        return any(
            fault.kind == "scheduler outage" and fault.start <= time < fault.end
            for fault in self.all
        )

    def runs_of(self, job: Job) -> list[Job]:
        """What becomes of a job: itself, or the runs that lost nodes and requeues make of it."""
        stops = sorted(
            (
                fault
                for node, _ in job.places
                for fault in self._of_node.get(node, ())
                if fault.kind in _STOPS
            ),
            key=lambda fault: fault.start,
        )
        runs = [job]
        for stop in stops:
            runs[-1:] = _stopped(runs[-1], stop)
        return runs


def _new_life_at(fault: Fault) -> int | None:
    if fault.kind == "clock skew" and fault.seconds < 0:
        return fault.start
    is_back = fault.kind in _SILENT or (fault.kind == "clock skew" and fault.seconds > 0)
    return fault.end if is_back else None


def _stopped(job: Job, stop: Fault) -> list[Job]:
    """The runs that a job becomes: what it was until the stop, and another one afterwards."""
    if job.started_at is None or stop.end <= job.started_at or job.ended_at <= stop.start:
        return [job]
    again_at = stop.end + RESTART_SECONDS
    goes_on = again_at + _LEAST_REST_SECONDS < job.ended_at
    if job.started_at >= stop.start:  # it waits for its node, or is given up
        return (
            [replace(job, started_at=again_at)]
            if goes_on
            else [replace(job, started_at=None, end_state="CANCELLED")]
        )
    why = "NODE_FAIL" if stop.kind == "node lost" else "PREEMPTED"
    first = replace(job, ended_at=stop.start, end_state=why)
    if not goes_on:
        return [first]
    second = replace(
        job, submitted_at=stop.start, listed_at=stop.start, started_at=again_at,
        restarts=job.restarts + 1,
    )  # fmt: skip
    return [first, second]
