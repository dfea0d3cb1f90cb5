"""Where a device's figures come from: one file a collector.

A collector registers itself with `@collector(...)`. To add one, put a file here that has an opener
and a pure parser, and give it a fixture; nothing else has to know it. Those with a `rank` tell the
activity of a device (DCGM's profiling metrics), and of these each device uses one at a time, the
lowest rank that works; the others are always read.
"""

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from importlib import import_module
from pkgutil import iter_modules
from typing import Protocol

from flopwatch.metrics import BY_NAME, METRICS, SUBSAMPLE_PERIOD_SECONDS, Reason
from flopwatch_agent.collectors.driver import Found

Value = float | Reason
"""A figure, or why there is none."""

MINIMUM_READINGS = 5
"""Fewer readings than half of the ten in an interval don't speak for it."""

WINDOW_METRICS = tuple(metric.name for metric in METRICS if metric.gpm_id is not None)
"""What an activity collector tells: means over a window of time."""

FOLDED_METRICS = {"engine_low_share": "engine_active", "sm_min": "sm_active", "sm_max": "sm_active"}
"""What the seconds inside an interval tell, and of which metric."""


@dataclass(frozen=True)
class Happening:
    """Something rare that happened to a device, as `flopwatch.wire.Event` tells it."""

    second: int
    kind: str
    value: int
    detail: str = ""


@dataclass
class Folded:
    """What a reader knows of one interval.

    `trouble` says why it could tell nothing of the device's activity, None where it could.
    `period_seconds` is how often its source has new values.
    """

    values: dict[str, Value] = field(default_factory=dict)
    trouble: str | None = None
    period_seconds: float = float(SUBSAMPLE_PERIOD_SECONDS)
    happenings: list[Happening] = field(default_factory=list)


class Reader(Protocol):
    """Reads one device from one collector. All calls come from the device's own lane."""

    def read(self, second: int) -> bool:
        """Take a reading; True if the device itself answered at all."""

    def fold(self, end: int) -> Folded:
        """What the readings in (end − 10 s, end] say, and begin the next interval."""

    def close(self) -> None:
        """Give back what the driver lent."""


class Source(Protocol):
    """A collector at work on this node."""

    def open(self, found: Found) -> Reader:
        """A reader of one device."""

    def tick(self, second: int) -> Future[None] | None:
        """Begin what is due, without waiting; the result may be waited for a moment.

        Raises what went wrong unforeseen with what was begun before.
        """

    def close(self) -> None:
        """End what was begun. Called once, at the end of the agent."""


class DriverSource:
    """A source that needs nothing but the driver: a reader for each device, and that is all."""

    def __init__(self, reader: Callable[[Found], Reader]) -> None:
        self.open = reader

    def tick(self, second: int) -> Future[None] | None:
        """Nothing is done for the whole node."""
        return None

    def close(self) -> None:
        """Nothing was begun."""


@dataclass(frozen=True)
class Setting:
    """What an admin may say about a collector; the agent's option of that name."""

    name: str
    default: str
    meaning: str


Settings = Mapping[str, str]
"""Values of all collectors' settings, by name."""

Opener = Callable[[Settings], Source | None]
"""Puts a collector to work, or not: None where its settings switch it off. Raises ValueError for a
setting that can't be used."""


@dataclass(frozen=True)
class Collector:
    """What registers itself.

    `cost_milliseconds` is the CPU time that a reading of one device may take; the agent says when
    it takes more. Without a `rank` it is always read, else it tells activity.
    """

    name: str
    cost_milliseconds: float
    opener: Opener
    rank: int | None = None
    settings: tuple[Setting, ...] = ()


_REGISTRY: dict[str, Collector] = {}


def collector(
    name: str, cost_milliseconds: float, rank: int | None = None, settings: tuple[Setting, ...] = ()
) -> Callable[[Opener], Opener]:
    """Register what opens a collector."""

    def register(opener: Opener) -> Opener:
        _REGISTRY[name] = Collector(name, cost_milliseconds, opener, rank, settings)
        return opener

    return register


def registered() -> list[Collector]:
    """Every collector that lies in this folder: those always read, then activity by rank."""
    for module in iter_modules(__path__):
        import_module(f"{__name__}.{module.name}")
    return sorted(_REGISTRY.values(), key=lambda each: (each.rank or 0, each.name))


@dataclass(frozen=True)
class Active:
    """A collector at work."""

    collector: Collector
    source: Source


def start(settings: Settings | None = None) -> list[Active]:
    """Put all collectors to work that the settings don't switch off; their defaults where none are
    given. Raises ValueError for a setting that can't be used."""
    known = {each.name: each.default for entry in registered() for each in entry.settings}
    known |= settings or {}
    opened = [(entry, entry.opener(known)) for entry in registered()]
    return [Active(entry, source) for entry, source in opened if source is not None]


# Scaling (percent to fraction) may push a full 1.0 over its bound by a rounding error.
_ROUNDING = 1e-6


def plausible(metric: str, value: float) -> Value:
    """The value, or "implausible" where it lies outside the metric's bounds."""
    bounds = BY_NAME[metric]
    if not bounds.minimum <= value <= bounds.maximum * (1 + _ROUNDING):
        return "implausible"
    return min(value, bounds.maximum)
