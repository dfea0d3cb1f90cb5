"""Series of a run: points of its GPUs, what is there, and what is known to be lost."""

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Float, Integer, cast, func, null, select
from sqlalchemy.orm import Session

from flopwatch_server.telemetry.models import Gap, device_minutes, samples
from flopwatch_server.telemetry.repository.holdings import (
    MINUTE,
    AnyRow,
    epoch_seconds,
    held,
    instant,
    interval,
    minute_counts,
    of_run,
    sample_counts,
)

_SUMMED = ("energy_joules",)
_LOWEST = ("sm_min",)
_HIGHEST = ("sm_max",)
_NOT_IN_MINUTES = ("subsample_count", "source_period")


def sample_points(
    session: Session, run_id: int, metrics: Sequence[str], start: datetime, end: datetime,
    now: datetime,
) -> Sequence[AnyRow]:  # fmt: skip
    """Samples of a run in (start, end]: (allocation id, seconds since 1970, one value a metric)."""
    holding = held(now, of_run(run_id))
    return session.execute(
        select(
            holding.c.id,
            cast(epoch_seconds(samples.c.ts), Integer),
            *(samples.c[name] for name in metrics),
        )
        .join(samples, sample_counts(holding))
        .where(samples.c.ts > instant(start), samples.c.ts <= instant(end))
        # Two epochs can hold the same ts after the agent's clock was set back: the newer one stays.
        .order_by(samples.c.ts, samples.c.epoch_id)
    ).all()


def minute_points(
    session: Session, run_id: int, metrics: Sequence[str], step_seconds: int, start: datetime,
    end: datetime, now: datetime,
) -> Sequence[AnyRow]:  # fmt: skip
    """Minutes of a run in (start, end], grouped into steps.

    Gives (allocation id, end of the step in seconds since 1970, commonest state, one value a
    metric).
    """
    holding = held(now, of_run(run_id))
    time = _step_end(device_minutes.c.minute + interval(MINUTE), step_seconds)
    return session.execute(
        select(
            holding.c.id,
            time,
            func.mode().within_group(device_minutes.c.state),
            *(_over_step(name).label(name) for name in metrics),
        )
        .join(device_minutes, minute_counts(holding))
        .where(
            device_minutes.c.minute >= instant(start),
            device_minutes.c.minute <= instant(end - MINUTE),
        )
        .group_by(holding.c.id, time)
    ).all()


def _step_end(time: ColumnElement[Any], step_seconds: int) -> ColumnElement[int]:
    """The first multiple of the step that is not before `time`, in seconds since 1970."""
    return cast(func.ceil(epoch_seconds(time) / step_seconds) * step_seconds, Integer)


def _over_step(metric: str) -> ColumnElement[Any]:
    """How minutes of one metric become one point: sums stay sums, extremes stay extremes."""
    if metric in _NOT_IN_MINUTES:
        return cast(null(), Float)
    column = device_minutes.c[metric]
    if metric in _SUMMED:
        return func.sum(column)
    if metric in _LOWEST:
        return func.min(column)
    return func.max(column) if metric in _HIGHEST else func.avg(column)


def present_samples(
    session: Session, run_id: int, start: datetime, end: datetime, now: datetime
) -> Collection[int]:
    """Times in (start, end] at which at least one GPU of the run has a sample."""
    holding = held(now, of_run(run_id))
    return set(
        session.scalars(
            select(cast(epoch_seconds(samples.c.ts), Integer))
            .select_from(holding)
            .join(samples, sample_counts(holding))
            .where(samples.c.ts > instant(start), samples.c.ts <= instant(end))
            .distinct()
        )
    )


def present_minutes(
    session: Session, run_id: int, step_seconds: int, start: datetime, end: datetime, now: datetime
) -> Collection[int]:
    """Ends of the steps in (start, end] in which at least one GPU of the run has a sample."""
    holding = held(now, of_run(run_id))
    minute = device_minutes.c
    return set(
        session.scalars(
            select(_step_end(minute.minute + interval(MINUTE), step_seconds))
            .select_from(holding)
            .join(device_minutes, minute_counts(holding))
            .where(
                minute.minute >= instant(start), minute.minute <= instant(end - MINUTE),
                minute.samples_received > 0,
            )
            .distinct()
        )
    )  # fmt: skip


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
