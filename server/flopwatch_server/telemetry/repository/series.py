"""Series of a run: points of its GPUs from samples, minutes or hours, and what is known to be lost.

Points come in columns, one row an allocation: (its id, times in seconds since 1970, each the end
of a step, the commonest state of each step, the values of each metric). Sums stay sums, extremes
stay extremes, means count every minute alike. A database that gathers the columns hands out a
fraction of the objects that rows of points would be.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import (
    CTE,
    REAL,
    ColumnElement,
    Float,
    FromClause,
    Integer,
    Select,
    and_,
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
from flopwatch_server.telemetry.models import STATES, Gap, device_hours, device_minutes, samples
from flopwatch_server.telemetry.repository.holdings import (
    HOUR,
    MINUTE,
    SAMPLE,
    AnyRow,
    epoch_seconds,
    held,
    hour_counts,
    instant,
    interval,
    minute_counts,
    of_run,
    sample_counts,
)

HOURS_AFTER = timedelta(minutes=15)
"""An hour that has been over for so long is there; a younger one is read from its minutes."""

_SUMMED = ("energy_joules",)
_LOWEST = ("sm_min",)
_HIGHEST = ("sm_max",)
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
    holding = held(now, of_run(run_id))
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
    return bool(session.scalar(select(or_(*earlier))))


def sample_points(
    session: Session, run_id: int, metrics: Sequence[str], start: datetime, end: datetime,
    now: datetime,
) -> Sequence[AnyRow]:  # fmt: skip
    """Samples of a run in (start, end], without states."""
    holding = held(now, of_run(run_id))
    return _columns(
        session,
        select(
            holding.c.id,
            cast(epoch_seconds(samples.c.ts), Integer),
            *(samples.c[name] for name in metrics),
        )
        .join(samples, sample_counts(holding))
        .where(samples.c.ts > instant(start), samples.c.ts <= instant(end))
        # Two epochs can hold the same ts after the agent's clock was set back: the newer one stays.
        .ext(distinct_on(holding.c.id, samples.c.ts))
        .order_by(holding.c.id, samples.c.ts, samples.c.epoch_id.desc()),
    )


def minute_points(
    session: Session, run_id: int, metrics: Sequence[str], step_seconds: int, start: datetime,
    end: datetime, now: datetime,
) -> Sequence[AnyRow]:  # fmt: skip
    """Points of a run in (start, end] from its minutes."""
    holding = held(now, of_run(run_id))
    minutes = _minutes(holding, start, end)
    if step_seconds == MINUTE.total_seconds():
        time = cast(epoch_seconds(device_minutes.c.minute + interval(MINUTE)), Integer)
        values = (_column(device_minutes, name) for name in metrics)
        points = minutes.with_only_columns(holding.c.id, time, device_minutes.c.state, *values)
        return _columns(session, points)
    parts = _minute_parts(minutes, holding, metrics)
    return _columns(session, _by_step(parts.subquery(), metrics, step_seconds))


def hour_points(
    session: Session, run_id: int, metrics: Sequence[str], step_seconds: int, start: datetime,
    end: datetime, now: datetime,
) -> Sequence[AnyRow]:  # fmt: skip
    """Points of a run in (start, end], which are whole hours, from its hours.

    What is no whole hour of an allocation, and what is too young for one, comes from minutes, as
    long as those are kept.
    """
    holding = held(now, of_run(run_id))
    made_until = instant((now - HOURS_AFTER).replace(minute=0, second=0, microsecond=0))
    hour = device_hours.c
    hours = (
        select(
            holding.c.id,
            (hour.hour + interval(HOUR)).label("time"),
            *(hour[f"{state}_minutes"].label(state) for state in STATES),
            *(_column(device_hours, name) for name in metrics),
        )
        .join(device_hours, hour_counts(holding))
        .where(hour.hour >= instant(start), hour.hour < func.least(made_until, instant(end)))
    )
    first_whole = _hour_of(holding.c.alone_from + interval(HOUR - timedelta(microseconds=1)))
    after_whole = func.least(_hour_of(holding.c.alone_until), made_until, type_=UtcDateTime)
    minute = device_minutes.c.minute
    edges = _minutes(holding, start, end).where(or_(minute < first_whole, minute >= after_whole))
    parts = union_all(hours, _minute_parts(edges, holding, metrics))
    return _columns(session, _by_step(parts.subquery(), metrics, step_seconds))


def gaps_of(
    session: Session, run_id: int, start: datetime, end: datetime, now: datetime
) -> Sequence[Gap]:
    """Recorded losses of any GPU of the run that overlap (start, end]."""
    holding = held(now, of_run(run_id))
    return session.scalars(
        select(Gap)
        .join(holding, Gap.device_id == holding.c.device_id)
        .where(Gap.valid_from < instant(end), Gap.valid_to > instant(start))
        .where(Gap.valid_from < holding.c.until, Gap.valid_to > holding.c.valid_from)
        .order_by(Gap.valid_from)
    ).all()


def _columns(session: Session, points: Select[Any]) -> Sequence[AnyRow]:
    """Points whose first column is the allocation, each of the others as one array for each."""
    one = points.subquery()
    allocation, *columns = one.c
    gathered = select(allocation, *map(func.array_agg, columns)).group_by(allocation)
    return session.execute(gathered).all()


def _minutes(holding: CTE, start: datetime, end: datetime) -> Select[Any]:
    """The minutes in (start, end] that count for an allocation."""
    within = device_minutes.c.minute.between(instant(start), instant(end - MINUTE))
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
    return cast(func.sum(value * minutes) / known, Float)


def _column(tier: FromClause, metric: str) -> ColumnElement[Any]:
    """The column of a metric, unknown where a tier has none."""
    return cast(null(), REAL).label(metric) if metric in _OF_SAMPLES_ONLY else tier.c[metric]


def _hour_of(time: ColumnElement[Any]) -> ColumnElement[datetime]:
    return func.date_trunc("hour", time, literal("UTC"), type_=UtcDateTime)
