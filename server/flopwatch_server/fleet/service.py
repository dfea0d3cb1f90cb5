"""What others ask of the fleet."""

from collections.abc import Collection

from sqlalchemy.orm import Session

from flopwatch_server.fleet import repository
from flopwatch_server.fleet.schemas import ClusterView


def clusters(session: Session) -> list[ClusterView]:
    """All clusters, by name."""
    return [
        ClusterView(name=cluster.name, simulated=cluster.simulated)
        for cluster in repository.clusters(session)
    ]


def current_devices(
    session: Session, node_ids: Collection[int]
) -> dict[tuple[int, int], tuple[int, str]]:
    """Which device sits now at which GRES ordinal of these nodes, and how that is known.

    Keys are (node id, ordinal), values (device id, source of the ordinal). MIG instances and
    devices without a minor have no ordinal and are not among them.
    """
    return {
        (placement.node_id, placement.gres_ordinal): (placement.device_id, placement.ordinal_source)
        for placement in repository.current_placements(session, node_ids)
        if placement.gres_ordinal is not None and placement.ordinal_source is not None
    }
