"""Keeping account of how the conversation with a scheduler goes, for the pages."""

from collections.abc import Sequence
from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, Interval, func, literal, or_, select, update
from sqlalchemy.dialects.postgresql import Insert, insert
from sqlalchemy.orm import Session

from flopwatch_server.database.base import UtcDateTime
from flopwatch_server.database.text import storable
from flopwatch_server.scheduler.models import (
    LONGEST_REST,
    OUTAGE_AFTER,
    TELL_HOLDINGS,
    SchedulerOutage,
    SchedulerRefusal,
    SchedulerSource,
)
from flopwatch_server.scheduler.records import Refusal

SLOW = timedelta(seconds=2)
_REST_FOR_SLOW = 10  # times what the call took: a tenth of the time at most


def succeeded(
    session: Session,
    cluster_id: int,
    kind: str,
    now: datetime,
    took: timedelta = timedelta(),
) -> None:
    """A call worked: from now on there is no error. After a slow one the scheduler has its rest.

    An outage before it is remembered.
    """
    session.execute(_outage_before(cluster_id, kind, now))
    rests_until = now + _rest(took, timedelta())
    _set(
        session, cluster_id, kind, last_success_at=now, error=None, error_since=None,
        rests_until=rests_until,
    )  # fmt: skip


def failed(
    session: Session,
    cluster_id: int,
    kind: str,
    error: str,
    now: datetime,
    took: timedelta = timedelta(),
) -> None:
    """A call failed; `error_since` stays that of the first failure in a row.

    The scheduler is asked again after as long as it has been failing, within bounds.
    """
    known = session.get(SchedulerSource, (cluster_id, kind), populate_existing=True)
    since = (known and known.error_since) or now
    rests_until = now + _rest(took, now - since)
    _set(
        session, cluster_id, kind, error=storable(error), error_since=since,
        rests_until=rests_until,
    )  # fmt: skip


def mended(session: Session, cluster_id: int, kind: str) -> None:
    """What failed last works again, though it told nothing of what this kind tells."""
    of_kind = SchedulerSource.cluster_id == cluster_id, SchedulerSource.kind == kind
    session.execute(update(SchedulerSource).where(*of_kind).values(error=None, error_since=None))


def is_resting(session: Session, cluster_id: int, kind: str, now: datetime) -> bool:
    """Whether the scheduler should not be asked yet.

    A rest that ends later than any could begin now was given by a clock that was ahead.
    """
    source = session.get(SchedulerSource, (cluster_id, kind))
    until = source.rests_until if source else None
    return until is not None and now < until <= now + LONGEST_REST


def jobs_told_at(session: Session, cluster_id: int) -> datetime | None:
    """When anybody told last which jobs hold GPUs or wait for them; None for never."""
    return session.scalar(
        select(func.max(SchedulerSource.last_success_at)).where(
            SchedulerSource.cluster_id == cluster_id, SchedulerSource.kind.in_(TELL_HOLDINGS)
        )
    )


def told_version(session: Session, cluster_id: int, kind: str, version: str) -> None:
    """The scheduler has this version now."""
    _set(session, cluster_id, kind, version=storable(version))


def closed(session: Session, cluster_id: int, kind: str, until: datetime) -> None:
    """Accounting has been read up to `until`."""
    _set(session, cluster_id, kind, closed_until=until)


def closed_until(session: Session, cluster_id: int, kind: str) -> datetime | None:
    """Up to when accounting has been read; None for never."""
    source = session.get(SchedulerSource, (cluster_id, kind))
    return source.closed_until if source else None


def imported(session: Session, cluster_id: int, kind: str, since: datetime) -> None:
    """Accounting has been read back to `since`."""
    _set(session, cluster_id, kind, history_from=since)


def history_from(session: Session, cluster_id: int, kind: str) -> datetime | None:
    """Back to when accounting has been read; None for never."""
    source = session.get(SchedulerSource, (cluster_id, kind))
    return source.history_from if source else None


def refused(session: Session, cluster_id: int, refusals: Sequence[Refusal], now: datetime) -> None:
    """Remember what could not be read."""
    new = insert(SchedulerRefusal)
    statement = new.on_conflict_do_update(
        index_elements=["cluster_id", "call", "field"],
        set_={
            "problem": new.excluded.problem,
            "count": SchedulerRefusal.count + new.excluded.count,
            "last_at": func.greatest(SchedulerRefusal.last_at, new.excluded.last_at),
        },
    )
    rows = [
        {
            "cluster_id": cluster_id, "call": refusal.call, "field": refusal.field,
            "problem": storable(refusal.problem), "count": refusal.count,
            "first_at": now, "last_at": now,
        }
        for refusal in refusals
    ]  # fmt: skip
    if rows:
        session.execute(statement, rows)


def is_out(now: ColumnElement[datetime]) -> ColumnElement[bool]:
    """Whether a source tells nothing since its last success."""
    last = SchedulerSource.last_success_at
    silent = last < now - literal(OUTAGE_AFTER, Interval)
    return or_(SchedulerSource.error.is_not(None), silent)


def _outage_before(cluster_id: int, kind: str, now: datetime) -> Insert:
    """The outage that ends now, if there is one."""
    end = literal(now, UtcDateTime)
    told = select(
        SchedulerSource.cluster_id, SchedulerSource.kind, SchedulerSource.last_success_at, end
    ).where(
        SchedulerSource.cluster_id == cluster_id,
        SchedulerSource.kind == kind,
        SchedulerSource.last_success_at < end,
        is_out(end),
    )
    columns = ["cluster_id", "kind", "valid_from", "valid_to"]
    return insert(SchedulerOutage).from_select(columns, told).on_conflict_do_nothing()


def _rest(took: timedelta, failing_for: timedelta) -> timedelta:
    slow = _REST_FOR_SLOW * took if took > SLOW else timedelta()
    return min(max(slow, failing_for), LONGEST_REST)


def _set(session: Session, cluster_id: int, kind: str, **values: datetime | str | None) -> None:
    statement = insert(SchedulerSource).values(cluster_id=cluster_id, kind=kind, **values)
    session.execute(
        statement.on_conflict_do_update(index_elements=["cluster_id", "kind"], set_=values)
    )
