"""A whole cluster now: its GPUs, nodes, queue and sources."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import cache
from typing import Any

from sqlalchemy import (
    ARRAY,
    CTE,
    BigInteger,
    ColumnElement,
    Float,
    Row,
    Select,
    and_,
    any_,
    bindparam,
    case,
    cast,
    func,
    literal,
    or_,
    select,
    true,
    tuple_,
    type_coerce,
)
from sqlalchemy.dialects.postgresql import distinct_on
from sqlalchemy.orm import Session

from flopwatch_server.access.principal import Principal
from flopwatch_server.access.visibility import may_see
from flopwatch_server.database.base import UtcDateTime
from flopwatch_server.efficiency.models import run_figures
from flopwatch_server.efficiency.repository.present import (
    held_now,
    is_open,
    moment,
    newest_minutes,
    state_now,
)
from flopwatch_server.fleet.models import Device, Node, Placement
from flopwatch_server.fleet.repository.placements import clusters_at
from flopwatch_server.jobs.models import Allocation, Run
from flopwatch_server.scheduler.models import NodeState, Reservation, SchedulerSource
from flopwatch_server.scheduler.records import PENDING_STATES, RUNNING_STATES
from flopwatch_server.telemetry.models import device_minutes, samples
from flopwatch_server.telemetry.repository import AnyRow, instant

_minute = device_minutes.c
_NODES_ASKED = 10


def nodes(session: Session, cluster_id: int, now: datetime, heard: datetime) -> Sequence[AnyRow]:
    """Nodes of a cluster together that are in the same partitions.

    Gives (partitions, GPUs that are there, free, reserved, and down, nodes that were `heard`
    since). A node has as many GPUs as its agent sees, its scheduler says or its jobs hold,
    whichever is most. Those that nobody holds are down if the scheduler gives the node to nobody,
    reserved if only to some, else free.
    """
    return session.execute(_nodes(), moment(now) | {"cluster_id": cluster_id, "heard": heard}).all()


@cache
def _nodes() -> Select[Any]:
    placed = (
        select(Placement.node_id, func.count().label("gpus"))
        .where(Placement.valid_to.is_(None))
        .group_by(Placement.node_id)
        .cte("placed")
    )
    gpu = _gpu(Allocation)
    once = select(*gpu).distinct().where(is_open()).cte("once")
    held = select(once.c.node_id, func.count().label("gpus")).group_by(once.c.node_id).cte("held")
    taken = func.coalesce(held.c.gpus, 0)
    total = func.greatest(placed.c.gpus, Node.gpu_count, taken, type_=BigInteger)
    is_reserved = or_(NodeState.service == "reserved", _is_kept())
    # Of a machine without a scheduler nobody tells, and nobody but its own users holds it.
    serves = or_(NodeState.service == "serving", Node.scheduler_state.is_(None))
    one = (
        select(
            Node.partitions, total.label("gpus"), (total - taken).label("not_held"),
            case(
                (NodeState.service.in_(("down", "drained")), "down"),
                (is_reserved, "reserved"),
                (serves, "free"),
                else_="unknown",
            ).label("service"),
            (Node.last_batch_at >= bindparam("heard")).label("is_heard"),
        )
        .outerjoin(placed, placed.c.node_id == Node.id)
        .outerjoin(held, held.c.node_id == Node.id)
        .outerjoin(
            NodeState, and_(NodeState.node_id == Node.id, NodeState.valid_to.is_(None))
        )
        .where(Node.cluster_id == bindparam("cluster_id"))
        .cte("one")
    )  # fmt: skip
    not_held = {
        service: func.sum(one.c.not_held).filter(one.c.service == service)
        for service in ("free", "reserved", "down")
    }
    return select(
        one.c.partitions,
        cast(func.sum(one.c.gpus), BigInteger).label("gpus"),
        *(
            cast(func.coalesce(gpus, 0), BigInteger).label(service)
            for service, gpus in not_held.items()
        ),
        func.count().filter(one.c.is_heard).label("heard"),
    ).group_by(one.c.partitions)


def _is_kept() -> ColumnElement[bool]:
    """Whether a reservation keeps all of a node now."""
    now = bindparam("now", type_=UtcDateTime)
    kept = select(Reservation.cluster_id, func.unnest(Reservation.nodes)).where(
        Reservation.is_whole, Reservation.valid_from <= now, Reservation.valid_to > now
    )
    return tuple_(Node.cluster_id, Node.name).in_(kept)


def silent_nodes(
    session: Session, cluster_id: int, heard: datetime
) -> Sequence[Row[str, datetime]]:
    """Nodes of a cluster, by name, whose agents have reported, but before `heard`: (name, when)."""
    return session.execute(
        select(Node.name, type_coerce(Node.last_batch_at, UtcDateTime))
        .where(Node.cluster_id == cluster_id, Node.last_batch_at < instant(heard))
        .order_by(Node.name)
    ).all()


def gpus_now(session: Session, cluster_id: int, now: datetime) -> tuple[AnyRow, list[AnyRow]]:
    """GPUs of a cluster in the newest minute: power of all, and those that are held.

    The power is (watts, limit_watts), of those that tell it; the limit of their boards is None if
    that of one is not known. Held GPUs are told by partition and state: (partition, state, GPUs,
    ids of their runs, and sum and number of what those that are not shared tell of their tensor
    activity). A card that several jobs share is held once, by one of them.
    """
    rows = session.execute(_gpus_now(), moment(now) | {"cluster_id": cluster_id}).all()
    return rows[0], [row for row in rows if row.state is not None]


@cache
def _gpus_now() -> Select[Any]:
    # A run that has ended holds nothing: told so, the index of open runs has few to offer.
    holding = held_now(Run.cluster_id == bindparam("cluster_id"), Run.ended_at.is_(None))
    placed = (
        select(Placement.device_id, Device.power_limit_watts.label("limit"))
        .join(Device, Device.id == Placement.device_id)
        .join(Node, Node.id == Placement.node_id)
        .where(Node.cluster_id == bindparam("cluster_id"), Placement.valid_to.is_(None))
        .cte("placed")
    )
    newest = newest_minutes(holding, placed)
    held = _held(state_now(holding, newest)).cte("held")
    power = _power(placed, newest).cte("power")
    # Nothing may be held; the power is one row all the same.
    return select(power, held).select_from(power.outerjoin(held, true()))


def _held(present: CTE) -> Select[Any]:
    gpu = _gpu(present.c)
    once = select(present).ext(distinct_on(*gpu)).order_by(*gpu, present.c.id).cte("once")
    tensor = case((~once.c.shared, once.c.tensor_active))
    by = (once.c.partition, once.c.state)
    return select(
        *by,
        func.count().label("gpus"),
        func.array_agg(once.c.run_id.distinct()).label("run_ids"),
        func.sum(cast(tensor, Float)).label("tensor"),
        func.count(tensor).label("tensor_gpus"),
    ).group_by(*by)


def _power(placed: CTE, newest: CTE) -> Select[Any]:
    watts = cast(newest.c.power_watts, Float)
    all_known = func.count(placed.c.limit) == func.count()
    return (
        select(
            func.sum(watts).label("watts"),
            case((all_known, func.sum(placed.c.limit))).label("limit_watts"),
        )
        .join(newest, newest.c.device_id == placed.c.device_id)
        .where(watts.is_not(None))
    )


def _gpu(held: Any) -> tuple[ColumnElement[Any], ...]:
    """What tells one GPU from another: one of unknown ordinal is told apart by its holder."""
    return held.node_id, held.gres_ordinal, case((held.gres_ordinal.is_(None), held.id))


def queue(session: Session, cluster_id: int) -> Sequence[AnyRow]:
    """GPU jobs that run or wait, by partition, which may be several ("a,b").

    Gives (partition, jobs that run, jobs that wait, and sum and number of the train MFU of those
    that run).
    """
    runs_now = Run.state.in_(RUNNING_STATES)
    mfu = run_figures.c.mfu
    return session.execute(
        select(
            Run.partition,
            func.count().filter(runs_now).label("running"),
            func.count().filter(~runs_now).label("waiting"),
            func.coalesce(func.sum(mfu).filter(runs_now), 0.0).label("mfu"),
            func.count(mfu).filter(runs_now).label("reporting"),
        )
        .outerjoin(run_figures, run_figures.c.run_id == Run.id)
        .where(
            Run.cluster_id == cluster_id, Run.ended_at.is_(None), Run.vanished_at.is_(None),
            Run.gpu_count >= 1, Run.state.in_(RUNNING_STATES | PENDING_STATES),
        )
        .group_by(Run.partition)
    ).all()  # fmt: skip


def seen(ids: Sequence[int], principal: Principal) -> Select[int]:
    """Ids of those of these runs that `principal` may see."""
    one_of_them = Run.id == any_(literal(ids, ARRAY(BigInteger)))
    return select(Run.id).where(may_see(principal, Run.user_name, Run.account), one_of_them)


def newest_sample_at(
    session: Session, cluster_id: int, not_before: datetime, now: datetime
) -> datetime | None:
    """When the newest sample of the cluster was taken, if after `not_before`.

    It is looked for on the ten nodes that were heard from last.
    """
    ts: datetime | None = session.scalar(
        _newest_sample_at(), {"cluster_id": cluster_id, "not_before": not_before, "now": now}
    )
    return ts


@cache
def _newest_sample_at() -> Select[datetime]:
    heard_last = (
        select(Node.id)
        .where(Node.cluster_id == bindparam("cluster_id"))
        .order_by(Node.last_batch_at.desc().nulls_last(), Node.id)
        .limit(_NODES_ASKED)
    )
    newest = (
        select(samples.c.ts)
        .where(
            samples.c.device_id == Placement.device_id,
            samples.c.ts > bindparam("not_before", type_=UtcDateTime),
            samples.c.ts <= bindparam("now", type_=UtcDateTime),
        )
        .order_by(samples.c.ts.desc())
        .limit(1)
        .correlate(Placement)
        .lateral("newest")
    )
    return (
        select(func.max(newest.c.ts))
        .select_from(Placement)
        .join(newest, true())
        .where(Placement.node_id.in_(heard_last), Placement.valid_to.is_(None))
    )


def newest_minute_end(session: Session, cluster_id: int, now: datetime) -> datetime | None:
    """The end of the newest minute in which a device of the cluster sent samples."""
    sits = clusters_at(now).cte("sits")
    devices = select(sits.c.device_id).where(sits.c.cluster_id == cluster_id)
    minute = session.scalar(
        select(_minute.minute)
        .where(_minute.device_id.in_(devices), _minute.samples_received > 0)
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
