"""How GPU time was used, kept up to date with minutes and allocations.

Where minutes were made or an allocation changed, marks say so (`dirty_steps`, `allocation_marks`):
what was kept there is made again, set and never added to, so that any order of late data and late
news of the scheduler leads to the same figures. Marks are consumed as those of minutes are
(`telemetry.repository.rollups`). A page lags behind the minutes by one period of this task.
"""

from datetime import datetime, timedelta

from sqlalchemy.orm import Session

from flopwatch.gpus import PeakTable
from flopwatch_server.efficiency.listing import train_mfus
from flopwatch_server.efficiency.repository import hours, steps
from flopwatch_server.efficiency.repository import listing as repository
from flopwatch_server.efficiency.usage import last_step_end
from flopwatch_server.house import House
from flopwatch_server.settings import Retention
from flopwatch_server.telemetry.models import STEP
from flopwatch_server.telemetry.repository.rollups import begin_turn

_LOCK = 0x75736167
_REPORTS_COME_LATE = timedelta(hours=1)
"""A report of a run that ended longer ago changes its page, but not its place in a list."""


def recompute_use(house: House) -> None:
    """Make the hours of allocations, figures of runs and steps of clusters again where needed."""
    more = True
    while more:
        with house.database.session() as session:
            begin_turn(session, _LOCK)
            more = count_use(session, house.clock(), house.settings.retention)


def count_use(session: Session, now: datetime, retention: Retention) -> bool:
    """Do what the oldest marks ask for, and the steps that are over; False if no mark was left.

    What was made of minutes that may have been dropped since stays as it is.
    """
    oldest = now - timedelta(days=retention.minute_days)
    marks, changed = hours.take_marks(session, oldest, now)
    allocations = hours.make_hours(session, now)
    if allocations:
        hours.make_run_figures(session, allocations)
    for step in _due(session, changed, now):
        steps.make(session, step, now)
    return marks > 0


def _due(session: Session, changed: list[datetime], now: datetime) -> list[datetime]:
    """Steps to make, by their start: those that have changed, and those over since the newest."""
    end = last_step_end(now)
    newest = steps.newest(session)
    following = end - STEP if newest is None else newest + STEP
    new = [following + n * STEP for n in range((end - following) // STEP)]
    return sorted({*new, *(step for step in changed if step < end)})


def recompute_mfus(house: House) -> None:
    """Remember the train MFU of all runs whose processes may have reported anew."""
    with house.database.session() as session:
        remember_mfus(session, house.peaks, house.clock())


def remember_mfus(session: Session, peaks: PeakTable, now: datetime) -> None:
    """The same, in a transaction of the caller's."""
    runs = repository.reporting_runs(session, now - _REPORTS_COME_LATE)
    hours.keep_mfus(session, train_mfus(session, runs, peaks, now))
