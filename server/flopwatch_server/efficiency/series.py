"""Series of a run: one time grid for all its GPUs, with what is missing left out, not bridged."""

from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import repeat
from math import ceil, floor

from flopwatch_server.efficiency.schemas import DeviceSeries, SeriesGap
from flopwatch_server.telemetry.models import STATES, Gap
from flopwatch_server.telemetry.repository import HOUR, MINUTE, SAMPLE, AnyRow

MOST_POINTS = 1440
_SUITS = ((SAMPLE, timedelta(hours=2)), (MINUTE, timedelta(days=14)), (HOUR, timedelta.max))
"""What the points are made of, and the longest window that it suits."""

GAP_STEPS = 2
"""More steps than this without a point of any GPU are a gap: fewer may still be on their way."""

Points = Mapping[int, Mapping[int, Sequence[float | None]]]
States = Mapping[int, Mapping[int, int]]
"""Values, one a metric, and positions in `STATES`, by allocation id and time."""


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
    points: Points,
    states: States,
    metrics: Sequence[str],
    times: Sequence[int],
    step: int,
) -> DeviceSeries:
    """The series of one place: at each time of the first allocation that holds it then."""
    empty: Sequence[float | None] = [None] * len(metrics)
    rows = [empty] * len(times)
    words: list[str | None] = [None] * len(times)
    for held in reversed(allocations):
        span = _span(held, step)
        inside = slice(bisect_left(times, span.start), bisect_left(times, span.stop))
        mine, mine_now = points.get(held.id, {}), states.get(held.id, {})
        rows[inside] = [mine.get(time, empty) for time in times[inside]]
        words[inside] = [
            "unknown" if held.shared else STATES[mine_now.get(time, 0)] for time in times[inside]
        ]
    columns: Iterable[Sequence[float | None]] = zip(*rows, strict=True) if rows else repeat(())
    return DeviceSeries(
        place=place,
        values={name: list(column) for name, column in zip(metrics, columns, strict=False)},
        states=words,
    )


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


def whole_minutes(start: int, end: int) -> tuple[datetime, datetime]:
    """The shortest span of whole minutes that holds (start, end]."""
    return instant_of(start // 60 * 60), instant_of(-(-end // 60) * 60)
