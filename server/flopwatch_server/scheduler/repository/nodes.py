"""What the scheduler says of nodes, kept with the nodes."""

from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from flopwatch_server.database.text import storable
from flopwatch_server.fleet.models import Node
from flopwatch_server.fleet.repository.nodes import ensure_nodes
from flopwatch_server.scheduler.records import NodeRecord


def apply_node_records(session: Session, cluster_id: int, records: Sequence[NodeRecord]) -> None:
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
