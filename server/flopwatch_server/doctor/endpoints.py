"""The doctor over HTTP, for staff."""

from fastapi import APIRouter

from flopwatch_server.database.text import Word
from flopwatch_server.doctor import service
from flopwatch_server.doctor.schemas import Diagnosis
from flopwatch_server.house import HouseDep, SessionDep, StaffDep

router = APIRouter()


@router.get("/doctor")
def doctor(session: SessionDep, staff: StaffDep, house: HouseDep, cluster: Word) -> Diagnosis:
    """What is wrong with a cluster, its agents and its clocks, and what to do."""
    return service.diagnosis(session, staff, cluster, house.clock())
