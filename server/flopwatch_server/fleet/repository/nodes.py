"""Nodes by name, whoever names them first: the scheduler or an agent."""

from collections.abc import Collection, Iterable, Sequence

from sqlalchemy import or_, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from flopwatch_server.fleet.models import Node


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


def expected_gpus(session: Session, node_ids: Collection[int]) -> dict[int, int]:
    """How many GPUs the scheduler says these nodes have, of those of which it says so."""
    rows = session.execute(
        select(Node.id, Node.gpu_count).where(Node.id.in_(node_ids), Node.gpu_count.is_not(None))
    )
    return {node_id: count for node_id, count in rows if count is not None}


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
