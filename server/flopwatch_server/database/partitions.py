"""Partitions by time. A row that falls into none aborts the whole transaction it is in.

A partition is named after its table and its first day (UTC), `samples_20260312`, and is made before
the first row comes. An old one is dropped whole, which costs nothing like deleting its rows.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta

from sqlalchemy import func, select, text
from sqlalchemy.orm import Session

from flopwatch_server.database.engine import Database

_LOCK = 0x70617274  # one maker at a time, however many servers run
_DAYS_AHEAD = 2
_MONDAY = date(2001, 1, 1)  # where spans of several days are counted from
_DAY = timedelta(days=1)
_OLDEST = """
SELECT min(relname) FROM pg_inherits JOIN pg_class ON pg_class.oid = inhrelid
WHERE inhparent = to_regclass(:table) AND NOT inhdetachpending
"""
_TABLES = "SELECT relname FROM pg_class WHERE relkind = 'r' AND relname ~ :pattern"
# No row once it is no partition any more.
_IS_BEING_DETACHED = "SELECT inhdetachpending FROM pg_inherits WHERE inhrelid = to_regclass(:name)"


@dataclass(frozen=True, slots=True)
class Partition:
    """One partition, for rows of [begin, end)."""

    table: str
    begin: datetime
    end: datetime

    @property
    def name(self) -> str:
        return f"{self.table}_{self.begin:%Y%m%d}"


@dataclass(frozen=True, slots=True)
class Partitioned:
    """A table whose partitions span `days` each."""

    table: str
    days: int

    def partition_of(self, day: date) -> Partition:
        """The partition for rows of this UTC day."""
        first = day - timedelta((day - _MONDAY).days % self.days)
        begin = datetime.combine(first, time(), UTC)
        return Partition(self.table, begin, begin + timedelta(self.days))

    def partition_named(self, name: str) -> Partition:
        """The partition that has this name."""
        return self.partition_of(date.fromisoformat(name.removeprefix(f"{self.table}_")))


SAMPLES = Partitioned("samples", 1)
MINUTES = Partitioned("device_minutes", 7)
HOURS = Partitioned("device_hours", 91)
TIERS = (SAMPLES, MINUTES, HOURS)
"""The finer a tier, the more rows a day, the sooner it is dropped, and the shorter its spans."""


def ensure(session: Session, now: datetime) -> None:
    """Make the partitions from yesterday to two days ahead, those that do not exist."""
    ensure_days(session, [now.date() + timedelta(days) for days in range(-1, _DAYS_AHEAD + 1)])


def ensure_days(session: Session, days: Iterable[date]) -> None:
    """Make the partitions for samples of these UTC days and what is made of them, where missing.

    A table is attached after it was made, since ATTACH, unlike PARTITION OF, lets readers and
    writers of the other partitions go on.
    """
    wanted = set()
    for day in days:
        wanted.add(SAMPLES.partition_of(day))
        # The sample that ends at midnight is of the last minute of the day before.
        wanted |= {tier.partition_of(at) for tier in (MINUTES, HOURS) for at in (day - _DAY, day)}
    session.execute(select(func.pg_advisory_xact_lock(_LOCK)))
    for partition in sorted(wanted, key=lambda partition: partition.name):
        table, name = partition.table, partition.name
        if session.scalar(select(func.to_regclass(name))) is None:
            session.execute(text(f"CREATE TABLE {name} (LIKE {table} INCLUDING ALL)"))
            bounds = f"FROM ('{partition.begin}') TO ('{partition.end}')"
            session.execute(
                text(f"ALTER TABLE {table} ATTACH PARTITION {name} FOR VALUES {bounds}")
            )


def oldest(session: Session, tier: Partitioned) -> datetime | None:
    """From when on rows of a tier can be read; None if it has no partition."""
    name = session.scalar(text(_OLDEST), {"table": tier.table})
    return None if name is None else tier.partition_named(name).begin


def ended_before(session: Session, tier: Partitioned, time: datetime) -> list[Partition]:
    """The partitions that hold nothing from `time` on, oldest first.

    Also those that a drop which was cut short has left behind.
    """
    names = session.scalars(text(_TABLES), {"pattern": rf"^{tier.table}_\d{{8}}$"})
    found = [tier.partition_named(name) for name in sorted(names)]
    return [partition for partition in found if partition.end <= time]


def drop(database: Database, partition: Partition) -> None:
    """Drop a partition, and let readers and writers of its table go on meanwhile.

    It is detached first, which waits for whoever reads the table now, and holds nobody up. If that
    takes too long it raises OperationalError; the next call goes on where this one ended.
    """
    with database.engine.connect() as raw:
        connection = raw.execution_options(isolation_level="AUTOCOMMIT")
        pending = connection.scalar(text(_IS_BEING_DETACHED), {"name": partition.name})
        if pending is not None:
            how = "FINALIZE" if pending else "CONCURRENTLY"
            detach = f"ALTER TABLE {partition.table} DETACH PARTITION {partition.name} {how}"
            connection.execute(text(detach))
        connection.execute(text(f"DROP TABLE {partition.name}"))
