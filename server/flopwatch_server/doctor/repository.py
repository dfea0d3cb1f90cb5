"""SQL for the doctor: what an installation's own tables say of how well it is set up."""

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import ColumnElement, Row, Select, and_, distinct, func, select
from sqlalchemy.dialects.postgresql import distinct_on
from sqlalchemy.orm import Session, aliased

from flopwatch_server.fleet.models import AgentEpoch, Node, Placement
from flopwatch_server.jobs.models import Allocation, Evidence, Run
from flopwatch_server.scheduler.models import SchedulerRefusal, SchedulerSource
from flopwatch_server.scheduler.records import WORKING_STATES
from flopwatch_server.telemetry.models import MetricState


def sources(session: Session, cluster_id: int) -> Sequence[SchedulerSource]:
    """How the conversation with the cluster's scheduler goes."""
    of_cluster = select(SchedulerSource).where(SchedulerSource.cluster_id == cluster_id)
    return session.scalars(of_cluster.order_by(SchedulerSource.kind)).all()


def metrics_refused(
    session: Session, cluster_id: int, heard: datetime
) -> Sequence[Row[str, list[str]]]:
    """Nodes whose agents report and may not read some metrics, and which these are."""
    return session.execute(
        _placed(cluster_id, heard)
        .add_columns(func.array_agg(distinct(MetricState.metric)))
        .join(
            MetricState,
            and_(MetricState.device_id == Placement.device_id, MetricState.valid_to.is_(None)),
        )
        .where(MetricState.reason == "no permission")
        .group_by(Node.name)
        .order_by(Node.name)
    ).all()


def refusals(session: Session, cluster_id: int, since: datetime) -> Sequence[SchedulerRefusal]:
    """What could not be read of the scheduler's answers lately."""
    return session.scalars(
        select(SchedulerRefusal)
        .where(SchedulerRefusal.cluster_id == cluster_id, SchedulerRefusal.last_at >= since)
        .order_by(SchedulerRefusal.call, SchedulerRefusal.field)
    ).all()


def agents(session: Session, cluster_id: int, heard: datetime) -> tuple[int, int]:
    """How many nodes have an agent that has ever reported, and how many since `heard`."""
    row = session.execute(
        select(
            func.count(Node.last_batch_at),
            func.count(Node.id).filter(Node.last_batch_at >= heard),
        ).where(Node.cluster_id == cluster_id)
    ).one()
    return row[0], row[1]


def silent(session: Session, cluster_id: int, heard: datetime) -> Sequence[str]:
    """Nodes whose agent has reported before, but not since `heard`."""
    return _names(session, cluster_id, Node.last_batch_at < heard)


def without_agent(session: Session, cluster_id: int) -> Sequence[str]:
    """Nodes that have GPUs, as the scheduler says, and from which no agent has ever reported."""
    return _names(session, cluster_id, and_(Node.gpu_count > 0, Node.last_batch_at.is_(None)))


def strangers(session: Session, cluster_id: int, heard: datetime) -> Sequence[str]:
    """Nodes whose agents report and of which the scheduler, which tells of others, does not."""
    of_cluster = Node.cluster_id == cluster_id
    tells = select(Node.id).where(of_cluster, Node.scheduler_state.is_not(None)).exists()
    unknown = and_(Node.last_batch_at >= heard, Node.scheduler_state.is_(None), tells)
    return _names(session, cluster_id, unknown)


_newest = aliased(
    AgentEpoch,
    select(AgentEpoch)
    .ext(distinct_on(AgentEpoch.node_id))
    .order_by(AgentEpoch.node_id, AgentEpoch.id.desc())
    .subquery(),
)


def skews(
    session: Session, cluster_id: int, heard: datetime, least_seconds: float
) -> Sequence[Row[str, float]]:
    """Nodes whose clocks are this far off, and how far they are ahead of the server's."""
    skew = _newest.clock_skew_seconds
    return session.execute(
        _reporting(cluster_id, heard).add_columns(skew).where(func.abs(skew) > least_seconds)
    ).all()


def capabilities(
    session: Session, cluster_id: int, heard: datetime
) -> Sequence[Row[str, dict[str, str]]]:
    """Nodes whose agents report, and what these can see there."""
    statement = _reporting(cluster_id, heard).add_columns(_newest.capabilities)
    return session.execute(statement).all()


def nodes_with_jobs(session: Session, cluster_id: int, began: datetime) -> Sequence[str]:
    """Nodes on which jobs have been working since `began`."""
    held = (
        select(Allocation.id)
        .join(Run, Run.id == Allocation.run_id)
        .where(
            Allocation.node_id == Node.id,
            Allocation.valid_to.is_(None),
            Allocation.valid_from <= began,
            Run.state.in_(WORKING_STATES),
            ~Run.local,
        )
    )
    return _names(session, cluster_id, held.exists())


def counts(
    session: Session, cluster_id: int, heard: datetime
) -> Sequence[Row[str, int | None, int]]:
    """Nodes that report: name, GPUs as the scheduler says, and devices as the agent does, where
    the two differ."""
    placed = func.count(Placement.device_id)
    return session.execute(
        _placed(cluster_id, heard)
        .add_columns(Node.gpu_count, placed)
        .group_by(Node.id)
        .having(Node.gpu_count != placed)
        .order_by(Node.name)
    ).all()


def assumed_order(session: Session, cluster_id: int, heard: datetime) -> Sequence[str]:
    """Nodes the scheduler tells of whose GPUs' positions are not known but assumed."""
    assumed = func.bool_or(Placement.ordinal_source.is_distinct_from("gres.conf"))
    return session.scalars(
        _placed(cluster_id, heard)
        .where(Node.gpu_count > 0)
        .group_by(Node.id)
        .having(assumed)
        .order_by(Node.name)
    ).all()


def disputed(session: Session, cluster_id: int) -> Sequence[Row[str, int]]:
    """Nodes with GPUs that jobs hold now by the scheduler's word and others by their processes'."""
    return session.execute(
        select(Node.name, func.count())
        .join(Allocation, Allocation.node_id == Node.id)
        .where(
            Node.cluster_id == cluster_id,
            Allocation.valid_to.is_(None),
            Allocation.confidence == "disputed",
        )
        .group_by(Node.id)
        .order_by(Node.name)
    ).all()


def uncounted_runs(session: Session, cluster_id: int) -> int:
    """Running jobs that hold GPUs of which the scheduler does not tell the number."""
    holds = select(Allocation.id).where(Allocation.run_id == Run.id, Allocation.valid_to.is_(None))
    return _count_runs(session, cluster_id, and_(Run.gpu_count.is_(None), holds.exists()))


def unseen_runs(session: Session, cluster_id: int, began: datetime, heard: datetime) -> int:
    """Jobs that have been working since `began` on nodes whose agents report."""
    on_node = (
        select(Allocation.id)
        .join(Node, Node.id == Allocation.node_id)
        .where(
            Allocation.run_id == Run.id,
            Allocation.valid_to.is_(None),
            Allocation.valid_from <= began,
            Node.last_batch_at >= heard,
        )
    )
    return _count_runs(session, cluster_id, on_node.exists())


def has_evidence(session: Session, cluster_id: int, since: datetime) -> bool:
    """Whether any agent saw any job's processes or prolog lately."""
    seen = (
        select(Evidence.id)
        .join(Node, Node.id == Evidence.node_id)
        .where(Node.cluster_id == cluster_id, Evidence.last_seen_at >= since)
    )
    return bool(session.scalar(select(seen.exists())))


def _count_runs(session: Session, cluster_id: int, which: ColumnElement[bool]) -> int:
    return session.scalars(
        select(func.count())
        .select_from(Run)
        .where(
            Run.cluster_id == cluster_id,
            ~Run.local,
            Run.ended_at.is_(None),
            Run.vanished_at.is_(None),
            Run.state.in_(WORKING_STATES),
            which,
        )
    ).one()


def _reporting(cluster_id: int, heard: datetime) -> Select[str]:
    return (
        select(Node.name)
        .join(_newest, _newest.node_id == Node.id)
        .where(Node.cluster_id == cluster_id, Node.last_batch_at >= heard)
        .order_by(Node.name)
    )


def _placed(cluster_id: int, heard: datetime) -> Select[str]:
    return (
        select(Node.name)
        .join(Placement, and_(Placement.node_id == Node.id, Placement.valid_to.is_(None)))
        .where(Node.cluster_id == cluster_id, Node.last_batch_at >= heard)
    )


def _names(session: Session, cluster_id: int, which: ColumnElement[bool]) -> Sequence[str]:
    return session.scalars(
        select(Node.name).where(Node.cluster_id == cluster_id, which).order_by(Node.name)
    ).all()
