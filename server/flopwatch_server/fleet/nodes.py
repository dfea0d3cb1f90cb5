"""Nodes as the scheduler knows them. An agent that reports first makes the same row."""

from collections.abc import Iterable, Sequence

from sqlalchemy import or_, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from flopwatch_server.database.text import storable
from flopwatch_server.fleet.models import Node
from flopwatch_server.scheduler.records import NodeRecord


def ensure_nodes(session: Session, cluster_id: int, names: Iterable[str]) -> dict[str, int]:
    """Ids of nodes by name or alias; a name that nobody has told yet becomes a node."""
    wanted = sorted(set(names))
    if not wanted:
        return {}
    known = _ids(session, cluster_id, wanted)
    new = [{"cluster_id": cluster_id, "name": name} for name in wanted if name not in known]
    if new:
        session.execute(insert(Node).on_conflict_do_nothing(), new)
        known = _ids(session, cluster_id, wanted)
    return known


def _ids(session: Session, cluster_id: int, names: Sequence[str]) -> dict[str, int]:
    found: dict[str, int] = {}
    rows = session.execute(
        select(Node.id, Node.name, Node.aliases).where(
            Node.cluster_id == cluster_id,
            or_(Node.name.in_(names), Node.aliases.overlap(list(names))),
        )
    ).all()
    for node_id, _, aliases in rows:
        found |= dict.fromkeys(aliases, node_id)
    return found | {name: node_id for node_id, name, _ in rows}


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
