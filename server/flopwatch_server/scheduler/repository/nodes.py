"""What the scheduler says of nodes: now, kept with them, and what they did for it over time."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from sqlalchemy import delete, or_, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from flopwatch_server.database.text import storable
from flopwatch_server.fleet.models import Node
from flopwatch_server.fleet.repository.nodes import ensure_nodes
from flopwatch_server.scheduler.models import NodeState
from flopwatch_server.scheduler.records import NodeRecord, Service, service_of


def apply_node_records(
    session: Session,
    cluster_id: int,
    records: Sequence[NodeRecord],
    now: datetime,
    *,
    complete: bool = False,
) -> None:
    """Bring nodes up to what the scheduler says of them now.

    With `complete` these are all: of any other it tells no more what it is there for.
    """
    ids = ensure_nodes(session, cluster_id, (record.name for record in records))
    nodes = {
        node.id: node for node in session.scalars(select(Node).where(Node.id.in_(ids.values())))
    }
    for record in records:
        node = nodes[ids[record.name]]
        node.scheduler_state = record.state
        node.scheduler_reason = storable(record.reason) or None
        node.gpu_count = record.gpu_count
        node.partitions = list(record.partitions)
    session.flush()
    services = {ids[record.name]: service_of(record.state) for record in records}
    if complete and records:
        services |= dict.fromkeys(_forget_others(session, cluster_id, services), "unknown")
    _follow(session, services, now)


def _forget_others(session: Session, cluster_id: int, told: Iterable[int]) -> Sequence[int]:
    """Forget what was told of other nodes than these; their ids."""
    return session.scalars(
        update(Node)
        .where(
            Node.cluster_id == cluster_id,
            Node.scheduler_state.is_not(None),
            Node.id.not_in(told),
        )
        .values(scheduler_state=None, scheduler_reason=None, gpu_count=None, partitions=[])
        .returning(Node.id)
        .execution_options(synchronize_session=False)
    ).all()


def _follow(session: Session, services: Mapping[int, Service], now: datetime) -> None:
    """Let what nodes do be this since `now`, where it was something else.

    What was noted for later, by a clock that was ahead, never was.
    """
    known = dict(_open_states(session, services))
    changed = {id_: service for id_, service in services.items() if known.get(id_) != service}
    if not changed:
        return
    of_changed = NodeState.node_id.in_(changed)
    session.execute(delete(NodeState).where(of_changed, NodeState.valid_from > now))
    goes_on = or_(NodeState.valid_to.is_(None), NodeState.valid_to > now)
    session.execute(
        update(NodeState)
        .where(of_changed, NodeState.valid_from < now, goes_on)
        .values(valid_to=now)
        .execution_options(synchronize_session=False)
    )
    rows = [
        {"node_id": id_, "valid_from": now, "service": service} for id_, service in changed.items()
    ]
    new = insert(NodeState)
    session.execute(
        new.on_conflict_do_update(
            index_elements=["node_id", "valid_from"],
            set_={"service": new.excluded.service, "valid_to": None},
        ),
        rows,
    )


def _open_states(session: Session, node_ids: Iterable[int]) -> Iterable[tuple[int, str]]:
    states = select(NodeState.node_id, NodeState.service)
    rows = session.execute(
        states.where(NodeState.node_id.in_(node_ids), NodeState.valid_to.is_(None))
    )
    return ((row.node_id, row.service) for row in rows)
