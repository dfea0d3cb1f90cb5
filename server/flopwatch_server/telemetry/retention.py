"""What is old enough is dropped, a whole partition at a time."""

import logging
from datetime import timedelta

from flopwatch_server.database import partitions
from flopwatch_server.database.partitions import HOURS, MINUTES, SAMPLES, Partition
from flopwatch_server.house import House
from flopwatch_server.telemetry.repository import minutes
from flopwatch_server.telemetry.repository.rollups import is_awaited

log = logging.getLogger(__name__)


def drop_expired(house: House) -> None:
    """Drop the partitions of which no row is as young as the settings keep.

    One for whose time marks still wait stays: what is to be made of its rows is not made yet.
    """
    keep = house.settings.retention
    for tier, days in ((SAMPLES, keep.raw_days), (MINUTES, keep.minute_days),
                       (HOURS, keep.hour_days)):  # fmt: skip
        if days is None:
            continue
        with house.database.session() as session:
            expired = partitions.ended_before(session, tier, house.clock() - timedelta(days))
        for partition in expired:
            if _is_awaited(house, partition):
                log.warning("%s is kept: what is made of it is not made yet", partition.name)
            else:
                partitions.drop(house.database, partition)
                log.info("dropped %s", partition.name)


def _is_awaited(house: House, partition: Partition) -> bool:
    # The sample that ends with a day is of the last minute of the day before.
    first = partition.begin - timedelta(minutes=1)
    with house.database.session() as session:
        return is_awaited(session, minutes.MINUTES, first, partition.end)
