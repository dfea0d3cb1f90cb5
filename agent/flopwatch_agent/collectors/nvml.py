"""Memory, power, energy, clocks, heat, utilization and processes of a device, from NVML."""

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pynvml

from flopwatch.metrics import SAMPLE_PERIOD_SECONDS, Reason
from flopwatch_agent.collectors import (
    MINIMUM_READINGS,
    DriverSource,
    Folded,
    Settings,
    Source,
    Value,
    collector,
    plausible,
)
from flopwatch_agent.collectors.driver import Found, reason_of

THROTTLING = {
    pynvml.nvmlClocksEventReasonSwPowerCap: "power cap",
    pynvml.nvmlClocksEventReasonHwSlowdown: "hardware slowdown",
    pynvml.nvmlClocksEventReasonSwThermalSlowdown: "heat (software)",
    pynvml.nvmlClocksEventReasonHwThermalSlowdown: "heat (hardware)",
    pynvml.nvmlClocksEventReasonHwPowerBrakeSlowdown: "power brake",
}
"""What holds a clock down against its will. Not idleness, and not clocks that somebody set (NVML's
nvmlClocksEventReasons)."""

_ANY_THROTTLING = sum(THROTTLING)
_MOST_PIDS = 256


def _memory_used_mib(handle: Any) -> float:
    # Version 2: the "used" of version 1 holds the driver's reserve since driver 510.
    return float(pynvml.nvmlDeviceGetMemoryInfo(handle, pynvml.nvmlMemory_v2).used) / 2**20


def _throttled(handle: Any) -> float:
    return float(bool(pynvml.nvmlDeviceGetCurrentClocksEventReasons(handle) & _ANY_THROTTLING))


# Read from the GPU, also for a MIG instance: its instances share clock and heat.
_OF_GPU: dict[str, Callable[[Any], float]] = {
    "sm_clock_mhz": lambda gpu: float(pynvml.nvmlDeviceGetClockInfo(gpu, pynvml.NVML_CLOCK_SM)),
    "temperature_c": lambda gpu: float(
        pynvml.nvmlDeviceGetTemperature(gpu, pynvml.NVML_TEMPERATURE_GPU)
    ),
    "throttled_share": _throttled,
}
# Of a whole GPU only: shown for each instance they would be summed to a multiple.
_WHOLE_ONLY: dict[str, Callable[[Any], float]] = {
    "gpu_utilization": lambda gpu: pynvml.nvmlDeviceGetUtilizationRates(gpu).gpu / 100,
    "power_watts": lambda gpu: pynvml.nvmlDeviceGetPowerUsage(gpu) / 1000,
}


@collector("nvml", cost_milliseconds=20)
def open_nvml(settings: Settings) -> Source:
    """Always: no other source is needed for these."""
    return DriverSource(NvmlReader)


class NvmlReader:
    """Means of the interval's readings; energy is the difference between its ends."""

    def __init__(self, found: Found) -> None:
        self._whole = found.gpu_instance is None
        self._readings: dict[str, tuple[Callable[[Any], float], Any]] = {
            "memory_used_mib": (_memory_used_mib, found.handle)
        }
        self._readings |= {name: (call, found.gpu) for name, call in _OF_GPU.items()}
        if self._whole:
            self._readings |= {name: (call, found.gpu) for name, call in _WHOLE_ONLY.items()}
        self._energy = _Energy(found.gpu)
        self._sums: defaultdict[str, float] = defaultdict(float)
        self._counts: defaultdict[str, int] = defaultdict(int)
        self._reasons: dict[str, Reason] = {}

    def read(self, second: int) -> bool:
        """Read each figure on its own: one that fails costs no other."""
        answered = False
        for metric, (call, handle) in self._readings.items():
            try:
                value = plausible(metric, call(handle))
            except pynvml.NVMLError as error:
                self._reasons[metric] = reason_of(error)
                continue
            answered = True
            if isinstance(value, str):
                self._reasons[metric] = value
            else:
                self._sums[metric] += value
                self._counts[metric] += 1
        if self._whole:
            self._energy.read(second)
        return answered

    def fold(self, end: int) -> Folded:
        """The means, a reason where there were too few readings, and the energy."""
        values: dict[str, Value] = {}
        for metric in self._readings:
            if self._counts[metric] >= MINIMUM_READINGS:
                values[metric] = self._sums[metric] / self._counts[metric]
            else:
                values[metric] = self._reasons.get(metric, "stale")
        if self._whole:
            values["energy_joules"] = self._energy.fold(end)
        else:
            values |= dict.fromkeys((*_WHOLE_ONLY, "energy_joules"), "unsupported")
        self._sums.clear()
        self._counts.clear()
        self._reasons.clear()
        return Folded(values)

    def close(self) -> None:
        """Nothing was lent."""


class _Energy:
    """Joules between two readings of the millijoules since driver load."""

    def __init__(self, gpu: Any) -> None:
        self._gpu = gpu
        self._first: tuple[int, int] | None = None
        self._last: tuple[int, int] | None = None
        self._reason: Reason | None = None

    def read(self, second: int) -> None:
        try:
            millijoules = pynvml.nvmlDeviceGetTotalEnergyConsumption(self._gpu)
        except pynvml.NVMLError as error:
            self._reason = reason_of(error)
            return
        if self._last is not None and millijoules < self._last[1]:
            # The driver was reloaded: what was used before that in this interval is lost.
            self._reason = "implausible"
        self._last = (second, millijoules)
        self._first = self._first or self._last

    def fold(self, end: int) -> Value:
        """Energy of (end − 10 s, end]: known only if both ends were read, for it is a sum."""
        first, last, reason = self._first, self._last, self._reason
        self._reason = None
        self._first = last if last is not None and last[0] == end else None
        if reason is not None:
            return reason
        if first is None or last is None or last[0] != end:
            return "stale"
        if first[0] != end - SAMPLE_PERIOD_SECONDS:
            return "stale"
        return plausible("energy_joules", (last[1] - first[1]) / 1000)


def compute_pids(found: Found) -> list[int]:
    """Processes that compute on the device, by the host's numbers.

    An empty list is no proof of idleness: the driver may refuse it or not see containers.
    """
    try:
        processes = pynvml.nvmlDeviceGetComputeRunningProcesses_v3(found.handle)
    except pynvml.NVMLError:
        return []
    return [process.pid for process in processes[:_MOST_PIDS]]
