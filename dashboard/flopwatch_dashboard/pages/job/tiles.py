"""The tiles of a job: its figures over all its GPUs so far."""

from collections.abc import Callable

from dash.development.base_component import Component

from flopwatch_dashboard.components import Tile, tiles
from flopwatch_dashboard.format import (
    DASH,
    count,
    gibibytes,
    gpu_hours,
    kilowatt_hours,
    percent,
    percent_fine,
    watts,
)
from flopwatch_dashboard.pages.job.data import JobData

_MIB_PER_GIB = 1024


def job_tiles(data: JobData) -> Component:
    """SM, tensor, DRAM, memory, power, MFU, idle, energy."""
    return tiles(
        [
            _metric_tile(data, "SM active", "sm_active", percent),
            _metric_tile(data, "Tensor active", "tensor_active", percent),
            _metric_tile(data, "DRAM active", "dram_active", percent),
            _memory_tile(data),
            _power_tile(data),
            _mfu_tile(data),
            _idle_tile(data),
            Tile("Energy", kilowatt_hours(data.efficiency.energy_joules),
                 "GPUs only" if data.efficiency.energy_joules is not None else "not measured"),
        ],
        small=True,
    )  # fmt: skip


def _metric_tile(
    data: JobData, label: str, metric: str, text: Callable[[float | None], str]
) -> Tile:
    """The mean of the run; before its first whole minute, the newest samples."""
    mean = data.efficiency.means.get(metric)
    if mean is not None:
        return Tile(label, text(mean), f"peak {text(data.efficiency.maxima.get(metric))}")
    now = latest_mean(data, metric)
    return Tile(label, text(now), "not measured" if now is None else "now, first minute")


def latest_mean(data: JobData, metric: str) -> float | None:
    """The mean of the newest samples of all GPUs that have one."""
    known = [value for d in data.devices if (value := d.latest.get(metric)) is not None]
    return sum(known) / len(known) if known else None


def _memory_tile(data: JobData) -> Tile:
    used = data.efficiency.maxima.get("memory_used_mib")
    sizes = {device.memory_mib for device in data.devices if device.memory_mib is not None}
    note = f"of {min(sizes) / _MIB_PER_GIB:.0f} GiB" if sizes else "size unknown"
    return Tile("Memory, max", gibibytes(used), note if used is not None else "not measured")


def _power_tile(data: JobData) -> Tile:
    mean = data.efficiency.means.get("power_watts")
    limit = data.power_limit_watts
    mean = latest_mean(data, "power_watts") if mean is None else mean
    note = f"of {count(limit)} W a GPU" if limit is not None else "mean a GPU"
    return Tile("Power", watts(mean), note if mean is not None else "not measured")


def _mfu_tile(data: JobData) -> Tile:
    mfu = data.mfu
    if mfu is None:
        return Tile("MFU", DASH, "not reported")
    if mfu.train_mfu is None:
        return Tile("MFU", DASH, mfu.reason or "unknown")
    return Tile("MFU, training", percent_fine(mfu.train_mfu), f"job {percent_fine(mfu.job_mfu)}")


def _idle_tile(data: JobData) -> Tile:
    states = data.efficiency.state_seconds
    known = states.active + states.low + states.idle
    if not known:
        return Tile("Idle", DASH, "no minute known yet")
    share = percent(states.idle / states.total)
    return Tile("Idle", gpu_hours(states.idle / 3600), f"{share} of the job", unit="GPU-h")
