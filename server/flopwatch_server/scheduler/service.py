"""What a scheduler says of its partitions and QOS: everybody may know it, as everybody who may
submit jobs does."""

from typing import Any

from sqlalchemy.orm import Session

from flopwatch_server.fleet.repository.clusters import the_cluster
from flopwatch_server.scheduler.repository import queue_rules
from flopwatch_server.scheduler.schemas import Partition, Partitions, Qos, QosOfCluster

SLURM_PARTITIONS = "slurm partitions"
SLURM_QOS = "slurm qos"
"""The kinds of source that tell of them."""


def partitions(session: Session, cluster: str) -> Partitions:
    """The partitions of a cluster; raises NotFound."""
    found = the_cluster(session, cluster)
    told = [Partition.model_validate(one) for one in queue_rules.partitions(session, found.id)]
    return Partitions(**_told(session, found.id, found.name, SLURM_PARTITIONS), partitions=told)


def qos(session: Session, cluster: str) -> QosOfCluster:
    """The QOS of a cluster; raises NotFound."""
    found = the_cluster(session, cluster)
    told = [Qos.model_validate(one) for one in queue_rules.qos(session, found.id)]
    return QosOfCluster(**_told(session, found.id, found.name, SLURM_QOS), qos=told)


def _told(session: Session, cluster_id: int, cluster: str, kind: str) -> dict[str, Any]:
    source = queue_rules.source(session, cluster_id, kind)
    return {
        "cluster": cluster,
        "told_at": source and source.last_success_at,
        "error": source and source.error,
        "error_since": source and source.error_since,
    }
