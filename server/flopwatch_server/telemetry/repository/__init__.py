"""Every read of telemetry, and how its tiers are made of one another."""

from flopwatch_server.telemetry.repository.holdings import (
    HOUR,
    MINUTE,
    SAMPLE,
    AnyRow,
    allocations_of,
    epoch_seconds,
    held,
    held_by_run,
    instant,
    interval,
    minute_counts,
    of_run,
    sample_counts,
)
from flopwatch_server.telemetry.repository.newest import newest_of_run
from flopwatch_server.telemetry.repository.series import (
    Points,
    Window,
    gaps_of,
    hour_points,
    is_dropped,
    minute_points,
    sample_points,
)

__all__ = [
    "HOUR",
    "MINUTE",
    "SAMPLE",
    "AnyRow",
    "Points",
    "Window",
    "allocations_of",
    "epoch_seconds",
    "gaps_of",
    "held",
    "held_by_run",
    "hour_points",
    "instant",
    "interval",
    "is_dropped",
    "minute_counts",
    "minute_points",
    "newest_of_run",
    "of_run",
    "sample_counts",
    "sample_points",
]
