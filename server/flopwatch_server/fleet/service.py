"""What others ask of the fleet."""

from collections import Counter
from collections.abc import Collection

from sqlalchemy.orm import Session

from flopwatch_server.fleet.repository import agents
from flopwatch_server.fleet.repository.clusters import every_cluster
from flopwatch_server.fleet.repository.nodes import expected_gpus
from flopwatch_server.fleet.schemas import ClusterView

GRES_CONF = agents.GRES_CONF
"""How an ordinal is known that an agent read in the node's gres.conf."""


def clusters(session: Session) -> list[ClusterView]:
    """All clusters, by name."""
    return [
        ClusterView(name=cluster.name, simulated=cluster.simulated)
        for cluster in every_cluster(session)
    ]


def current_devices(
    session: Session, node_ids: Collection[int]
) -> dict[tuple[int, int], tuple[int, str]]:
    """Which device sits now at which GRES ordinal of these nodes, and how that is known.

    Keys are (node id, ordinal), values (device id, source of the ordinal). Devices whose ordinal
    nobody knows are not among them. Nor are those of a node that has more or fewer GPUs than the
    scheduler says, unless gres.conf tells which it leaves out.
    """
    placed = [
        (placement, placement.gres_ordinal, placement.ordinal_source)
        for placement in agents.current_placements(session, node_ids)
    ]
    count = Counter(placement.node_id for placement, _, _ in placed)
    expected = expected_gpus(session, node_ids)
    return {
        (placement.node_id, ordinal): (placement.device_id, source)
        for placement, ordinal, source in placed
        if ordinal is not None
        and source is not None
        and (
            source == GRES_CONF
            or expected.get(placement.node_id, count[placement.node_id]) == count[placement.node_id]
        )
    }
