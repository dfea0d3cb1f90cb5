"""Keeping account of how the conversation with a scheduler goes, for the pages."""

from datetime import datetime

from sqlalchemy import func
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from flopwatch_server.database.text import storable
from flopwatch_server.scheduler.models import SchedulerSource


def succeeded(session: Session, cluster_id: int, kind: str, now: datetime) -> None:
    """A call worked: from now on there is no error."""
    _set(session, cluster_id, kind, last_success_at=now, error=None, error_since=None)


def failed(session: Session, cluster_id: int, kind: str, error: str, now: datetime) -> None:
    """A call failed; `error_since` stays that of the first failure in a row."""
    error = storable(error)
    since = func.coalesce(SchedulerSource.error_since, now)
    statement = insert(SchedulerSource).values(
        cluster_id=cluster_id, kind=kind, error=error, error_since=now
    )
    session.execute(
        statement.on_conflict_do_update(
            index_elements=["cluster_id", "kind"], set_={"error": error, "error_since": since}
        )
    )


def closed(session: Session, cluster_id: int, kind: str, until: datetime) -> None:
    """Accounting has been read up to `until`."""
    _set(session, cluster_id, kind, closed_until=until)


def closed_until(session: Session, cluster_id: int, kind: str) -> datetime | None:
    """Up to when accounting has been read; None for never."""
    source = session.get(SchedulerSource, (cluster_id, kind))
    return source.closed_until if source else None


def _set(session: Session, cluster_id: int, kind: str, **values: datetime | None) -> None:
    statement = insert(SchedulerSource).values(cluster_id=cluster_id, kind=kind, **values)
    session.execute(
        statement.on_conflict_do_update(index_elements=["cluster_id", "kind"], set_=values)
    )
