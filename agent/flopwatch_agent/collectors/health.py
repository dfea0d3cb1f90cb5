"""Rare things that happen to a device: Xids, memory errors, remapped rows, PCIe width, clocks.

What the first reading shows is where counting begins, not an event, and neither is a counter that
was set back. Xids come from the driver by themselves; everything else is compared with before.
Of a split GPU all instances are told Xids, and the first of them the rest, which is the GPU's.
"""

import logging
import math
import threading
import time
from collections import defaultdict, deque
from collections.abc import Iterator
from concurrent.futures import Future
from ctypes import addressof
from dataclasses import dataclass
from typing import Any, Protocol

import pynvml

from flopwatch.metrics import SAMPLE_PERIOD_SECONDS
from flopwatch_agent.collectors import Folded, Happening, Reader, Settings, Source, collector
from flopwatch_agent.collectors.driver import Found
from flopwatch_agent.collectors.nvml import THROTTLING

_log = logging.getLogger(__name__)

STEADY_SECONDS = 5
"""Clock event reasons must hold for so long: a GPU at its limits changes them all the time."""

STEADY_LOOKS = 2
"""The PCIe link must show the same width so many times, ten seconds apart."""

XID_PAUSE_SECONDS = 30.0
"""Before the driver is asked again for Xids that it could not tell, of one GPU or of all."""

_MOST_WAITING_XIDS = 64
_XID_WAIT_MILLISECONDS = 1000
_NO_INSTANCE = 0xFFFFFFFF


@collector("health", cost_milliseconds=20)
def open_health(settings: Settings) -> Source:
    """Always."""
    return HealthSource()


class HealthSource:
    """Waits for Xids of the whole node in a thread of its own: that call is made to block."""

    def __init__(self) -> None:
        self._readers: list[HealthReader] = []
        self._listens = False
        self._ended = threading.Event()
        self._complaints: set[str] = set()

    def open(self, found: Found) -> Reader:
        """A reader of one device, which Xids of its GPU are told to from now on."""
        reader = HealthReader(found, self._readers)
        self._readers.append(reader)
        if not self._listens:
            self._listens = True
            threading.Thread(target=self._listen, name="xid", daemon=True).start()
        return reader

    def tick(self, second: int) -> Future[None] | None:
        """The thread has its own time."""
        return None

    def close(self) -> None:
        """Listen no more."""
        self._ended.set()

    def _listen(self) -> None:
        """Wait for Xids; begin anew when the driver fails."""
        while not self._ended.is_set():
            try:
                events = pynvml.nvmlEventSetCreate()
                try:
                    self._hear(events)
                finally:
                    pynvml.nvmlEventSetFree(events)
            except pynvml.NVMLError as error:
                self._complain(f"no Xids from the driver: {error}")
                self._ended.wait(XID_PAUSE_SECONDS)

    def _hear(self, events: Any) -> None:
        due_at: defaultdict[int, float] = defaultdict(float)  # by handle: when to register a GPU
        while not self._ended.is_set():
            for reader in list(self._readers):
                if time.monotonic() >= due_at[reader.handle]:
                    due_at[reader.handle] = self._register(reader, events)
            try:
                event = pynvml.nvmlEventSetWait_v2(events, _XID_WAIT_MILLISECONDS)
            except pynvml.NVMLError_Timeout:
                continue
            uuid = self._uuid_of(event.device)
            for reader in list(self._readers):
                if reader.uuid == uuid and event.eventType == pynvml.nvmlEventTypeXidCriticalError:
                    reader.hear(int(event.eventData), int(event.gpuInstanceId))

    def _register(self, reader: "HealthReader", events: Any) -> float:
        """Ask for the Xids of a GPU; return when to ask again. A lost one costs no other's."""
        try:
            xid = pynvml.nvmlEventTypeXidCriticalError
            pynvml.nvmlDeviceRegisterEvents(reader.gpu, xid, events)
        except pynvml.NVMLError as error:
            self._complain(f"no Xids of {reader.uuid} from the driver: {error}")
            return time.monotonic() + XID_PAUSE_SECONDS
        return math.inf

    def _uuid_of(self, gpu: Any) -> str:
        try:
            return str(pynvml.nvmlDeviceGetUUID(gpu))
        except pynvml.NVMLError:  # lost, as with Xid 79: its handle is still known
            uuids = {reader.handle: reader.uuid for reader in list(self._readers)}
            return uuids.get(addressof(gpu.contents), "")

    def _complain(self, complaint: str) -> None:
        """Say it once."""
        if complaint not in self._complaints:
            self._complaints.add(complaint)
            _log.warning("%s", complaint)


class _Check(Protocol):
    def look(self, gpu: Any, second: int) -> Iterator[Happening]:
        """What has changed since the last look. Raises NVMLError where the driver can't tell."""


class HealthReader:
    """Looks at one device: at its clocks every second, at the rest once an interval."""

    def __init__(self, found: Found, readers: list["HealthReader"]) -> None:
        """`readers` are those of all devices of the node, until they are closed."""
        self.uuid = found.device.uuid
        self.gpu = found.gpu
        self.handle = addressof(found.gpu.contents)
        self._gpu_instance = found.gpu_instance
        self._readers = readers
        self._xids: deque[int] = deque(maxlen=_MOST_WAITING_XIDS)
        self._happenings: list[Happening] = []
        self._every_second: list[_Check] = [_Clocks()]
        self._every_interval: list[_Check] = [
            _Counter("ecc_corrected", pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED),
            _Counter("ecc_uncorrected", pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED),
            _Rows(),
            _Width(),
        ]

    def hear(self, xid: int, gpu_instance: int) -> None:
        """Take in an Xid of the GPU, unless it is another instance's own."""
        if self._gpu_instance is None or gpu_instance in (_NO_INSTANCE, self._gpu_instance):
            self._xids.append(xid)

    def read(self, second: int) -> bool:
        """Look. A figure that the driver can't tell costs no other, and is no answer."""
        while self._xids:
            self._happenings.append(Happening(second, "xid", self._xids.popleft()))
        if next(each for each in list(self._readers) if each.uuid == self.uuid) is self:
            self._look(self._every_second, second)
            if second % SAMPLE_PERIOD_SECONDS == 0:
                self._look(self._every_interval, second)
        return False

    def fold(self, end: int) -> Folded:
        """What happened."""
        happenings, self._happenings = self._happenings, []
        return Folded(happenings=happenings)

    def close(self) -> None:
        """Hear no more Xids."""
        self._readers.remove(self)

    def _look(self, checks: list[_Check], second: int) -> None:
        for check in checks:
            try:
                self._happenings += check.look(self.gpu, second)
            except pynvml.NVMLError:
                continue  # this GPU has no such counter, or is lost, which its figures tell


class _Steady:
    """A state that counts once it was seen so many times in a row."""

    def __init__(self, looks: int) -> None:
        self._looks = looks
        self._told: int | None = None
        self._seen: int | None = None
        self._times = 0

    def changed(self, state: int) -> bool:
        """Whether the state counts now and differs from the last that did."""
        self._times = self._times + 1 if state == self._seen else 1
        self._seen = state
        if self._times < self._looks or state == self._told:
            return False
        first, self._told = self._told is None, state
        return not first


class _Clocks:
    """What holds the clocks down against their will, but for the power cap: a GPU that works hard
    is at it on and off, which is no event; `throttled_share` tells how much.
    """

    def __init__(self) -> None:
        self._state = _Steady(STEADY_SECONDS)

    def look(self, gpu: Any, second: int) -> Iterator[Happening]:
        now = pynvml.nvmlDeviceGetCurrentClocksEventReasons(gpu)
        now &= ~pynvml.nvmlClocksEventReasonSwPowerCap
        reasons = {bit: word for bit, word in THROTTLING.items() if now & bit}
        if self._state.changed(sum(reasons)):
            yield Happening(second, "clock_reasons", sum(reasons), ", ".join(reasons.values()))


@dataclass
class _Counter:
    """Memory errors since the driver was loaded."""

    kind: str
    error_type: int
    before: int | None = None

    def look(self, gpu: Any, second: int) -> Iterator[Happening]:
        volatile = pynvml.NVML_VOLATILE_ECC
        now = pynvml.nvmlDeviceGetTotalEccErrors(gpu, self.error_type, volatile)
        before, self.before = self.before, now
        if before is not None and now > before:
            yield Happening(second, self.kind, now - before)


@dataclass
class _Rows:
    """Memory rows that were taken out of use, and whether that failed."""

    before: tuple[int, bool, bool] | None = None

    def look(self, gpu: Any, second: int) -> Iterator[Happening]:
        corrected, uncorrected, pending, failed = pynvml.nvmlDeviceGetRemappedRows(gpu)
        now = corrected + uncorrected, bool(pending), bool(failed)
        before, self.before = self.before, now
        if before is None:
            return
        if now[0] > before[0] or now[1] > before[1]:
            detail = "a reset of the GPU is needed" if pending else ""
            yield Happening(second, "rows_remapped", max(0, now[0] - before[0]), detail)
        if now[2] > before[2]:
            yield Happening(second, "row_remap_failed", 1)


class _Width:
    """Lanes of the PCIe link, where they are fewer than the link could have, or all again."""

    def __init__(self) -> None:
        self._state = _Steady(STEADY_LOOKS)

    def look(self, gpu: Any, second: int) -> Iterator[Happening]:
        lanes = pynvml.nvmlDeviceGetCurrPcieLinkWidth(gpu)
        most = pynvml.nvmlDeviceGetMaxPcieLinkWidth(gpu)
        if self._state.changed(lanes):
            yield Happening(second, "pcie_width", lanes, f"of {most} lanes")
