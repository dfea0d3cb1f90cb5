"""Activity of devices from `dcgmi dmon`, which streams them from this node's DCGM host engine.

dcgmi numbers GPUs and their instances by itself, so it is first asked whose numbers these are. It
prints a row for each of them in every period, without a time, and fractions with three decimals.
"""

import logging
import re
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import Future
from dataclasses import dataclass
from shutil import which
from subprocess import Popen

from flopwatch_agent import children
from flopwatch_agent.collectors import Reader, Setting, Settings, Source, collector
from flopwatch_agent.collectors.dcgm import ONE_PASS, Place, Point, Table
from flopwatch_agent.collectors.driver import Found
from flopwatch_agent.collectors.points import WANTED_SECONDS, PointReader, period_of
from flopwatch_agent.lanes import Lane

_log = logging.getLogger(__name__)

_SILENT_PERIODS = 5
_START_SECONDS = 15
"""dcgmi must begin to print within this time; its first rows are N/A."""

_DISCOVERY_SECONDS = 10.0
_LONGEST_PAUSE_SECONDS = 60
_STEADY_SECONDS = 60
_LONGEST_LINE_BYTES = 65536
_MOST_BAD_LINES = 1000
_LOG_PAUSE_SECONDS = 60

_ROW = re.compile(r"\s*([A-Za-z][\w-]*)\s+(\d+)\s+(\S.*)")
_GPU_ID = re.compile(r"\|\s*(\d+)\s*\|")
_GPU_UUID = re.compile(r"Device UUID:\s*(\S+)")
_TREE_GPU = re.compile(r"\bGPU (GPU-\S+) \(EntityID: \d+\)")
_TREE_INSTANCE = re.compile(r"-> I \d+/(\d+)\s*\|\s*GPU Instance \(EntityID: (\d+)\)")

_SETTINGS = (
    Setting("dcgmi", "", "dcgmi, or its path, to read activity from this node's DCGM host engine"),
    Setting("dcgmi-period", "1", "seconds between its rows"),
)


@collector("dcgmi", cost_milliseconds=2, rank=2, settings=_SETTINGS)
def open_dcgmi(settings: Settings) -> Source | None:
    """Second choice, where a command is given."""
    if not settings["dcgmi"]:
        return None
    return DmonSource(settings["dcgmi"], period_of(settings, "dcgmi-period"))


@dataclass(frozen=True)
class Row:
    """One entity at one time: "GPU" or "GPU-I", its number, and its values as printed."""

    kind: str
    number: int
    values: Sequence[str]


def parse_row(line: str, count: int) -> Row | None:
    """A row of `count` values; None for headers and blank lines.

    Raises ValueError for anything else: what dcgmi says when something is wrong.
    """
    first = line.split(maxsplit=1)[:1]
    if not first or first[0].startswith("#") or first[0].upper() == "ID":
        return None
    match = _ROW.fullmatch(line.rstrip())
    values = match[3].split() if match else []
    if match is None or len(values) != count:
        raise ValueError(line.strip())
    return Row(match[1], int(match[2]), values)


def parse_gpus(listing: str) -> dict[int, str]:
    """UUIDs of the GPUs by dcgmi's own numbers, from `dcgmi discovery -l`."""
    gpus: dict[int, str] = {}
    number = None
    for line in listing.split("\n"):
        if found := _GPU_ID.match(line):
            number = int(found[1])
        if (found := _GPU_UUID.search(line)) and number is not None:
            gpus[number] = found[1]
    return gpus


def parse_instances(tree: str) -> dict[int, Place]:
    """GPU instances by dcgmi's own numbers, which are not the driver's: `dcgmi discovery -c`."""
    instances: dict[int, Place] = {}
    uuid = None
    for line in tree.split("\n"):
        if found := _TREE_GPU.search(line):
            uuid = found[1]
        if (found := _TREE_INSTANCE.search(line)) and uuid is not None:
            instances[int(found[2])] = (uuid, int(found[1]))
    return instances


def point_of(row: Row, fields: Sequence[int]) -> Point:
    """The values of a row. One that is cut or N/A is absent."""
    place: Place = ("", None)
    table = Table()
    for field, text in zip(fields, row.values, strict=True):
        if text == "N/A":
            continue
        try:
            table.add(place, field, text)
        except ValueError:
            table.refuse(text)
    return table.points.get(place, Point())


class DmonSource:
    """Keeps one dcgmi running while devices want it, and the newest row of each."""

    def __init__(self, command: str, period_seconds: int) -> None:
        self._command = command
        self._period = period_seconds
        self._lane = Lane("dcgmi")
        self._life: Future[None] | None = None
        self._process: Popen[bytes] | None = None
        self._points: dict[Place, tuple[int, Point]] = {}
        self._places: Mapping[tuple[str, int], Place] = {}
        self._wanted: dict[Place, int] = {}
        self._asked: frozenset[Place] = frozenset()
        self._ended_for = ""
        self._bad_lines = 0
        self._now = 0
        self._started_at = 0
        self._heard_at = 0
        self._next_at = 0
        self._failures = 0
        self._trouble = "not started yet"
        self._logged_at = -_LOG_PAUSE_SECONDS
        self._logged = ""

    def open(self, found: Found) -> Reader:
        """A reader of one device's rows."""
        return PointReader(found, self)

    def tick(self, second: int) -> Future[None] | None:
        """Start dcgmi if it is wanted and does not run; end it if it hangs or is not wanted."""
        if second < self._now:  # the clock was turned back
            self._next_at = self._started_at = self._heard_at = second
            self._wanted = dict.fromkeys(self._wanted, second)
        self._now = second
        # A copy: the devices' lanes write while this thread reads.
        wanted = {
            place: at for place, at in list(self._wanted.items()) if second - at <= WANTED_SECONDS
        }
        self._wanted = dict(wanted)
        if self._lane.busy:
            why = self._ended_for or self._why_end(wanted.keys())
            if why:
                self._end(why)
            return None
        life, self._life = self._life, None
        if life is not None:
            life.result()
        if wanted and second >= self._next_at:
            self._started_at = self._heard_at = second
            self._next_at = second + _LONGEST_PAUSE_SECONDS
            self._asked, self._ended_for, self._bad_lines = frozenset(wanted), "", 0
            self._life = self._lane.start(self._live)
        return None

    def close(self) -> None:
        """End dcgmi now, or as soon as it has been started."""
        self._end("the agent ends")

    def _end(self, why: str) -> None:
        self._ended_for = why
        process = self._process
        if process is not None:
            children.kill(process)

    @property
    def period_seconds(self) -> float:
        """As often as dcgmi was told to print."""
        return float(self._period)

    def newest(self, place: Place, second: int) -> tuple[Point | None, str]:
        """The newest row of a device, unless it is too old."""
        self._wanted[place] = second
        heard_at, point = self._points.get(place, (0, None))
        if point is None:
            return None, "no row for this GPU" if self._points else self._trouble
        if not heard_at <= second <= heard_at + _SILENT_PERIODS * self._period:
            return None, "its rows stopped"
        return point, ""

    def _why_end(self, wanted: AbstractSet[Place]) -> str:
        """Why dcgmi must be ended now, or nothing."""
        if not wanted:
            return "no GPU needs it any more"
        silent = self._now - self._heard_at
        begun = self._heard_at > self._started_at
        if silent > (_SILENT_PERIODS * self._period if begun else _START_SECONDS):
            return f"dcgmi printed nothing for {silent} s"
        if begun and not wanted <= self._asked | set(self._places.values()):
            return "there are new devices"
        if self._bad_lines > _MOST_BAD_LINES:
            return f"dcgmi printed {self._bad_lines} lines that are no rows"
        return ""

    def _live(self) -> None:
        """One life of dcgmi: find out its numbers, then read rows until it ends."""
        try:
            if which(self._command) is None:
                raise OSError(f"{self._command} is not installed")
            self._places = self._discover()
            ended = self._stream()
        except OSError as error:
            ended = str(error)
        self._points = {}
        if self._now - self._started_at > _STEADY_SECONDS:
            self._failures = 0
        self._failures += 1
        self._next_at = self._now + min(2**self._failures, _LONGEST_PAUSE_SECONDS)
        self._complain(ended)

    def _discover(self) -> dict[tuple[str, int], Place]:
        """Devices by dcgmi's kind and number. Raises OSError."""
        listing = children.output([self._command, "discovery", "-l"], _DISCOVERY_SECONDS)
        places: dict[tuple[str, int], Place] = {
            ("GPU", number): (uuid, None) for number, uuid in parse_gpus(listing).items()
        }
        if any(gpu_instance is not None for _, gpu_instance in self._asked):
            tree = children.output([self._command, "discovery", "-c"], _DISCOVERY_SECONDS)
            places |= {("GPU-I", each): place for each, place in parse_instances(tree).items()}
        return places

    def _stream(self) -> str:
        """Read rows until dcgmi ends; why it did."""
        fields = ",".join(map(str, ONE_PASS))
        command = [self._command, "dmon", "-e", fields, "-d", str(1000 * self._period)]
        instances = [f"i:{number}" for kind, number in self._places if kind == "GPU-I"]
        if instances:
            gpus = [str(number) for kind, number in self._places if kind == "GPU"]
            command += ["-i", ",".join(gpus + instances)]
        said = ""
        with children.start(command) as process:
            self._process = process
            if self._ended_for:  # since before there was a process to end
                children.kill(process)
            assert process.stdout is not None
            while line := process.stdout.readline(_LONGEST_LINE_BYTES):
                said = self._hear(line.decode(errors="replace")) or said
            self._process = None
        return self._ended_for or said or f"dcgmi ended with {process.returncode}"

    def _hear(self, line: str) -> str:
        """Take in a line; what it says if it is no row."""
        try:
            row = parse_row(line, len(ONE_PASS))
        except ValueError as error:
            self._bad_lines += 1
            self._complain(str(error)[:200])
            return self._trouble
        place = self._places.get((row.kind, row.number)) if row else None
        if row is not None and place is not None:
            self._points[place] = (self._now, point_of(row, ONE_PASS))
            self._heard_at = self._now
            self._trouble = ""
        return ""

    def _complain(self, trouble: str) -> None:
        """Log a complaint once, when it begins, and babble once a minute."""
        self._trouble = trouble
        if trouble != self._logged and self._now - self._logged_at >= _LOG_PAUSE_SECONDS:
            _log.warning("dcgmi: %s", trouble)
            self._logged, self._logged_at = trouble, self._now
