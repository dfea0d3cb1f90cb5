"""Reading a device from a source that tells of the whole node at once, a point at a time."""

from collections import defaultdict
from typing import Protocol

from flopwatch.metrics import SUBSAMPLE_PERIOD_SECONDS, Reason
from flopwatch.wire import Device
from flopwatch_agent.collectors import (
    FOLDED_METRICS,
    MINIMUM_READINGS,
    WINDOW_METRICS,
    Folded,
    Happening,
    Settings,
    Value,
)
from flopwatch_agent.collectors.dcgm import Place, Point
from flopwatch_agent.collectors.driver import Found
from flopwatch_agent.collectors.seconds import Seconds

_SECOND_METRICS = ("engine_active", "sm_active")

WANTED_SECONDS = 30
"""A source that no device asked for so long has no work to do."""


class Points(Protocol):
    """A source's newest points. All may be called from many lanes at the same time."""

    def newest(self, place: Place, second: int) -> tuple[Point | None, str]:
        """A device's point, or None and why there is none. Says that the device is wanted."""

    @property
    def period_seconds(self) -> float:
        """How often there are new points."""


def period_of(settings: Settings, name: str) -> int:
    """A setting that is a period in whole seconds. Raises ValueError for what is none."""
    text = settings[name]
    if not text.isdecimal() or not 1 <= int(text) <= 3600:
        raise ValueError(f"--{name} {text!r} is no number of seconds from 1 to 3600")
    return int(text)


def place_of(device: Device) -> Place:
    """How DCGM names a device: by its GPU's UUID, and by the GPU instance if it is one."""
    gpu_instance = device.instance.partition("/")[0]
    return device.uuid, int(gpu_instance) if gpu_instance else None


class PointReader:
    """Means of the points in force at each second of an interval, for one device."""

    def __init__(self, found: Found, points: Points) -> None:
        self._place = place_of(found.device)
        self._points = points
        self._sums: defaultdict[str, float] = defaultdict(float)
        self._counts: defaultdict[str, int] = defaultdict(int)
        self._reasons: dict[str, Reason] = {}
        self._seconds = Seconds()
        self._readings = 0
        self._trouble = ""
        self._period = float(SUBSAMPLE_PERIOD_SECONDS)
        self._xid: int | None = None
        self._happenings: list[Happening] = []

    def read(self, second: int) -> bool:
        """Take in the newest point. It is no answer of the device: a page outlives its GPU."""
        point, trouble = self._points.newest(self._place, second)
        self._period = max(self._period, self._points.period_seconds)
        if point is None:
            self._trouble = trouble
            return False
        self._readings += 1
        self._note_xid(point.xid, second)
        for metric in WINDOW_METRICS:
            self._take(metric, point.values.get(metric, "absent"))
        self._seconds.keep(*(point.values.get(name, "absent") for name in _SECOND_METRICS))
        return False

    def fold(self, end: int) -> Folded:
        """The means. What is finer than the source's period is unknown."""
        values: dict[str, Value] = {metric: self._mean(metric) for metric in WINDOW_METRICS}
        folded = self._seconds.fold(values)
        if self._period > SUBSAMPLE_PERIOD_SECONDS:
            folded = dict.fromkeys(FOLDED_METRICS, "unsupported")
        known = any(isinstance(value, float) for value in values.values())
        trouble = self._trouble or "it tells nothing of this GPU's activity"
        told = Folded(values | folded, None if known else trouble, self._period, self._happenings)
        self._begin()
        return told

    def close(self) -> None:
        """Nothing was lent."""

    def _begin(self) -> None:
        self._sums.clear()
        self._counts.clear()
        self._reasons.clear()
        self._readings = 0
        self._trouble = ""
        self._period = float(SUBSAMPLE_PERIOD_SECONDS)
        self._happenings = []

    def _take(self, metric: str, value: Value) -> None:
        if isinstance(value, str):
            self._reasons[metric] = value
        else:
            self._sums[metric] += value
            self._counts[metric] += 1

    def _mean(self, metric: str) -> Value:
        if self._counts[metric] >= MINIMUM_READINGS:
            return self._sums[metric] / self._counts[metric]
        return self._reasons.get(metric, "stale" if self._readings else "absent")

    def _note_xid(self, xid: int | None, second: int) -> None:
        """The last code is kept for ever, so only a change of it tells of something new."""
        if xid is not None and self._xid is not None and xid != self._xid:
            self._happenings.append(Happening(second, "xid", xid, "told by DCGM"))
        self._xid = xid or self._xid or 0
