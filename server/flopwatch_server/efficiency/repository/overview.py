"""A whole cluster now: its GPUs, nodes, queue and sources."""

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Float,
    Row,
    Select,
    any_,
    case,
    cast,
    func,
    literal,
    select,
    true,
)
from sqlalchemy.dialects.postgresql import distinct_on
from sqlalchemy.orm import Session

from flopwatch_server.access.principal import Principal, may_see
from flopwatch_server.efficiency.models import run_figures
from flopwatch_server.efficiency.repository.figures import newest_minute
from flopwatch_server.efficiency.repository.present import newest_minutes, state_now
from flopwatch_server.fleet.models import Cluster, Device, Node, Placement
from flopwatch_server.jobs.models import Run
from flopwatch_server.scheduler.models import SchedulerSource
from flopwatch_server.scheduler.records import PENDING_STATES, RUNNING_STATES
from flopwatch_server.telemetry.models import device_minutes, samples
from flopwatch_server.telemetry.repository import AnyRow, instant

_minute = device_minutes.c
_NODES_ASKED = 10


def cluster_by_name(session: Session, name: str) -> Cluster | None:
    return session.scalars(select(Cluster).where(Cluster.name == name)).first()


def nodes(session: Session, cluster_id: int) -> Sequence[AnyRow]:
    """The nodes of a cluster by name, each with how many devices sit in it now as `placed`."""
    placed = (
        select(Placement.node_id, func.count().label("placed"))
        .where(Placement.valid_to.is_(None))
        .group_by(Placement.node_id)
        .cte("placed")
    )
    return session.execute(
        select(
            Node.id, Node.name, Node.gpu_count, Node.partitions, Node.scheduler_state,
            Node.last_batch_at, func.coalesce(placed.c.placed, 0).label("placed"),
        )
        .outerjoin(placed, placed.c.node_id == Node.id)
        .where(Node.cluster_id == cluster_id)
        .order_by(Node.name)
    ).all()  # fmt: skip


def gpus_held(session: Session, cluster_id: int, now: datetime) -> Sequence[AnyRow]:
    """GPUs of a cluster that are held now, by holder, node and state: (..., partition, gpus).

    A card that several jobs share is held once, by one of them. `tensor` and `tensor_gpus` are sum
    and number of what those that are not shared tell of their tensor activity.
    """
    present = state_now(now, Run.cluster_id == cluster_id)
    holder = case((present.c.gres_ordinal.is_(None), present.c.id))
    gpu = (present.c.node_id, present.c.gres_ordinal, holder)
    once = select(present).ext(distinct_on(*gpu)).order_by(*gpu, present.c.id).cte("once")
    tensor = case((~once.c.shared, once.c.tensor_active))
    by = (once.c.run_id, once.c.node_id, once.c.partition, once.c.state)
    return session.execute(
        select(
            *by,
            func.count().label("gpus"),
            func.sum(cast(tensor, Float)).label("tensor"),
            func.count(tensor).label("tensor_gpus"),
        ).group_by(*by)
    ).all()


def live_runs(session: Session, cluster_id: int) -> Sequence[Row[int, str, bool, float | None]]:
    """GPU jobs that run or wait: (run id, partition, whether it runs, its train MFU)."""
    return session.execute(
        select(Run.id, Run.partition, Run.state.in_(RUNNING_STATES), run_figures.c.mfu)
        .outerjoin(run_figures, run_figures.c.run_id == Run.id)
        .where(
            Run.cluster_id == cluster_id, Run.ended_at.is_(None), Run.vanished_at.is_(None),
            Run.gpu_count >= 1, Run.state.in_(RUNNING_STATES | PENDING_STATES),
        )
    ).all()  # fmt: skip


def power(session: Session, cluster_id: int, now: datetime) -> AnyRow:
    """Power of all GPUs in the newest minute that tells it: (watts, limit of their boards).

    The limit is None if that of one of them is not known.
    """
    placed = (
        select(Placement.device_id, Device.power_limit_watts.label("limit"))
        .join(Device, Device.id == Placement.device_id)
        .join(Node, Node.id == Placement.node_id)
        .where(Node.cluster_id == cluster_id, Placement.valid_to.is_(None))
        .cte("placed")
    )
    newest = newest_minutes(placed, newest_minute(now))
    watts = cast(newest.c.power_watts, Float)
    all_known = func.count(placed.c.limit) == func.count()
    return session.execute(
        select(
            func.sum(watts).label("watts"),
            case((all_known, func.sum(placed.c.limit))).label("limit_watts"),
        )
        .join(newest, newest.c.device_id == placed.c.device_id)
        .where(watts.is_not(None))
    ).one()


def seen(ids: Collection[int], principal: Principal) -> Select[int]:
    """Ids of those of these runs that `principal` may see."""
    one_of_them = Run.id == any_(literal(sorted(ids), ARRAY(BigInteger)))
    return select(Run.id).where(may_see(principal, Run.user_name, Run.account), one_of_them)


def newest_sample_at(
    session: Session, cluster_id: int, not_before: datetime, now: datetime
) -> datetime | None:
    """When the newest sample of the cluster was taken, if after `not_before`.

    It is looked for on the ten nodes that were heard from last.
    """
    heard_last = (
        select(Node.id)
        .where(Node.cluster_id == cluster_id)
        .order_by(Node.last_batch_at.desc().nulls_last(), Node.id)
        .limit(_NODES_ASKED)
    )
    newest = (
        select(samples.c.ts)
        .where(
            samples.c.device_id == Placement.device_id,
            samples.c.ts > instant(not_before),
            samples.c.ts <= instant(now),
        )
        .order_by(samples.c.ts.desc())
        .limit(1)
        .correlate(Placement)
        .lateral("newest")
    )
    ts: datetime | None = session.scalar(
        select(func.max(newest.c.ts))
        .select_from(Placement)
        .join(newest, true())
        .where(Placement.node_id.in_(heard_last), Placement.valid_to.is_(None))
    )
    return ts


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


def _devices(cluster_id: int) -> Select[int]:
    return (
        select(Placement.device_id)
        .join(Node, Node.id == Placement.node_id)
        .where(Node.cluster_id == cluster_id)
    )
