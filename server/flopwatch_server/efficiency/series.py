"""Series of a run: one time grid for all its GPUs, with what is missing left out, not bridged."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from math import ceil, floor

from flopwatch_server.efficiency.schemas import DeviceSeries, SeriesGap
from flopwatch_server.telemetry.models import STATES, Gap
from flopwatch_server.telemetry.repository import HOUR, MINUTE, SAMPLE, AnyRow

MOST_POINTS = 1440
_SUITS = ((SAMPLE, timedelta(hours=2)), (MINUTE, timedelta(days=14)), (HOUR, timedelta.max))
"""What the points are made of, and the longest window that it suits."""

GAP_STEPS = 2
"""More steps than this without a point of any GPU are a gap: fewer may still be on their way."""

Points = dict[tuple[int, int], Sequence[float | None]]
States = dict[tuple[int, int], int]
"""Values, one a metric, and positions in `STATES`, by (allocation id, time)."""


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
    """The series of one place from points and states by (allocation id, time)."""
    empty: Sequence[float | None] = [None] * len(metrics)
    rows: list[Sequence[float | None]] = []
    words: list[str | None] = []
    for time in times:
        holder = next((held for held in allocations if _inside(held, time, step)), None)
        if holder is None:
            rows.append(empty)
            words.append(None)
            continue
        rows.append(points.get((holder.id, time), empty))
        state = STATES[states.get((holder.id, time), 0)]
        words.append("unknown" if holder.shared else state)
    return DeviceSeries(
        place=place,
        values={name: [row[position] for row in rows] for position, name in enumerate(metrics)},
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
    held = list(allocations)
    missing = [
        time
        for time in grid.times
        if time <= until.timestamp()
        and time not in present
        and any(_inside(allocation, time, grid.step) for allocation in held)
    ]
    stretches = _stretches(missing, grid.step)
    return [
        SeriesGap(start=start, end=end, cause=_cause(start, end, recorded))
        for start, end in stretches
        if end - start > GAP_STEPS * grid.step
    ]


def _inside(allocation: AnyRow, time: int, step: int) -> bool:
    """Whether (time − step, time] holds a sample or minute that lies wholly inside."""
    unit = min(step, 60)
    begin: datetime = allocation.valid_from
    end: datetime = allocation.until
    first = ceil(begin.timestamp() / unit) * unit
    last = floor(end.timestamp() / unit) * unit
    return max(first, time - step) + unit <= min(last, time)


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
