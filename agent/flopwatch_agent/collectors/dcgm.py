"""What NVIDIA's DCGM means: names of its fields, its blanks, and its units in ours.

Names, types and blanks are those of dcgm_fields.h and dcgm_structs.h. DCGM 4.6 renamed fields and
kept the old names as aliases; an exporter prints whichever name its own configuration uses.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from flopwatch.metrics import METRICS, Reason
from flopwatch_agent.collectors import Value, plausible

XID_FIELD = 230
"""Code of the last Xid: a gauge, not a count."""

ENERGY_FIELD = 156
"""Millijoules since driver load: it grows with every sample, even of an idle GPU."""

_IDS: dict[str, int] = {
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE": 1001,
    "DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO": 1001,
    "DCGM_FI_PROF_SM_ACTIVE": 1002,
    "DCGM_FI_PROF_SM_UTIL_RATIO": 1002,
    "DCGM_FI_PROF_SM_OCCUPANCY": 1003,
    "DCGM_FI_PROF_SM_OCCUPANCY_RATIO": 1003,
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": 1004,
    "DCGM_FI_PROF_TENSOR_UTIL_RATIO": 1004,
    "DCGM_FI_PROF_DRAM_ACTIVE": 1005,
    "DCGM_FI_PROF_DRAM_UTIL_RATIO": 1005,
    "DCGM_FI_PROF_PIPE_FP64_ACTIVE": 1006,
    "DCGM_FI_PROF_FP64_UTIL_RATIO": 1006,
    "DCGM_FI_PROF_PIPE_FP32_ACTIVE": 1007,
    "DCGM_FI_PROF_FP32_UTIL_RATIO": 1007,
    "DCGM_FI_PROF_PIPE_FP16_ACTIVE": 1008,
    "DCGM_FI_PROF_FP16_UTIL_RATIO": 1008,
    "DCGM_FI_PROF_PCIE_TX_BYTES": 1009,
    "DCGM_FI_PROF_PCIE_RX_BYTES": 1010,
    "DCGM_FI_PROF_NVLINK_TX_BYTES": 1011,
    "DCGM_FI_PROF_NVLINK_RX_BYTES": 1012,
    # GPU_UTIL_RATIO is left out: field 203 (0 to 100) in 4.6 and field 1613 (0 to 1) in 4.7.
    "DCGM_FI_DEV_GPU_UTIL": 203,
    "DCGM_FI_DEV_FB_USED": 252,
    "DCGM_FI_DEV_POWER_USAGE": 155,
    "DCGM_FI_DEV_BOARD_POWER_WATTS": 155,
    "DCGM_FI_DEV_SM_CLOCK": 100,
    "DCGM_FI_DEV_GPU_TEMP": 150,
    "DCGM_FI_DEV_GPU_TEMP_CELSIUS": 150,
    "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": ENERGY_FIELD,
    "DCGM_FI_DEV_XID_ERRORS": XID_FIELD,
    "DCGM_FI_DEV_XID_ERROR": XID_FIELD,
}

METRIC_OF: dict[int, str] = {
    metric.dcgm_field: metric.name for metric in METRICS if metric.dcgm_field is not None
}

ONE_PASS = (1001, 1002, 1003, 1004, 1005, 1009, 1010, 1011, 1012)
"""Profiling fields that a GPU before Hopper counts at the same time. With 1006 to 1008 DCGM would
begin to take turns, and each value would speak of a part of the time only."""

# Ours per DCGM's unit. All profiling fields have our units already: 0 to 1, B/s.
_SCALE = {203: 0.01}

# Exactly these; a counter may well be larger than a blank. Their order: DCGM_*_BLANK, NOT_FOUND,
# NOT_SUPPORTED, NOT_PERMISSIONED.
_BLANK_REASONS: tuple[Reason, ...] = ("absent", "absent", "unsupported", "no permission")
_INT32_BLANK = 0x7FFFFFF0
_INT64_BLANK = 0x7FFFFFFFFFFFFFF0
_FP64_BLANK = 2**47
_BLANKS: dict[int, Reason] = {
    blank + place: reason
    for blank in (_INT32_BLANK, _INT64_BLANK, _FP64_BLANK)
    for place, reason in enumerate(_BLANK_REASONS)
}
_ROUNDED_INT64_BLANK = float(_INT64_BLANK)
_INTEGER = re.compile(r"[+-]?\d{1,20}")

Place = tuple[str, int | None]
"""UUID of a GPU, and the number of the GPU instance if it is a part of one."""


def field_of(name: str) -> int | None:
    """The field that a metric's name means, also in an old exporter's lower case."""
    return _IDS.get(name.upper())


def number_of(text: str) -> float | Reason:
    """A printed value, or the reason that DCGM prints in its place.

    Raises ValueError for a text that is neither.
    """
    if _INTEGER.fullmatch(text):
        blank = _BLANKS.get(int(text))
        if blank is not None:
            return blank
    value = float(text)
    if not math.isfinite(value):
        return "implausible"
    if value == _ROUNDED_INT64_BLANK:  # whoever printed it rounded the reason away
        return "absent"
    return _BLANKS.get(int(value), value) if value.is_integer() else value


@dataclass
class Point:
    """What one source says of one device at one time, by metric; `xid` is the last code told."""

    values: dict[str, Value] = field(default_factory=dict)
    xid: int | None = None


@dataclass
class Table:
    """What one page, or one round of rows, says. Bounded by the text that it was read from.

    `bad` counts lines that could not be read, and `first_bad` is one of them; `dropped` counts
    values that can't be, `contradicted` those that were told twice with different values: nobody
    knows which is right, so neither is kept. `fingerprint` changes with every value told.
    """

    points: dict[Place, Point] = field(default_factory=dict)
    bad: int = 0
    first_bad: str = ""
    fingerprint: int = 0
    dropped: int = 0
    contradicted: int = 0

    def add(self, place: Place, number: int, text: str) -> None:
        """Take in one value of one device. Raises ValueError where the text is no number."""
        value = number_of(text)
        if number == XID_FIELD:
            if not isinstance(value, str) and 0 < value < 2**16:
                self._point(place).xid = int(value)
            return
        metric = METRIC_OF.get(number)
        if metric is None or number == ENERGY_FIELD:
            return
        if not isinstance(value, str):
            value = plausible(metric, value * _SCALE.get(number, 1.0))
        self.dropped += value == "implausible"
        values = self._point(place).values
        old = values.get(metric)
        if old is None or old in _BLANK_REASONS:
            values[metric] = value
        elif value != old and value not in _BLANK_REASONS:
            self.contradicted += 1
            values[metric] = "implausible"

    def refuse(self, line: str) -> None:
        """Count a line that can't be read."""
        self.bad += 1
        self.first_bad = self.first_bad or line[:200]

    def faults(self) -> str:
        """What was wrong with it, or nothing."""
        counts = (
            (self.bad, f"lines can't be read, as: {self.first_bad}"),
            (self.dropped, "values can't be"),
            (self.contradicted, "values contradict one another"),
        )
        return "; ".join(f"{count} {words}" for count, words in counts if count)

    def metrics(self) -> Iterator[tuple[Place, str, Value]]:
        """Every value with its device and metric."""
        for place, point in self.points.items():
            for metric, value in point.values.items():
                yield place, metric, value

    def _point(self, place: Place) -> Point:
        return self.points.setdefault(place, Point())
