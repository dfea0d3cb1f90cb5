"""Minutes and hours of devices, kept up to date with the samples."""

from flopwatch_server.house import House
from flopwatch_server.telemetry.repository.hours import HOURS
from flopwatch_server.telemetry.repository.minutes import MINUTES, SAMPLES_PER_MINUTE
from flopwatch_server.telemetry.repository.rollups import Rollup, recompute

__all__ = ["SAMPLES_PER_MINUTE", "recompute_hours", "recompute_minutes"]


def recompute_minutes(house: House) -> None:
    """Make every minute that is over of its samples again, if it has new ones."""
    _recompute_all(house, MINUTES)


def recompute_hours(house: House) -> None:
    """Make every hour that is over of its minutes again, if it has new ones."""
    _recompute_all(house, HOURS)


def _recompute_all(house: House, rollup: Rollup) -> None:
    more = True
    while more:
        with house.database.session() as session:
            more = recompute(session, rollup, house.settings.thresholds, house.clock())
