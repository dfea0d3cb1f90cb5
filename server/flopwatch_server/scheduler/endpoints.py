"""Partitions and QOS over HTTP."""

from fastapi import APIRouter

from flopwatch_server.database.text import Word
from flopwatch_server.house import SessionDep
from flopwatch_server.scheduler import service
from flopwatch_server.scheduler.schemas import Partitions, QosOfCluster

router = APIRouter()


@router.get("/partitions")
def partitions(session: SessionDep, cluster: Word) -> Partitions:
    """The partitions of a cluster, with their limits, as its scheduler told last."""
    return service.partitions(session, cluster)


@router.get("/qos")
def qos(session: SessionDep, cluster: Word) -> QosOfCluster:
    """The QOS of a cluster, with their limits, as its scheduler told last."""
    return service.qos(session, cluster)
