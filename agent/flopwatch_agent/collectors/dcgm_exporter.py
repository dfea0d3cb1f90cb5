"""Activity of devices from the page of a dcgm-exporter on this node.

An exporter samples on a schedule of its own, every 30 s by default and every second as we ship it,
and serves the newest sample to whoever asks. So the page is asked for once in its period, and how
often it really changes is what is told as the source's period.
"""

import http.client
import logging
import re
import socket
from collections import deque
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from statistics import median
from urllib.parse import SplitResult, urlsplit

from flopwatch_agent.collectors import Reader, Setting, Settings, Source, collector
from flopwatch_agent.collectors.dcgm import Place, Point, Table, field_of
from flopwatch_agent.collectors.driver import Found
from flopwatch_agent.collectors.points import WANTED_SECONDS, PointReader, period_of
from flopwatch_agent.lanes import Lane

_log = logging.getLogger(__name__)

DEADLINE_SECONDS = 3
FROZEN_SECONDS = 120
"""A page that has not changed for so long, four times the exporter's own default period, and for
four of the configured ones, says nothing any more: even an idle GPU's energy grows."""

MAX_PAGE_BYTES = 4 * 1024 * 1024
_MOST_PERIODS_WITHOUT_PAGE = 5
_LONGEST_PAUSE_SECONDS = 60
_GAPS_REMEMBERED = 5

_NAME = re.compile(r"[A-Za-z_:][\w:]*")
_REST = re.compile(r"\s*(?:\{(.*)\})?\s+(\S+)(?:\s+-?\d+)?")
_LABEL = re.compile(r'\s*([A-Za-z_]\w*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*(?:,|$)')
_UUID_LABELS = ("UUID", "uuid", "gpu_uuid")
# A row with one of these speaks of a part of a GPU, or of no GPU at all.
_OTHER_ENTITIES = frozenset({"nvlink", "nvswitch", "cpu", "cpucore"})

_SETTINGS = (
    Setting("dcgm-exporter", "", "URL of this node's dcgm-exporter, as http://127.0.0.1:9400/metrics"),
    Setting("dcgm-exporter-period", "1", "seconds between its samples, as it is configured"),
)  # fmt: skip


@collector("dcgm_exporter", cost_milliseconds=2, rank=3, settings=_SETTINGS)
def open_exporter(settings: Settings) -> Source | None:
    """Third choice, where a URL is given."""
    if not settings["dcgm-exporter"]:
        return None
    url = urlsplit(settings["dcgm-exporter"])
    if url.scheme != "http" or not url.hostname:
        raise ValueError(f"--dcgm-exporter {settings['dcgm-exporter']!r} is no http URL")
    return ExporterSource(url, period_of(settings, "dcgm-exporter-period"))


def parse_page(text: str) -> Table:
    """Read an exposition page line by line: a line that is broken costs that line."""
    table = Table()
    places: dict[str, Place | None] = {}  # by labels: every metric of a GPU has the same
    for line in text.split("\n"):
        if not line or line.isspace() or line.lstrip().startswith("#"):
            continue
        try:
            _read_line(line.strip(), table, places)
        except ValueError:
            table.refuse(line)
    return table


def _read_line(line: str, table: Table, places: dict[str, Place | None]) -> None:
    """Take in one row, if it is of a field that is kept. Raises ValueError for a broken one."""
    name = _NAME.match(line)
    if name is None:
        raise ValueError("no name")
    number = field_of(name[0])
    if number is None:
        return
    match = _REST.fullmatch(line, name.end())
    if match is None:
        raise ValueError("no row")
    labels, value = match.groups()
    if labels not in places:
        places[labels] = _place(_labels(labels or ""))
    place = places[labels]
    if place is not None:
        table.add(place, number, value)
        table.fingerprint = hash((table.fingerprint, value))


def _labels(text: str) -> dict[str, str]:
    """Labels of a row. Raises ValueError where something else stands among them."""
    labels: dict[str, str] = {}
    end = 0
    while end < len(text.rstrip()):
        match = _LABEL.match(text, end)
        if match is None:
            raise ValueError(f"no label: {text[end:]}")
        labels[match[1]] = match[2]
        end = match.end()
    return labels


def _place(labels: dict[str, str]) -> Place | None:
    """The device a row is about; None if it is about no device. Raises ValueError without a UUID.

    Only the UUID, its GPU's also for an instance, is the same for everybody: `gpu`, `device` and
    the host's name are numbers and words of the exporter's own.
    """
    if not _OTHER_ENTITIES.isdisjoint(labels):
        return None
    uuid = next((labels[name] for name in _UUID_LABELS if labels.get(name)), None)
    if uuid is None:
        raise ValueError("a row without a UUID")
    gpu_instance = labels.get("GPU_I_ID", "")
    return uuid, int(gpu_instance) if gpu_instance else None


class Heartbeat:
    """How often the pages really change."""

    def __init__(self, period_seconds: int) -> None:
        self._configured = period_seconds
        self._gaps: deque[int] = deque(maxlen=_GAPS_REMEMBERED)
        self._fingerprint: int | None = None
        self._changed_at = 0

    def feel(self, fingerprint: int, second: int) -> None:
        """Take in a page."""
        if fingerprint == self._fingerprint:
            return
        if self._fingerprint is not None and second > self._changed_at:
            self._gaps.append(second - self._changed_at)
        self._fingerprint, self._changed_at = fingerprint, second

    def age(self, second: int) -> int:
        """Seconds since the last change."""
        return max(0, second - self._changed_at)

    def period(self, second: int) -> float:
        """The period as configured, or a longer one if changes come less often."""
        usual = median(self._gaps) if self._gaps else 0.0
        age = self.age(second)
        return float(max(self._configured, usual, age if age > 2 * usual else 0))


class ExporterSource:
    """Asks for the page in a lane of its own, and keeps the newest."""

    def __init__(self, url: SplitResult, period_seconds: int) -> None:
        self._url = url
        self._period = period_seconds
        self._lane = Lane("dcgm-exporter")
        self._asked: Future[None] | None = None
        self._socket: socket.socket | None = None
        self._broken_off = False
        self._heartbeat = Heartbeat(period_seconds)
        self._table: Table | None = None
        self._read_at = 0
        self._asked_at = 0
        self._next_at = 0
        self._wanted_at = 0
        self._trouble = "not asked yet"
        self._failures = 0

    def open(self, found: Found) -> Reader:
        """A reader of one device's rows."""
        return PointReader(found, self)

    def tick(self, second: int) -> Future[None] | None:
        """Ask for a page if one is due and wanted; break off an answer that takes too long."""
        if self._lane.busy:
            if not self._asked_at <= second <= self._asked_at + DEADLINE_SECONDS:
                self._break_off()
            return None
        asked, self._asked = self._asked, None
        if asked is not None:
            asked.result()
        clock_turned_back = second < self._asked_at
        if second - self._wanted_at > WANTED_SECONDS:
            return None
        if second < self._next_at and not clock_turned_back:
            return None
        self._asked_at, self._next_at, self._broken_off = second, second + self._period, False
        self._asked = self._lane.start(partial(self._ask, second))
        return self._asked

    def close(self) -> None:
        """Leave an answer that is still on its way."""
        self._break_off()

    @property
    def period_seconds(self) -> float:
        """How often the page changes, as far as has been seen."""
        return self._heartbeat.period(self._read_at)

    def newest(self, place: Place, second: int) -> tuple[Point | None, str]:
        """The rows of a device in the newest page, unless that is too old."""
        self._wanted_at = second
        table = self._table
        if table is None or self._failures:
            return None, self._trouble
        if second - self._read_at > _MOST_PERIODS_WITHOUT_PAGE * self._period:
            return None, "no answer in time"
        if self._heartbeat.age(second) > max(FROZEN_SECONDS, 4 * self._period):
            return None, f"its page has not changed for {self._heartbeat.age(second)} s"
        point = table.points.get(place)
        return point, "" if point else "no row for this GPU"

    def _ask(self, second: int) -> None:
        try:
            table = parse_page(self._fetch())
        except (OSError, http.client.HTTPException) as error:
            self._fail(_in_words(error), second)
            return
        before = self._table
        if self._failures or before is None:
            _log.info("%s answers", self._url.geturl())
        if table.faults() and not (before and before.faults()):
            _log.warning("%s: %s", self._url.geturl(), table.faults())
        self._heartbeat.feel(table.fingerprint, second)
        self._table, self._read_at, self._failures = table, second, 0

    def _fail(self, trouble: str, second: int) -> None:
        """Ask again later, and ever later."""
        if trouble != self._trouble:
            _log.warning("%s: %s", self._url.geturl(), trouble)
        self._trouble = trouble
        self._failures += 1
        pause = min(self._period * 2**self._failures, _LONGEST_PAUSE_SECONDS)
        self._next_at = second + pause

    def _fetch(self) -> str:
        """The page. Raises OSError or HTTPException."""
        host, port = self._url.hostname or "", self._url.port
        connection = http.client.HTTPConnection(host, port, timeout=DEADLINE_SECONDS)
        try:
            connection.connect()
            self._socket = connection.sock  # the connection forgets it before the page is read
            path = self._url._replace(scheme="", netloc="", fragment="").geturl() or "/"
            connection.request("GET", path, headers={"Connection": "close"})
            response = connection.getresponse()
            if response.status != http.client.OK:
                raise OSError(f"HTTP {response.status}")
            body = response.read(MAX_PAGE_BYTES + 1)
        finally:
            self._socket = None
            connection.close()
        if len(body) > MAX_PAGE_BYTES:
            raise OSError(f"the page is over {MAX_PAGE_BYTES} bytes")
        if self._broken_off:
            raise TimeoutError
        if response.length:  # bytes that were promised and did not come: the last value may be cut
            raise OSError("the page is cut off")
        return body.decode(errors="replace")

    def _break_off(self) -> None:
        its_socket = self._socket
        self._broken_off = True
        if its_socket is not None:
            with suppress(OSError):  # it has just ended by itself
                its_socket.shutdown(socket.SHUT_RDWR)


def _in_words(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer in {DEADLINE_SECONDS} s"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return str(error) or type(error).__name__
