"""Day partitions of `samples`. A row whose day has none aborts the whole transaction it is in."""

from collections.abc import Iterable
from datetime import date, datetime, timedelta

from sqlalchemy import func, select, text
from sqlalchemy.orm import Session

_LOCK = 0x70617274  # one maker at a time, however many servers run
_DAYS_AHEAD = 2


def ensure(session: Session, now: datetime) -> None:
    """Make the partitions from yesterday to two days ahead, those that do not exist."""
    ensure_days(session, [now.date() + timedelta(days) for days in range(-1, _DAYS_AHEAD + 1)])


def ensure_days(session: Session, days: Iterable[date]) -> None:
    """Make the partitions of these UTC days, those that do not exist.

    A table is attached after it was made, since ATTACH, unlike PARTITION OF, lets readers and
    writers of the other days go on.
    """
    session.execute(select(func.pg_advisory_xact_lock(_LOCK)))
    for day in sorted(set(days)):
        name = f"samples_{day:%Y%m%d}"
        if session.scalar(select(func.to_regclass(name))) is None:
            session.execute(text(f"CREATE TABLE {name} (LIKE samples INCLUDING ALL)"))
            bounds = f"FROM ('{day} 00:00Z') TO ('{day + timedelta(1)} 00:00Z')"
            session.execute(
                text(f"ALTER TABLE samples ATTACH PARTITION {name} FOR VALUES {bounds}")
            )
