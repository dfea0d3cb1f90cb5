"""A whole cluster: its GPUs, nodes and queue now, and how its GPU time was used."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import (
    CTE,
    ColumnElement,
    Float,
    Row,
    Select,
    and_,
    case,
    cast,
    func,
    or_,
    select,
)
from sqlalchemy.orm import Session

from flopwatch_server.access.principal import Principal, may_see
from flopwatch_server.database.base import UtcDateTime
from flopwatch_server.efficiency.repository.figures import KNOWN_STATES, in_state
from flopwatch_server.efficiency.repository.present import state_now
from flopwatch_server.fleet.models import Cluster, Node, Placement
from flopwatch_server.jobs.models import Allocation, Run
from flopwatch_server.scheduler.models import SchedulerSource
from flopwatch_server.scheduler.records import PENDING_STATES, RUNNING_STATES
from flopwatch_server.telemetry.models import device_minutes
from flopwatch_server.telemetry.repository import (
    AnyRow,
    epoch_seconds,
    held,
    instant,
    interval,
    minute_counts,
)

STEP = timedelta(minutes=10)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_minute = device_minutes.c


def cluster_by_name(session: Session, name: str) -> Cluster | None:
    return session.scalars(select(Cluster).where(Cluster.name == name)).first()


def nodes(session: Session, cluster_id: int) -> Sequence[Row[Node, int]]:
    """The nodes of a cluster, each with how many devices sit in it now."""
    placed = func.count(Placement.device_id)
    sits = and_(Placement.node_id == Node.id, Placement.valid_to.is_(None))
    return session.execute(
        select(Node, placed)
        .outerjoin(Placement, sits)
        .where(Node.cluster_id == cluster_id)
        .group_by(Node.id)
        .order_by(Node.name)
    ).all()


def gpus_held(session: Session, cluster_id: int, now: datetime) -> Sequence[AnyRow]:
    """Open allocations of a cluster with state now, tensor activity and the run's partition."""
    present = state_now(now, Run.cluster_id == cluster_id)
    return session.execute(
        select(present, Run.partition).join(Run, Run.id == present.c.run_id)
    ).all()


def live_runs(session: Session, cluster_id: int) -> Sequence[Row[int, str, bool]]:
    """GPU jobs that run or wait: (run id, partition, whether it runs)."""
    return session.execute(
        select(Run.id, Run.partition, Run.state.in_(RUNNING_STATES))
        .where(
            Run.cluster_id == cluster_id, Run.ended_at.is_(None), Run.vanished_at.is_(None),
            Run.gpu_count >= 1, Run.state.in_(RUNNING_STATES | PENDING_STATES),
        )
    ).all()  # fmt: skip


def needing_attention(principal: Principal, cluster_id: int, now: datetime) -> Select[int]:
    """Ids of visible runs that hold GPUs which are idle or low now."""
    present = state_now(now, Run.cluster_id == cluster_id)
    return (
        select(Run.id)
        .where(may_see(principal, Run.user_name, Run.account))
        .where(Run.id.in_(select(present.c.run_id).where(present.c.state.in_(("idle", "low")))))
    )


def newest_minute_end(session: Session, cluster_id: int) -> datetime | None:
    """The end of the newest minute in which a device of the cluster sent samples."""
    minute = session.scalar(
        select(_minute.minute)
        .where(_minute.device_id.in_(_devices(cluster_id)), _minute.samples_received > 0)
        .order_by(_minute.minute.desc())
        .limit(1)
    )
    return None if minute is None else minute + timedelta(minutes=1)


def sources(session: Session, cluster_id: int) -> Sequence[SchedulerSource]:
    """How the conversation with each scheduler of the cluster goes."""
    return session.scalars(
        select(SchedulerSource)
        .where(SchedulerSource.cluster_id == cluster_id)
        .order_by(SchedulerSource.kind)
    ).all()


def account_seconds(
    session: Session, cluster_id: int, start: datetime, end: datetime, now: datetime
) -> dict[str, float]:
    """GPU-seconds allocated in (start, end] by account."""
    holding = held(now, *_overlapping(cluster_id, start, end))
    rows = session.execute(
        select(Run.account, func.sum(_overlap(holding, instant(start), instant(end))))
        .join(holding, holding.c.run_id == Run.id)
        .group_by(Run.account)
    )
    return {account: seconds for account, seconds in rows}


def held_minutes(
    session: Session, cluster_id: int, start: datetime, end: datetime, now: datetime
) -> Sequence[AnyRow]:
    """Minutes of unshared allocations in (start, end] by account and 10 minutes.

    Gives (account, end of the step, minutes by state, sum and count of tensor activity).
    """
    holding = held(now, *_overlapping(cluster_id, start, end))
    time = _step_end()
    tensor = _minute.tensor_active
    return session.execute(
        select(
            Run.account,
            time.label("time"),
            *(func.count().filter(in_state(state)).label(state) for state in KNOWN_STATES),
            cast(func.sum(tensor).filter(_minute.samples_suspect == 0), Float).label("tensor"),
            func.count(tensor).filter(_minute.samples_suspect == 0).label("tensor_minutes"),
        )
        .join(holding, holding.c.run_id == Run.id)
        .join(device_minutes, minute_counts(holding))
        .where(~holding.c.shared, *_within(start, end))
        .group_by(Run.account, time)
    ).all()


def steps(
    session: Session, cluster_id: int, start: datetime, end: datetime, now: datetime
) -> Sequence[AnyRow]:
    """All devices of a cluster in each 10 minutes of (start, end], by their end.

    Gives (time, GPU-seconds allocated, GPU-seconds that reported and nobody held, power of all
    that reported in watts, whether any reported).
    """
    taken = _taken(cluster_id, start, end, now)
    time = _step_end()
    seen = (
        select(
            _minute.device_id,
            time.label("time"),
            func.avg(_minute.power_watts).label("power_watts"),
            (func.count().filter(_minute.samples_received > 0) * 60.0).label("seconds"),
        )
        .where(_minute.device_id.in_(_devices(cluster_id)), *_within(start, end))
        .group_by(_minute.device_id, time)
        .cte("seen")
    )
    free = func.greatest(seen.c.seconds - func.coalesce(taken.c.seconds, 0.0), 0.0)
    same = and_(taken.c.device_id == seen.c.device_id, taken.c.time == seen.c.time)
    either = func.coalesce(seen.c.time, taken.c.time)
    return session.execute(
        select(
            either.label("time"),
            func.coalesce(func.sum(taken.c.seconds), 0.0).label("allocated"),
            cast(func.coalesce(func.sum(free), 0), Float).label("free"),
            func.sum(seen.c.power_watts).label("power_watts"),
            (func.count(seen.c.device_id) > 0).label("seen"),
        )
        .select_from(seen.join(taken, same, full=True))
        .group_by(either)
    ).all()


def _taken(cluster_id: int, start: datetime, end: datetime, now: datetime) -> CTE:
    """Seconds for which each GPU was held in each 10 minutes: (device id, time, seconds).

    A GPU that several jobs share counts once; one of unknown ordinal is told apart by its holder.
    """
    holding = held(now, *_overlapping(cluster_id, start, end))
    begin = func.generate_series(
        instant(start), instant(end - STEP), interval(STEP), type_=UtcDateTime
    )
    spans = select(begin.label("begin")).cte("spans")
    after = spans.c.begin + interval(STEP)
    gpu = (holding.c.node_id, holding.c.gres_ordinal,
           case((holding.c.gres_ordinal.is_(None), holding.c.id)))  # fmt: skip
    overlap = _overlap(holding, spans.c.begin, after)
    return (
        select(
            func.max(holding.c.device_id).label("device_id"),
            after.label("time"),
            func.least(func.sum(overlap), STEP.total_seconds(), type_=Float).label("seconds"),
        )
        .join(spans, and_(holding.c.valid_from < after, holding.c.until > spans.c.begin))
        .group_by(*gpu, spans.c.begin)
        .cte("taken")
    )


def _overlapping(
    cluster_id: int, start: datetime, end: datetime
) -> tuple[ColumnElement[bool], ...]:
    """Conditions for `held`: allocations of a cluster that touch (start, end]."""
    open_end = or_(Allocation.valid_to.is_(None), Allocation.valid_to > instant(start))
    return Run.cluster_id == cluster_id, Allocation.valid_from < instant(end), open_end


def _devices(cluster_id: int) -> Select[int]:
    return (
        select(Placement.device_id)
        .join(Node, Node.id == Placement.node_id)
        .where(Node.cluster_id == cluster_id)
    )


def _within(start: datetime, end: datetime) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
    return _minute.minute >= instant(start), _minute.minute < instant(end)


def _step_end() -> ColumnElement[datetime]:
    begin = func.date_bin(interval(STEP), _minute.minute, instant(_EPOCH), type_=UtcDateTime)
    return begin + interval(STEP)


def _overlap(holding: CTE, start: ColumnElement[Any], end: ColumnElement[Any]) -> Any:
    """Seconds for which an allocation and (start, end] overlap."""
    common = func.least(holding.c.until, end) - func.greatest(holding.c.valid_from, start)
    return func.greatest(epoch_seconds(common), 0.0, type_=Float)
