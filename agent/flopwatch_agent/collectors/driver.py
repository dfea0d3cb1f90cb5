"""The GPU driver's door: loading NVML, finding devices, and what its errors mean."""

import logging
from dataclasses import dataclass
from typing import Any

import pynvml

from flopwatch.metrics import Reason
from flopwatch.wire import Device

_log = logging.getLogger(__name__)

_REASONS: dict[int, Reason] = {
    pynvml.NVML_ERROR_NOT_SUPPORTED: "unsupported",
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND: "unsupported",
    pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH: "unsupported",
    pynvml.NVML_ERROR_NO_PERMISSION: "no permission",
    pynvml.NVML_ERROR_TIMEOUT: "stale",
    pynvml.NVML_ERROR_NO_DATA: "stale",
    pynvml.NVML_ERROR_NOT_READY: "stale",
    pynvml.NVML_ERROR_IN_USE: "stale",
}
# After these the library must be initialised anew.
_DRIVER_GONE = (
    pynvml.NVML_ERROR_UNINITIALIZED,
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
)


def reason_of(error: pynvml.NVMLError) -> Reason:
    """Why a reading failed. A lost GPU, and an error that says nothing, leave it absent."""
    return _REASONS.get(error.value, "absent")


@dataclass(frozen=True)
class Found:
    """A device and the driver's handles of it.

    For a MIG instance `gpu` is the handle of the GPU it is a part of, `handle` its own and
    `gpu_instance` its number; for a whole GPU both handles are the same.
    """

    device: Device
    handle: Any
    gpu: Any
    gpu_instance: int | None = None


@dataclass(frozen=True)
class Discovery:
    """The devices that answered; `complete` unless a GPU that is counted did not answer."""

    found: list[Found]
    complete: bool


class Driver:
    """NVML as this process sees it. A missing driver is looked for again at every `discover`."""

    def __init__(self) -> None:
        self._ready = False
        self._complaint = ""

    def discover(self) -> Discovery:
        """Find all GPUs and, where a GPU is split, its MIG instances in its place."""
        try:
            if not self._ready:
                pynvml.nvmlInit()
                self._ready = True
            count = pynvml.nvmlDeviceGetCount()
        except pynvml.NVMLError as error:
            self._ready = self._ready and error.value not in _DRIVER_GONE
            self._say(f"no figures of GPUs: {error}")
            return Discovery([], complete=False)
        found: list[Found] = []
        complaints = []
        for index in range(count):
            try:
                found += _devices_of(pynvml.nvmlDeviceGetHandleByIndex(index))
            except pynvml.NVMLError as error:
                complaints.append(f"GPU {index} of {count} can't be read: {error}")
        self._say("; ".join(complaints) or f"{len(found)} devices")
        return Discovery(found, complete=not complaints)

    def _say(self, complaint: str) -> None:
        """Log a state once, when it begins."""
        if complaint != self._complaint:
            self._complaint = complaint
            _log.info("%s", complaint)


def _devices_of(gpu: Any) -> list[Found]:
    if not _split(gpu):
        return [Found(_describe(gpu), gpu, gpu)]
    found = []
    for index in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(gpu)):
        try:
            handle = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, index)
        except pynvml.NVMLError as error:
            if error.value == pynvml.NVML_ERROR_NOT_FOUND:
                continue
            raise
        found.append(_instance(gpu, handle))
    return found


def _split(gpu: Any) -> bool:
    try:
        return bool(pynvml.nvmlDeviceGetMigMode(gpu)[0])
    except pynvml.NVMLError as error:
        if reason_of(error) == "unsupported":
            return False
        raise


def _describe(gpu: Any) -> Device:
    return Device(
        uuid=pynvml.nvmlDeviceGetUUID(gpu),
        model=pynvml.nvmlDeviceGetName(gpu),
        memory_mib=_memory_mib(gpu),
        minor=_or_none(pynvml.nvmlDeviceGetMinorNumber, gpu),
        pci_bus_id=pynvml.nvmlDeviceGetPciInfo(gpu).busId,
        power_limit_watts=_power_limit_watts(gpu),
    )


def _instance(gpu: Any, handle: Any) -> Found:
    """A MIG instance: named by its GPU's UUID and by GPU instance / compute instance."""
    gpu_instance = pynvml.nvmlDeviceGetGpuInstanceId(handle)
    compute_instance = pynvml.nvmlDeviceGetComputeInstanceId(handle)
    device = _describe(gpu)
    device.instance = f"{gpu_instance}/{compute_instance}"
    # The driver names an instance "<GPU> MIG 3g.40gb".
    device.profile = pynvml.nvmlDeviceGetName(handle).rpartition(" MIG ")[2]
    device.memory_mib = _memory_mib(handle)
    device.power_limit_watts = None
    return Found(device, handle, gpu, gpu_instance)


def _or_none(call: Any, *arguments: Any) -> Any:
    """A fact that not every device has. A device that is gone still raises."""
    try:
        return call(*arguments)
    except pynvml.NVMLError as error:
        if reason_of(error) == "absent":
            raise
        return None


def _memory_mib(handle: Any) -> float | None:
    memory = _or_none(pynvml.nvmlDeviceGetMemoryInfo, handle, pynvml.nvmlMemory_v2)
    return None if memory is None else memory.total / 2**20


def _power_limit_watts(gpu: Any) -> float | None:
    milliwatts = _or_none(pynvml.nvmlDeviceGetPowerManagementLimit, gpu)
    return None if milliwatts is None else milliwatts / 1000
