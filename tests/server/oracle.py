"""What minutes and hours must be, computed from samples by numpy, after the contract's words."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Cells = dict[str, float]
"""The known values of one sample."""

SUMMED, LOWEST, HIGHEST = "energy_joules", "sm_min", "sm_max"
MEANS = (
    "engine_active", "sm_active", "sm_occupancy", "tensor_active", "dram_active", "fp64_active",
    "fp32_active", "fp16_active", "gpu_utilization", "memory_used_mib", "power_watts",
    "sm_clock_mhz", "temperature_c", "pcie_tx", "pcie_rx", "nvlink_tx", "nvlink_rx",
    "throttled_share", "engine_low_share",
)  # fmt: skip
MAXIMA = ("sm_active", "tensor_active", "dram_active", "memory_used_mib", "power_watts",
          "temperature_c")  # fmt: skip
SPREADS = ("sm_active", "tensor_active", "dram_active")
MEASURES = (SUMMED, LOWEST, HIGHEST, *MEANS, *(f"{name}_max" for name in MAXIMA))
POWER_LIMIT_WATTS = 700.0


def minute(samples: Iterable[Cells]) -> dict[str, Any]:
    """One device-minute of its samples, one an interval."""
    told = [{name: float(np.float32(value)) for name, value in cells.items()} for cells in samples]
    measures = {
        SUMMED: _reduced(told, SUMMED, np.sum),
        LOWEST: _reduced(told, LOWEST, np.min),
        HIGHEST: _reduced(told, HIGHEST, np.max),
        **{name: _reduced(told, name, np.mean) for name in MEANS},
        **{f"{name}_max": _reduced(told, name, np.max) for name in MAXIMA},
    }
    suspects = sum(_is_suspect(cells) for cells in told)
    return {
        "state": _state(told, suspects, measures["sm_active"]),
        "samples_received": len(told),
        "samples_suspect": suspects,
        **measures,
    }


def hour(minutes: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """One device-hour of its minutes as they are stored, NaN where unknown."""
    rows = list(minutes)
    known = {name: _known(rows, name) for name in MEASURES}
    sources = {SUMMED: np.sum, LOWEST: np.min, HIGHEST: np.max}
    measures = {
        name: float(how(known[name])) if len(known[name]) else float("nan")
        for name in MEASURES
        for how in (sources.get(name, np.max if name.endswith("_max") else np.mean),)
    }
    return {
        **{
            f"{state}_minutes": sum(row["state"] == place for row in rows)
            for place, state in enumerate(("unknown", "idle", "low", "active"))
        },
        "samples_received": sum(row["samples_received"] for row in rows),
        "samples_suspect": sum(row["samples_suspect"] for row in rows),
        **measures,
        **{f"histogram of {name}": histogram(known[name]) for name in SPREADS},
    }


def histogram(ratios: NDArray[np.float64]) -> list[int]:
    """How many ratios lie in each whole point from 0 to 100."""
    points = np.floor(ratios.astype(np.float32) * np.float32(100))
    return np.bincount(points.astype(int), minlength=101).tolist()


def _known(rows: list[Mapping[str, Any]], name: str) -> NDArray[np.float64]:
    values = np.array([row[name] for row in rows], float)
    return values[~np.isnan(values)]


def _reduced(told: list[Cells], name: str, how: Any) -> float:
    values = [cells[name] for cells in told if name in cells]
    return float(how(np.array(values))) if values else float("nan")


def _state(told: list[Cells], suspects: int, sm_active: float) -> int:
    """0 unknown, 1 idle, 2 low, 3 active; 5 of 6 samples are the 80 % that are asked for."""
    telling = [cells for cells in told if {"sm_active", "gpu_utilization"} & set(cells)]
    if suspects:
        return 0
    if len(telling) >= 5 and all(_is_idle(cells) for cells in telling):
        return 1
    if sum("sm_active" in cells for cells in told) < 5:
        return 0
    return 2 if np.float32(sm_active) < np.float32(0.15) else 3


def _is_idle(cells: Cells) -> bool:
    return (
        cells.get("sm_active", 0.0) < np.float32(0.01) and cells.get("gpu_utilization", 0.0) == 0.0
    )


def _is_suspect(cells: Cells) -> bool:
    if cells.get("sm_active") == 0.0 and cells.get("gpu_utilization", 0.0) >= 0.5:
        return True
    activity = cells.get("sm_active", cells.get("gpu_utilization"))
    if activity is None or activity >= np.float32(0.01):
        return False
    math = ("tensor_active", "fp64_active", "fp32_active", "fp16_active")
    return cells.get("power_watts", 0.0) > POWER_LIMIT_WATTS / 2 or any(
        cells.get(name, 0.0) >= np.float32(0.01) for name in math
    )
