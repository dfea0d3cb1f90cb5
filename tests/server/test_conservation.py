"""No second of a GPU is lost or counted twice, whatever happens to its node, jobs and scheduler."""

from sqlalchemy import func, literal, select
from sqlalchemy.orm import Session

from flopwatch_server.database.base import UtcDateTime
from flopwatch_server.database.engine import Database
from flopwatch_server.efficiency.repository.gpu_time import STATES
from flopwatch_server.jobs.models import Allocation
from flopwatch_server.telemetry.repository import epoch_seconds, held
from tests.simulation.conservation import DAY, START, Ledger, Stretch, instant, told_seconds


def test_a_day_of_every_gpu_adds_up_to_the_second(database: Database) -> None:
    check(database, Stretch(days=1))


def check(database: Database, stretch: Stretch) -> None:
    """Tell the stretch to a database, which then knows what the ledger does, and adds up."""
    stretch.tell(database)
    ledger = Ledger(stretch).seconds()
    assert {state for states in ledger.values() for state in states} == set(STATES)
    with database.session() as session:
        found = told_seconds(session, stretch)
        assert found == ledger
        lasted = stretch.days * DAY
        assert {sum(states.values()) for states in found.values()} == {lasted}
        of_gpus = sum(states["allocated"] for states in found.values())
        assert exclusive_seconds(session, stretch) == of_gpus


def exclusive_seconds(session: Session, stretch: Stretch) -> float:
    """Over all runs, the seconds in which they held GPUs that nobody else held."""
    end = instant(stretch.end)
    holding = held(literal(end, UtcDateTime), ~Allocation.shared)
    first = func.greatest(holding.c.alone_from, instant(START), type_=UtcDateTime)
    seconds = func.sum(func.greatest(epoch_seconds(holding.c.alone_until - first), 0.0))
    return float(session.scalar(select(seconds)) or 0.0)
