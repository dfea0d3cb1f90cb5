"""Activity of a device, from NVML's GPU Performance Monitoring (Hopper and newer).

The driver gives the mean between two samples. One sample is kept from the interval's start, so the
figures are true means over the whole interval; the windows from second to second inside it give
the extremes and the share of stalled seconds.
"""

import math
from dataclasses import dataclass
from typing import Any

import pynvml

from flopwatch.metrics import BY_NAME, SAMPLE_PERIOD_SECONDS, Reason
from flopwatch_agent.collectors import (
    MINIMUM_READINGS,
    WINDOW_METRICS,
    DriverSource,
    Folded,
    Settings,
    Source,
    Value,
    collector,
    plausible,
)
from flopwatch_agent.collectors.driver import Found, reason_of
from flopwatch_agent.collectors.seconds import Seconds
from flopwatch_agent.ticker import interval_end

_SECOND_METRICS = ("engine_active", "sm_active")


@dataclass
class _Sample:
    """A sample of the driver's counters, which only the driver can read, and when it was taken."""

    handle: Any
    second: int = 0


@collector("gpm", cost_milliseconds=5, rank=1)
def open_gpm(settings: Settings) -> Source:
    """First choice: true means, no daemon, and no fight with users' profilers."""
    return DriverSource(GpmReader)


class GpmReader:
    """Window means of one device. Three samples go round: interval start, latest, next."""

    def __init__(self, found: Found) -> None:
        self._found = found
        self._request = pynvml.c_nvmlGpmMetricsGet_t()
        self._samples: list[_Sample] = []
        self._start: _Sample | None = None
        self._latest: _Sample | None = None
        self._reason: Reason | None = None
        self._seconds = Seconds()

    def read(self, second: int) -> bool:
        """Take a sample and read the window from the last one, if that lies in this interval."""
        try:
            sample = self._take(second)
        except pynvml.NVMLError as error:
            self._reason = reason_of(error)
            return False
        interval_start = interval_end(second) - SAMPLE_PERIOD_SECONDS
        if self._latest is not None and self._latest.second >= interval_start:
            window = self._means(self._latest, sample, _SECOND_METRICS)
            self._seconds.keep(window["engine_active"], window["sm_active"])
        if self._start is None or self._start.second < interval_start:
            self._start = sample
        self._latest = sample
        return True

    def fold(self, end: int) -> Folded:
        """Means over the interval, or over what was covered of it if that is half at least."""
        start, latest = self._start, self._latest
        reason = self._reason or "stale"
        if start is None or latest is None or latest.second - start.second < MINIMUM_READINGS:
            values: dict[str, Value] = dict.fromkeys(WINDOW_METRICS, reason)
        else:
            values = self._means(start, latest, WINDOW_METRICS)
        values |= self._seconds.fold(values)
        self._start = latest if latest is not None and latest.second == end else None
        self._reason = None
        reasons = [value for value in values.values() if isinstance(value, str)]
        return Folded(values, reasons[0] if len(reasons) == len(values) else None)

    def close(self) -> None:
        """Free the samples."""
        for sample in self._samples:
            pynvml.nvmlGpmSampleFree(sample.handle)
        self._samples.clear()
        self._start = self._latest = None

    def _take(self, second: int) -> _Sample:
        """Sample into the one of the three that is not in use."""
        if not self._samples:
            if not pynvml.nvmlGpmQueryDeviceSupport(self._found.gpu).isSupportedDevice:
                raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
            self._samples = [_Sample(pynvml.nvmlGpmSampleAlloc()) for _ in range(3)]
        sample = next(
            each for each in self._samples if each is not self._start and each is not self._latest
        )
        if self._found.gpu_instance is None:
            pynvml.nvmlGpmSampleGet(self._found.gpu, sample.handle)
        else:
            pynvml.nvmlGpmMigSampleGet(self._found.gpu, self._found.gpu_instance, sample.handle)
        sample.second = second
        return sample

    def _means(self, first: _Sample, second: _Sample, metrics: tuple[str, ...]) -> dict[str, Value]:
        """The driver's means between two samples, in our units."""
        request = self._request
        request.version = pynvml.NVML_GPM_METRICS_GET_VERSION
        request.numMetrics = len(metrics)
        request.sample1, request.sample2 = first.handle, second.handle
        for place, name in enumerate(metrics):
            request.metrics[place].metricId = BY_NAME[name].gpm_id
        try:
            pynvml.nvmlGpmMetricsGet(request)
        except pynvml.NVMLError as error:
            return dict.fromkeys(metrics, reason_of(error))
        return {name: _value(name, request.metrics[place]) for place, name in enumerate(metrics)}


def _value(name: str, answer: Any) -> Value:
    """One metric has its own return code, and NaN where the driver had nothing to say."""
    if answer.nvmlReturn != pynvml.NVML_SUCCESS:
        return reason_of(pynvml.NVMLError(answer.nvmlReturn))
    if math.isnan(answer.value):
        return "absent"
    return plausible(name, answer.value * BY_NAME[name].gpm_scale)
