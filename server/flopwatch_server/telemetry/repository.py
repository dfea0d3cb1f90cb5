"""Where samples, minutes and reports meet runs: every read of telemetry starts here.

A sample carries no job id. It covers (ts − 10 s, ts] and counts for an allocation that holds the
device for all of that; a device-minute covers [minute, minute + 60 s) and counts likewise. So what
straddles a hand-over belongs to nobody.
"""

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import (
    CTE,
    ColumnElement,
    Float,
    Integer,
    Interval,
    Row,
    ScalarSelect,
    Select,
    Tuple,
    and_,
    case,
    cast,
    func,
    literal,
    null,
    select,
    tuple_,
)
from sqlalchemy.dialects.postgresql import distinct_on
from sqlalchemy.orm import Session, aliased

from flopwatch.metrics import SAMPLE_PERIOD_SECONDS
from flopwatch_server.database.base import UtcDateTime
from flopwatch_server.fleet.models import AgentEpoch, Device, Node, Placement
from flopwatch_server.jobs.models import Allocation, Run
from flopwatch_server.scheduler.records import WORKING_STATES
from flopwatch_server.telemetry.models import Gap, device_minutes, samples

AnyRow = Row[*tuple[Any, ...]]
SAMPLE = timedelta(seconds=SAMPLE_PERIOD_SECONDS)
MINUTE = timedelta(seconds=60)
_other = aliased(Allocation)
_SUMMED = ("energy_joules",)
_LOWEST = ("sm_min",)
_HIGHEST = ("sm_max",)
_NOT_IN_MINUTES = ("subsample_count", "source_period")


def instant(value: datetime) -> ColumnElement[datetime]:
    """A time as a typed SQL parameter."""
    return literal(value, UtcDateTime)


def interval(length: timedelta) -> ColumnElement[timedelta]:
    """A length of time as a typed SQL parameter: beside an instant it would be taken for one."""
    return literal(length, Interval)


def epoch_seconds(value: ColumnElement[Any]) -> ColumnElement[float]:
    """A time in seconds since 1970, or an interval in seconds."""
    return cast(func.extract("epoch", value), Float)


def held(now: datetime, *conditions: ColumnElement[bool]) -> CTE:
    """Allocations of the runs that meet `conditions`, with how long each has held its GPU by `now`.

    `until` is the end, or `now` while the GPU is still held; `seconds` lies between. Where others
    are said to hold the same GPU at the same time, minutes and samples belong to nobody: those of
    this one lie within [`alone_from`, `alone_until`), which is empty where it is disputed.
    `working` says that its processes may run.
    """
    until = func.least(
        func.coalesce(Allocation.valid_to, instant(now)), instant(now), type_=UtcDateTime
    )
    length = func.greatest(epoch_seconds(until - Allocation.valid_from), 0.0, type_=Float)
    return (
        select(
            Allocation.id, Allocation.run_id, Allocation.node_id, Allocation.place,
            Allocation.gres_ordinal, Allocation.device_id, Allocation.shared,
            Allocation.valid_from, Allocation.valid_to, Allocation.source, Allocation.confidence,
            until.label("until"), length.label("seconds"),
            func.greatest(Allocation.valid_from, _end_before(now), type_=UtcDateTime)
            .label("alone_from"),
            case(
                (Allocation.confidence == "disputed", Allocation.valid_from),
                else_=func.least(until, _start_after(), type_=UtcDateTime),
            ).label("alone_until"),
            Run.state.in_(WORKING_STATES).label("working"),
        )
        .join(Run, Run.id == Allocation.run_id)
        .where(*conditions)
        .cte()
    )  # fmt: skip


def _end_before(now: datetime) -> ScalarSelect[datetime]:
    """When the holder before an allocation gives its GPU back, `now` if it has not done so."""
    end = func.least(func.coalesce(_other.valid_to, instant(now)), instant(now), type_=UtcDateTime)
    order = _other.valid_from.desc(), _other.id.desc()
    return _neighbour(end, _age(_other) < _age(Allocation)).order_by(*order).scalar_subquery()


def _start_after() -> ScalarSelect[datetime]:
    """When the next holder of an allocation's GPU came."""
    start = _other.valid_from.expression
    order = _other.valid_from, _other.id
    return _neighbour(start, _age(_other) > _age(Allocation)).order_by(*order).scalar_subquery()


def _neighbour(what: ColumnElement[Any], which: ColumnElement[bool]) -> Select[Any]:
    same = _other.device_id == Allocation.device_id
    return select(what).where(same, which).correlate(Allocation).limit(1)


def _age(table: type[Allocation]) -> Tuple:
    return tuple_(table.valid_from, table.id)


def of_run(run_id: int) -> ColumnElement[bool]:
    """The condition for `held` that asks for one run."""
    return Run.id == run_id


def minute_counts(holding: CTE) -> ColumnElement[bool]:
    """Whether a device-minute lies wholly inside an allocation, and inside no other."""
    minute = device_minutes.c
    return and_(
        minute.device_id == holding.c.device_id,
        minute.minute >= holding.c.alone_from,
        minute.minute <= holding.c.alone_until - interval(MINUTE),
    )


def sample_counts(holding: CTE) -> ColumnElement[bool]:
    """Whether a sample lies wholly inside an allocation, and inside no other."""
    return and_(
        samples.c.device_id == holding.c.device_id,
        samples.c.ts >= holding.c.alone_from + interval(SAMPLE),
        samples.c.ts <= holding.c.alone_until,
    )


def allocations_of(session: Session, run_id: int, now: datetime) -> Sequence[AnyRow]:
    """The allocations of a run with node and device, in the order of node and place."""
    holding = held(now, of_run(run_id))
    return session.execute(
        select(
            holding, Node.name.label("node"),
            Device.uuid, Device.model, Device.memory_mib, Device.power_limit_watts,
        )
        .join(Node, Node.id == holding.c.node_id)
        .outerjoin(Device, Device.id == holding.c.device_id)
        .order_by(Node.name, holding.c.place, holding.c.valid_from)
    ).all()  # fmt: skip


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


def newest_of_run(
    session: Session, run_id: int, not_before: datetime, now: datetime
) -> Sequence[AnyRow]:
    """The newest sample of each allocation of a run after `not_before`, with all columns."""
    holding = held(now, of_run(run_id))
    return session.execute(
        select(holding.c.id, samples)
        .join(samples, sample_counts(holding))
        .where(samples.c.ts > instant(not_before))
        .ext(distinct_on(holding.c.id))
        .order_by(holding.c.id, samples.c.ts.desc(), samples.c.epoch_id.desc())
    ).all()


def newest_power(
    session: Session, cluster_id: int, not_before: datetime, now: datetime
) -> Sequence[Row[int, datetime, float | None, float | None]]:
    """The newest sample of every device that sits in the cluster.

    Gives (device id, ts, power_watts, limit of the board in watts).
    """
    return session.execute(
        select(
            samples.c.device_id, samples.c.ts, samples.c.power_watts, Device.power_limit_watts
        )
        .join(Device, Device.id == samples.c.device_id)
        .join(Placement, Placement.device_id == Device.id)
        .join(Node, Node.id == Placement.node_id)
        # The epochs of the node let the primary key find the few newest rows.
        .join(
            AgentEpoch,
            (AgentEpoch.node_id == Node.id) & (AgentEpoch.id == samples.c.epoch_id),
        )
        .where(
            Node.cluster_id == cluster_id, Placement.valid_to.is_(None),
            samples.c.ts > instant(not_before), samples.c.ts <= instant(now),
        )
        .ext(distinct_on(samples.c.device_id))
        .order_by(samples.c.device_id, samples.c.ts.desc())
    ).all()  # fmt: skip
