"""Series of a run: points of its GPUs from samples, minutes or hours, and what is known to be lost.

Sums stay sums, extremes stay extremes, means count every minute alike.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache, lru_cache
from typing import Any

from sqlalchemy import (
    CTE,
    REAL,
    ColumnElement,
    FromClause,
    Integer,
    Select,
    and_,
    bindparam,
    case,
    cast,
    func,
    literal,
    null,
    or_,
    select,
    union_all,
)
from sqlalchemy.dialects.postgresql import distinct_on
from sqlalchemy.orm import Session

from flopwatch_server.database import partitions
from flopwatch_server.database.base import UtcDateTime
from flopwatch_server.database.columns import Array, Columns
from flopwatch_server.telemetry.models import STATES, Gap, device_hours, device_minutes, samples
from flopwatch_server.telemetry.repository.holdings import (
    HOUR,
    MINUTE,
    SAMPLE,
    epoch_seconds,
    held_by_run,
    hour_counts,
    instant,
    interval,
    minute_counts,
    of_run,
    sample_counts,
)

HOURS_AFTER = timedelta(minutes=15)
"""An hour that has been over for so long is there; a younger one is read from its minutes."""


@dataclass(frozen=True, slots=True)
class Window:
    """What is asked for: a run, as it is known `now`, over (start, end]."""

    run_id: int
    start: datetime
    end: datetime
    now: datetime

    @property
    def parameters(self) -> dict[str, Any]:
        """Those of the statements here."""
        return {**of_run(self.run_id, self.now), "start": self.start, "end": self.end}


@dataclass(frozen=True, slots=True)
class Points:
    """Points of one allocation, in no order.

    `times` are in seconds since 1970, each the end of a step; `states` the commonest state of each
    step, a position in `STATES`; `values` has a row for each metric, NaN where unknown.
    """

    times: Array
    states: Array
    values: Array


_SUMMED = ("energy_joules",)
_LOWEST = ("sm_min",)
_HIGHEST = ("sm_max",)
_KEPT_STATEMENTS = 100
_now, _start, _end = (bindparam(name, type_=UtcDateTime) for name in ("now", "start", "end"))
_OF_SAMPLES_ONLY = ("subsample_count", "source_period")


def is_dropped(
    session: Session, run_id: int, unit: timedelta, start: datetime, now: datetime
) -> bool:
    """Whether samples or minutes of a run from `start` on are dropped, but a coarser tier is there.

    `unit` is the length of one, `SAMPLE` or `MINUTE`.
    """
    tier = partitions.SAMPLES if unit == SAMPLE else partitions.MINUTES
    oldest = partitions.oldest(session, tier) or now
    if oldest <= start:
        return False
    holding = held_by_run()
    coarser = [(device_hours.c.hour, hour_counts)]
    if unit == SAMPLE:
        coarser.append((device_minutes.c.minute, minute_counts))
    earlier = (
        select(time)
        .join(holding, counts(holding))
        .where(time >= instant(start), time < instant(oldest))
        .exists()
        for time, counts in coarser
    )
    return bool(session.scalar(select(or_(*earlier)), of_run(run_id, now)))


def sample_points(session: Session, window: Window, metrics: Sequence[str]) -> Mapping[int, Points]:
    """Samples by allocation id; their states are unknown."""
    return _points(session, _samples(tuple(metrics)), window)


def minute_points(
    session: Session, window: Window, metrics: Sequence[str], step_seconds: int
) -> Mapping[int, Points]:
    """Points made of minutes, by allocation id."""
    return _points(session, _of_minutes(tuple(metrics), step_seconds), window)


def hour_points(
    session: Session, window: Window, metrics: Sequence[str], step_seconds: int
) -> Mapping[int, Points]:
    """Points made of hours, by allocation id. The window is one of whole hours.

    What is no whole hour of an allocation, and what is too young for one, comes from minutes, as
    long as those are kept.
    """
    return _points(session, _of_hours(tuple(metrics), step_seconds), window)


def gaps_of(session: Session, window: Window) -> Sequence[Gap]:
    """Recorded losses of any GPU of the run that overlap the window."""
    return session.scalars(_gaps(), window.parameters).all()


def _points(session: Session, rows: Columns, window: Window) -> dict[int, Points]:
    """What rows of (allocation id, time, state, value of each metric) tell."""
    found = rows.read(session, window.parameters)
    return {key: Points(times, states, values) for key, ((times, states), values) in found.items()}


# Each statement is built once for the metrics that are asked for together.


@lru_cache(_KEPT_STATEMENTS)
def _samples(metrics: tuple[str, ...]) -> Columns:
    holding, ts = held_by_run(), samples.c.ts
    time = cast(epoch_seconds(ts), Integer)
    return Columns(
        select(holding.c.id, time, literal(0), *(samples.c[name] for name in metrics))
        .join(samples, sample_counts(holding))
        .where(ts > _start, ts <= _end)
        # Two epochs can hold the same ts after the agent's clock was set back: the newer one stays.
        .ext(distinct_on(holding.c.id, ts))
        .order_by(holding.c.id, ts, samples.c.epoch_id.desc())
    )


@lru_cache(_KEPT_STATEMENTS)
def _of_minutes(metrics: tuple[str, ...], step_seconds: int) -> Columns:
    holding = held_by_run()
    minutes = _minutes(holding)
    if step_seconds == MINUTE.total_seconds():
        time = cast(epoch_seconds(device_minutes.c.minute + interval(MINUTE)), Integer)
        values = (_column(device_minutes, name) for name in metrics)
        return Columns(
            minutes.with_only_columns(holding.c.id, time, device_minutes.c.state, *values)
        )
    parts = _minute_parts(minutes, holding, metrics)
    return Columns(_by_step(parts.subquery(), metrics, step_seconds))


@lru_cache(_KEPT_STATEMENTS)
def _of_hours(metrics: tuple[str, ...], step_seconds: int) -> Columns:
    holding, hour = held_by_run(), device_hours.c
    made_until = _hour_of(_now - interval(HOURS_AFTER))
    hours = (
        select(
            holding.c.id,
            (hour.hour + interval(HOUR)).label("time"),
            *(hour[f"{state}_minutes"].label(state) for state in STATES),
            *(_column(device_hours, name) for name in metrics),
        )
        .join(device_hours, hour_counts(holding))
        .where(hour.hour >= _start, hour.hour < func.least(made_until, _end))
    )
    first_whole = _hour_of(holding.c.alone_from + interval(HOUR - timedelta(microseconds=1)))
    after_whole = func.least(_hour_of(holding.c.alone_until), made_until, type_=UtcDateTime)
    minute = device_minutes.c.minute
    edges = _minutes(holding).where(or_(minute < first_whole, minute >= after_whole))
    parts = union_all(hours, _minute_parts(edges, holding, metrics))
    return Columns(_by_step(parts.subquery(), metrics, step_seconds))


@cache
def _gaps() -> Select[Gap]:
    holding = held_by_run()
    return (
        select(Gap)
        .join(holding, Gap.device_id == holding.c.device_id)
        .where(Gap.valid_from < _end, Gap.valid_to > _start)
        .where(Gap.valid_from < holding.c.until, Gap.valid_to > holding.c.valid_from)
        .order_by(Gap.valid_from)
    )


def _minutes(holding: CTE) -> Select[Any]:
    """The minutes of the window that count for an allocation."""
    within = device_minutes.c.minute.between(_start, _end - interval(MINUTE))
    return select(holding.c.id).join(device_minutes, minute_counts(holding)).where(within)


def _minute_parts(minutes: Select[Any], holding: CTE, metrics: Sequence[str]) -> Select[Any]:
    """Minutes in the form in which hours can stand beside them: minutes by state, and values."""
    return minutes.with_only_columns(
        holding.c.id,
        (device_minutes.c.minute + interval(MINUTE)).label("time"),
        *(
            cast(device_minutes.c.state == position, Integer).label(state)
            for position, state in enumerate(STATES)
        ),
        *(_column(device_minutes, name) for name in metrics),
    )


def _by_step(parts: FromClause, metrics: Sequence[str], step_seconds: int) -> Select[Any]:
    """Points of these parts, grouped by allocation and the step in which a part ends."""
    end = cast(func.ceil(epoch_seconds(parts.c.time) / step_seconds) * step_seconds, Integer)
    minutes = sum((parts.c[state] for state in STATES), literal(0))
    counts = [func.sum(parts.c[state]) for state in STATES]
    # Of states that are equally common the first.
    state = case(*(
        (and_(*(count >= other for other in counts)), position)
        for position, count in enumerate(counts)
    ))  # fmt: skip
    values = (_over_step(name, parts.c[name], minutes).label(name) for name in metrics)
    return select(parts.c.id, end, state, *values).group_by(parts.c.id, end)


def _over_step(
    metric: str, value: ColumnElement[Any], minutes: ColumnElement[Any]
) -> ColumnElement[Any]:
    """How parts of one metric, of so many minutes each, become one point."""
    if metric in _SUMMED:
        return func.sum(value)
    if metric in _LOWEST:
        return func.min(value)
    if metric in _HIGHEST:
        return func.max(value)
    known = func.sum(minutes).filter(value.is_not(None))
    return cast(func.sum(value * minutes) / known, REAL)


def _column(tier: FromClause, metric: str) -> ColumnElement[Any]:
    """The column of a metric, unknown where a tier has none."""
    return cast(null(), REAL).label(metric) if metric in _OF_SAMPLES_ONLY else tier.c[metric]


def _hour_of(time: ColumnElement[Any]) -> ColumnElement[datetime]:
    return func.date_trunc("hour", time, literal("UTC"), type_=UtcDateTime)
