"""The sources of a device's figures, one file each.

A source registers itself with `@source("name")`. To add one, write a file with a `Reader`, import
it in `load`, and add its metrics to `flopwatch.metrics`.
"""

from collections.abc import Callable
from importlib import import_module
from typing import Protocol

from flopwatch.metrics import BY_NAME, Reason
from flopwatch_agent.collectors.driver import Found

Value = float | Reason
"""A figure, or why there is none."""

MINIMUM_READINGS = 5
"""Fewer readings than half of the ten in an interval don't speak for it."""


class Reader(Protocol):
    """Reads one device from one source. All calls come from the device's own lane."""

    def read(self, second: int) -> bool:
        """Take a reading; True if the device answered at all."""

    def fold(self, end: int) -> dict[str, Value]:
        """What the readings in (end − 10 s, end] say, and begin the next interval."""

    def close(self) -> None:
        """Give back what the driver lent."""


SOURCES: dict[str, Callable[[Found], Reader]] = {}


def source(
    name: str,
) -> Callable[[Callable[[Found], Reader]], Callable[[Found], Reader]]:
    """Register what opens a reader of a device."""

    def register(opener: Callable[[Found], Reader]) -> Callable[[Found], Reader]:
        SOURCES[name] = opener
        return opener

    return register


def load() -> dict[str, Callable[[Found], Reader]]:
    """Import every source that comes with the agent and return the registry."""
    for name in ("nvml", "gpm"):
        import_module(f"{__name__}.{name}")
    return SOURCES


# Scaling (percent to fraction) may push a full 1.0 over its bound by a rounding error.
_ROUNDING = 1e-6


def plausible(metric: str, value: float) -> Value:
    """The value, or "implausible" where it lies outside the metric's bounds."""
    bounds = BY_NAME[metric]
    if not bounds.minimum <= value <= bounds.maximum * (1 + _ROUNDING):
        return "implausible"
    return min(value, bounds.maximum)
