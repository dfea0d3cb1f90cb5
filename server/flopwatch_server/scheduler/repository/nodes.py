"""What the scheduler says of nodes: now, kept with them, and what they did for it over time."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from sqlalchemy import select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from flopwatch_server.database.text import storable
from flopwatch_server.fleet.models import Node
from flopwatch_server.fleet.repository.nodes import ensure_nodes
from flopwatch_server.scheduler.models import NodeState
from flopwatch_server.scheduler.records import NodeRecord, Service, service_of


def apply_node_records(
    session: Session, cluster_id: int, records: Sequence[NodeRecord], now: datetime
) -> None:
    """Bring nodes up to what the scheduler says of them now."""
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
    _follow(session, {ids[record.name]: service_of(record.state) for record in records}, now)


def _follow(session: Session, services: Mapping[int, Service], now: datetime) -> None:
    """Let what nodes do be this since `now`, where it was something else."""
    known = dict(_open_states(session, services))
    changed = {id_: service for id_, service in services.items() if known.get(id_) != service}
    if not changed:
        return
    session.execute(
        update(NodeState)
        .where(NodeState.node_id.in_(changed), NodeState.valid_to.is_(None),
               NodeState.valid_from < now)
        .values(valid_to=now)
    )  # fmt: skip
    rows = [
        {"node_id": id_, "valid_from": now, "service": service} for id_, service in changed.items()
    ]
    new = insert(NodeState)
    session.execute(
        new.on_conflict_do_update(
            index_elements=["node_id", "valid_from"], set_={"service": new.excluded.service}
        ),
        rows,
    )


def _open_states(session: Session, node_ids: Iterable[int]) -> Iterable[tuple[int, str]]:
    states = select(NodeState.node_id, NodeState.service)
    rows = session.execute(
        states.where(NodeState.node_id.in_(node_ids), NodeState.valid_to.is_(None))
    )
    return ((row.node_id, row.service) for row in rows)
