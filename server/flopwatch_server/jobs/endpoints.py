"""What waits, over HTTP."""

from fastapi import APIRouter

from flopwatch_server.database.text import Word
from flopwatch_server.house import PrincipalDep, SessionDep
from flopwatch_server.jobs.schemas import WaitingDemand
from flopwatch_server.jobs.waiting import waiting_demand

router = APIRouter()


@router.get("/waiting")
def waiting(session: SessionDep, principal: PrincipalDep, cluster: Word) -> WaitingDemand:
    """Waiting runs and the GPUs they ask for, by the class of their reason and by account."""
    return waiting_demand(session, principal, cluster)
