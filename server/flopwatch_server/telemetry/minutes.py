"""Minutes and hours of devices, kept up to date with the samples."""

from concurrent.futures import ThreadPoolExecutor

from flopwatch_server.house import House
from flopwatch_server.telemetry.repository.hours import HOURS
from flopwatch_server.telemetry.repository.minutes import MINUTES, SAMPLES_PER_MINUTE
from flopwatch_server.telemetry.repository.rollups import Rollup, recompute

__all__ = ["SAMPLES_PER_MINUTE", "recompute_hours", "recompute_minutes"]


def recompute_minutes(house: House) -> bool:
    """Make minutes that are over of their samples again, where new ones came; True if more wait."""
    return _recompute(house, MINUTES)


def recompute_hours(house: House) -> bool:
    """Make hours that are over of their minutes again, where new ones came; True if more wait."""
    return _recompute(house, HOURS)


def _recompute(house: House, rollup: Rollup) -> bool:
    """All parts at the same time: each keeps one process of PostgreSQL busy."""

    def make(part: int) -> bool:
        with house.database.session() as session:
            return recompute(session, rollup, house.settings.thresholds, house.clock(), part)

    with ThreadPoolExecutor(rollup.parts) as threads:
        return any(list(threads.map(make, range(rollup.parts))))
