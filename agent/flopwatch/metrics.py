"""The table of metrics: one row for every column of a sample.

Collectors, storage, API, export and screens all read this table, so a new metric is a row here,
a migration, and a reading in one collector. Ratios are fractions from 0 to 1 inside Flopwatch and
percent on screen. The meanings are DCGM's; where NVML's GPU Performance Monitoring (GPM) offers the
same quantity, `gpm_id` names it and `gpm_scale` turns its unit (percent, MiB/s) into ours.
"""

from dataclasses import dataclass
from typing import Literal

Unit = Literal["ratio", "MiB", "W", "J", "MHz", "°C", "B/s", "count", "s"]

_PERCENT = 0.01
_MIB = 1048576.0
_UNBOUNDED = float("inf")


@dataclass(frozen=True, slots=True)
class Metric:
    """One column of a sample.

    `name` is the column; `label` what a screen shows; values outside [`minimum`, `maximum`] are
    implausible and stored as unknown. `dcgm_field` and `gpm_id` are the vendor's numbers.
    """

    name: str
    label: str
    unit: Unit
    maximum: float
    meaning: str
    dcgm_field: int | None = None
    gpm_id: int | None = None
    gpm_scale: float = _PERCENT
    minimum: float = 0.0


# GPM's NVLink ids run receive first (60), transmit second (61), the reverse of its PCIe ids.
# fmt: off
METRICS: tuple[Metric, ...] = (
    Metric("engine_active", "Engine active", "ratio", 1.0,
           "Share of time in which the graphics or compute engine was busy.", 1001, 1),
    Metric("sm_active", "SM active", "ratio", 1.0,
           "Share of time in which at least one warp was assigned, averaged over SMs.", 1002, 2),
    Metric("sm_occupancy", "SM occupancy", "ratio", 1.0,
           "Resident warps over the most the SMs could hold.", 1003, 3),
    Metric("tensor_active", "Tensor active", "ratio", 1.0,
           "Share of cycles in which a tensor pipe was active.", 1004, 5),
    Metric("dram_active", "DRAM active", "ratio", 1.0,
           "Share of cycles in which the memory interface moved data.", 1005, 10),
    Metric("fp64_active", "FP64 active", "ratio", 1.0,
           "Share of cycles in which the FP64 pipe was active.", 1006, 11),
    Metric("fp32_active", "FP32 active", "ratio", 1.0,
           "Share of cycles in which the FP32 pipe was active.", 1007, 12),
    Metric("fp16_active", "FP16 active", "ratio", 1.0,
           "Share of cycles in which the FP16 pipe, not the tensor pipe, was active.", 1008, 13),
    Metric("gpu_utilization", "GPU utilization", "ratio", 1.0,
           "Share of time in which any kernel ran: what nvidia-smi calls utilization.", 203),
    Metric("memory_used_mib", "Memory used", "MiB", 1048576.0,
           "Device memory in use without the driver's reserve.", 252),
    Metric("power_watts", "Power", "W", 5000.0, "Power draw of the board.", 155),
    Metric("energy_joules", "Energy", "J", 100000.0, "Energy used in the interval.", 156),
    Metric("sm_clock_mhz", "SM clock", "MHz", 10000.0, "Clock of the SMs.", 100),
    Metric("temperature_c", "Temperature", "°C", 150.0, "Temperature of the GPU.", 150),
    Metric("pcie_tx", "PCIe transmit", "B/s", 1e12, "Device to host, headers included.",
           1009, 20, _MIB),
    Metric("pcie_rx", "PCIe receive", "B/s", 1e12, "Host to device, headers included.",
           1010, 21, _MIB),
    Metric("nvlink_tx", "NVLink transmit", "B/s", 1e13, "Sent over all NVLinks.", 1011, 61, _MIB),
    Metric("nvlink_rx", "NVLink receive", "B/s", 1e13, "Received over all NVLinks.",
           1012, 60, _MIB),
    Metric("throttled_share", "Throttled", "ratio", 1.0,
           "Share of sub-samples in which heat, power brake or a power cap held the clock down.",
           112),
    Metric("engine_low_share", "Stalled", "ratio", 1.0,
           "Share of sub-samples in which the engine was active for less than 10 %."),
    Metric("sm_min", "SM active, lowest", "ratio", 1.0, "Lowest sub-sample of SM active."),
    Metric("sm_max", "SM active, highest", "ratio", 1.0, "Highest sub-sample of SM active."),
    Metric("subsample_count", "Sub-samples", "count", _UNBOUNDED,
           "Readings inside the interval; nominal 10."),
    Metric("source_period", "Source period", "s", 3600.0,
           "Period of the source; what is finer than this is unknown."),
)
# fmt: on

COLUMNS: tuple[str, ...] = tuple(metric.name for metric in METRICS)
BY_NAME: dict[str, Metric] = {metric.name: metric for metric in METRICS}

Reason = Literal["absent", "unsupported", "no permission", "stale", "implausible"]
"""Why a metric of a device has no value: never the same as zero."""

SAMPLE_PERIOD_SECONDS = 10
SUBSAMPLE_PERIOD_SECONDS = 1
ENGINE_LOW_THRESHOLD = 0.10
