"""Series of a run: one time grid for all its GPUs, with what is missing left out, not bridged."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from math import ceil, floor

import numpy as np
from numpy.typing import NDArray

from flopwatch_server.efficiency.schemas import DeviceSeries, SeriesGap
from flopwatch_server.telemetry.models import STATES, Gap
from flopwatch_server.telemetry.repository import HOUR, MINUTE, SAMPLE, AnyRow, Points

MOST_POINTS = 1440
_SUITS = ((SAMPLE, timedelta(hours=2)), (MINUTE, timedelta(days=14)), (HOUR, timedelta.max))
"""What the points are made of, and the longest window that it suits."""

GAP_STEPS = 2
"""More steps than this without a point of any GPU are a gap: fewer may still be on their way."""

_WORDS = (*STATES, None)
_UNKNOWN = STATES.index("unknown")
_OUTSIDE = len(STATES)


@dataclass(frozen=True, slots=True)
class Grid:
    """The points of a series: each multiple of `step` in (start, end], in seconds since 1970."""

    start: int
    end: int
    step: int

    @classmethod
    def over(cls, start: datetime, end: datetime, at_least: timedelta = SAMPLE) -> "Grid":
        """The grid of what suits the window: samples, minutes or hours, `MOST_POINTS` at most.

        `at_least` is the shortest of them that the points can be made of.
        """
        window = end - start
        suits = next(unit for unit, longest in _SUITS if window <= longest)
        unit = int(max(suits, at_least).total_seconds())
        step = unit * max(1, ceil(window.total_seconds() / unit / MOST_POINTS))
        return cls(int(start.timestamp()) // step * step, int(end.timestamp()) // step * step, step)

    @property
    def times(self) -> range:
        return range(self.start + self.step, self.end + 1, self.step)

    def after(self, time: int) -> range:
        """Those of `times` that are later than `time`."""
        first = max(self.start, time // self.step * self.step)
        return range(first + self.step, self.end + 1, self.step)

    @property
    def unit(self) -> timedelta:
        """The length of what the points are made of: a sample, a minute or an hour."""
        step = timedelta(seconds=self.step)
        return next(unit for unit in (HOUR, MINUTE, SAMPLE) if step >= unit)


def place_of(allocation: AnyRow) -> str:
    """ "node:ordinal"; "node:#n" where the scheduler tells only that it is one of the node's."""
    ordinal = allocation.gres_ordinal
    number = f"#{allocation.place}" if ordinal is None else str(ordinal)
    return f"{allocation.node}:{number}"


def device_series(
    place: str,
    allocations: Sequence[AnyRow],
    points: Mapping[int, Points],
    states: Mapping[int, Points],
    metrics: Sequence[str],
    times: range,
) -> DeviceSeries:
    """The series of one place: at each time of the first allocation that holds it then.

    `points` tell the values and `states` the states, each by allocation id.
    """
    values = np.full((len(metrics), len(times)), np.nan)
    words = np.full(len(times), _OUTSIDE)
    for held in reversed(allocations):
        inside = _inside(_span(held, times.step), times)
        values[:, inside] = np.nan
        words[inside] = _UNKNOWN
        if (mine := points.get(held.id)) is not None:
            values[:, (mine.times - times.start) // times.step] = mine.values
        if (told := states.get(held.id)) is not None and not held.shared:
            words[(told.times - times.start) // times.step] = told.states
    return DeviceSeries.model_construct(
        place=place,
        values={name: _known(row) for name, row in zip(metrics, values, strict=True)},
        states=[_WORDS[word] for word in words.tolist()],
    )


def states_of_samples(minutes: Points, times: range) -> Points:
    """The states of minutes at those of `times` that lie in them, whether a sample is there or not.

    `times` are ends of samples.
    """
    ends = np.arange(times.step - 60, 1, times.step) + minutes.times[:, np.newaxis]
    states = np.broadcast_to(minutes.states[:, np.newaxis], ends.shape)
    asked = (ends >= times.start) & (ends < times.stop)
    return Points(ends[asked], states[asked], np.empty((0, np.count_nonzero(asked))))


def find_gaps(
    grid: Grid,
    until: datetime,
    present: Collection[int],
    allocations: Iterable[AnyRow],
    recorded: Sequence[Gap],
) -> list[SeriesGap]:
    """Stretches in which the run held GPUs and none of them has a point, with the recorded cause.

    Points after `until` are still on their way.
    """
    spans = [_span(held, grid.step) for held in allocations]
    missing = [
        time
        for time in grid.times
        if time <= until.timestamp() and time not in present and any(time in span for span in spans)
    ]
    stretches = _stretches(missing, grid.step)
    return [
        SeriesGap(start=start, end=end, cause=_cause(start, end, recorded))
        for start, end in stretches
        if end - start > GAP_STEPS * grid.step
    ]


def _span(allocation: AnyRow, step: int) -> range:
    """Times for which (time − step, time] holds a sample or minute that lies wholly inside."""
    unit = min(step, 60)
    begin: datetime = allocation.valid_from
    end: datetime = allocation.until
    first = ceil(begin.timestamp() / unit) * unit
    last = floor(end.timestamp() / unit) * unit
    return range(first + unit, last - unit + step + 1 if first + unit <= last else 0)


def _inside(span: range, times: range) -> slice:
    """Where in `times` those of `span` are."""
    first, end = (ceil((bound - times.start) / times.step) for bound in (span.start, span.stop))
    return slice(max(0, first), max(0, end))


def _known(values: NDArray[np.float64]) -> list[float | None]:
    """The same values with None for NaN."""
    known: list[float | None] = values.tolist()
    for place in np.flatnonzero(np.isnan(values)).tolist():
        known[place] = None
    return known


def _stretches(times: Sequence[int], step: int) -> list[tuple[int, int]]:
    """Unbroken stretches of points as (start, end]."""
    found: list[tuple[int, int]] = []
    for time in times:
        if found and found[-1][1] == time - step:
            found[-1] = (found[-1][0], time)
        else:
            found.append((time - step, time))
    return found


def _cause(start: int, end: int, recorded: Sequence[Gap]) -> str | None:
    """The cause of the recorded gap that overlaps (start, end] most."""

    def overlap(gap: Gap) -> float:
        return min(end, gap.valid_to.timestamp()) - max(start, gap.valid_from.timestamp())

    best = max(recorded, key=overlap, default=None)
    return best.cause if best is not None and overlap(best) > 0 else None


def instant_of(seconds: int) -> datetime:
    """A point's time as an aware datetime."""
    return datetime.fromtimestamp(seconds, UTC)
