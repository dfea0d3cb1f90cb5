"""How GPU time was used, kept up to date with minutes and allocations.

Where minutes were made or an allocation changed, marks say so (`dirty_steps`, `allocation_marks`):
what was kept there is made again, set and never added to, so that any order of late data and late
news of the scheduler leads to the same figures. Marks are consumed as those of minutes are
(`telemetry.repository.rollups`). A page lags behind the minutes by one period of this task.
"""

from datetime import datetime, timedelta

from sqlalchemy.orm import Session

from flopwatch.gpus import PeakTable
from flopwatch_server.database import partitions
from flopwatch_server.database.partitions import MINUTES
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


def recompute_use(house: House) -> bool:
    """Make hours of allocations, figures of runs and steps of clusters again; False if none was."""
    with house.database.session() as session:
        begin_turn(session, _LOCK)
        return count_use(session, house.clock(), house.settings.retention)


def count_use(session: Session, now: datetime, retention: Retention) -> bool:
    """Do what the earliest marks ask for, and steps that are over; False if nothing was left to do.

    What was made of minutes that may have been dropped since stays as it is.
    """
    marks, changed = hours.take_marks(session, _oldest(session, now, retention), now)
    allocations = hours.make_hours(session, now)
    over = last_step_end(now)
    newest = steps.newest(session) or over - 2 * STEP
    end = min(over, newest + STEP + hours.SPAN_A_TURN)
    new = [newest + n * STEP for n in range(1, (end - newest) // STEP)]
    # What has changed at the end or later will be new.
    for step in sorted({*new, *(step for step in changed if step < end)}):
        steps.make(session, step, now)
    hours.make_run_figures(session, allocations)
    return marks > 0 or end < over


def _oldest(session: Session, now: datetime, retention: Retention) -> datetime:
    """From when on minutes are there, as far as they are kept."""
    kept = now - timedelta(days=retention.minute_days)
    return max(kept, partitions.oldest(session, MINUTES) or kept)


def recompute_mfus(house: House) -> None:
    """Remember the train MFU of all runs whose processes may have reported anew."""
    with house.database.session() as session:
        remember_mfus(session, house.peaks, house.clock())


def remember_mfus(session: Session, peaks: PeakTable, now: datetime) -> None:
    """The same, in a transaction of the caller's."""
    runs = repository.reporting_runs(session, now - _REPORTS_COME_LATE)
    hours.keep_mfus(session, train_mfus(session, runs, peaks, now))
