"""The fleet over HTTP."""

from fastapi import APIRouter

from flopwatch_server.fleet import service
from flopwatch_server.fleet.schemas import ClusterView
from flopwatch_server.house import SessionDep

router = APIRouter()


@router.get("/clusters")
def clusters(session: SessionDep) -> list[ClusterView]:
    """All clusters, by name."""
    return service.clusters(session)
