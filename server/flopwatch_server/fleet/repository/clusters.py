"""Clusters by name."""

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from flopwatch_server.fleet.models import Cluster
from flopwatch_server.house import NotFound


def ensure_cluster(session: Session, name: str, now: datetime, *, simulated: bool = False) -> int:
    """Id of the cluster `name`, which is made if it is new. What is simulated once stays so."""
    session.execute(
        insert(Cluster)
        .values(name=name, simulated=simulated, created_at=now)
        .on_conflict_do_nothing()
    )
    return session.scalars(select(Cluster.id).where(Cluster.name == name)).one()


def the_cluster(session: Session, name: str) -> Cluster:
    """The cluster of this name; NotFound if there is none."""
    found = session.scalars(select(Cluster).where(Cluster.name == name)).first()
    if found is None:
        raise NotFound(f"no cluster {name}")
    return found


def lock_cluster(session: Session, cluster_id: int) -> None:
    """Let one transaction at a time change what is held on a cluster. Agents' posts don't wait."""
    session.execute(
        select(Cluster.id).where(Cluster.id == cluster_id).with_for_update(key_share=True)
    )


def every_cluster(session: Session) -> Sequence[Cluster]:
    """All clusters, by name."""
    return session.scalars(select(Cluster).order_by(Cluster.name)).all()
