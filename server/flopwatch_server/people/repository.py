"""SQL over people, accounts and shares. What a person may see is decided as for runs."""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import (
    ARRAY,
    BigInteger,
    ColumnElement,
    Row,
    Select,
    Text,
    all_,
    delete,
    func,
    literal,
    or_,
    select,
    true,
    update,
)
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session, aliased

from flopwatch_server.access.principal import Principal
from flopwatch_server.access.visibility import may_see
from flopwatch_server.people.models import Account, Association, Share, User
from flopwatch_server.scheduler.models import SchedulerSource

Key = tuple[str, str | None, str]
"""An association of a cluster: (account, user name, partition)."""

Told = Mapping[str, Any]
VALUES = ("norm_shares", "raw_usage", "effective_usage", "fair_share", "level_fs")

_newest = aliased(
    Share,
    select(Share)
    .where(Share.association_id == Association.id)
    .order_by(Share.hour.desc())
    .limit(1)
    .correlate(Association)
    .lateral("newest"),
)


def tell_users(session: Session, rows: Sequence[Told]) -> None:
    """Keep what is told of these users now."""
    _tell(session, User, ("cluster_id", "name"), rows)


def tell_accounts(session: Session, rows: Sequence[Told]) -> None:
    """Keep what is told of these accounts now."""
    _tell(session, Account, ("cluster_id", "name"), rows)


def tell_associations(session: Session, rows: Sequence[Told]) -> None:
    """Keep what is told of these associations now."""
    _tell(session, Association, ("cluster_id", "account", "user_name", "partition"), rows)


def _tell(
    session: Session,
    table: type[User | Account | Association],
    key: Sequence[str],
    rows: Sequence[Told],
) -> None:
    """Insert rows, or bring those that are known up to date; who was gone is back.

    A row of which nothing new is told is not written.
    """
    if not rows:
        return
    new = insert(table)
    columns = table.__table__.c
    changes = {
        name: new.excluded[name] for name in rows[0] if name not in (*key, "first_told_at")
    } | {"gone_at": None}
    is_news = or_(*(columns[name].is_distinct_from(value) for name, value in changes.items()))
    statement = new.on_conflict_do_update(index_elements=key, set_=changes, where=is_news)
    session.execute(statement, rows)


def mark_gone(
    session: Session,
    cluster_id: int,
    users: Collection[str],
    accounts: Collection[str],
    association_ids: Collection[int],
    now: datetime,
) -> None:
    """All of a cluster but these are told of no more."""
    missing: tuple[tuple[type[User | Account | Association], ColumnElement[bool]], ...] = (
        (User, User.name != all_(literal(list(users), ARRAY(Text)))),
        (Account, Account.name != all_(literal(list(accounts), ARRAY(Text)))),
        (Association, Association.id != all_(literal(list(association_ids), ARRAY(BigInteger)))),
    )
    for table, is_missing in missing:
        session.execute(
            update(table)
            .where(table.cluster_id == cluster_id, table.gone_at.is_(None), is_missing)
            .values(gone_at=now)
            .execution_options(synchronize_session=False)
        )


def association_ids(session: Session, cluster_id: int) -> dict[Key, int]:
    """Every association that was ever told of."""
    rows = session.execute(
        select(
            Association.id, Association.account, Association.user_name, Association.partition
        ).where(Association.cluster_id == cluster_id)
    )
    return {(account, user, partition): id_ for id_, account, user, partition in rows}


def newest_values(session: Session, cluster_id: int) -> dict[int, tuple[Any, ...]]:
    """What was told last of the shares of each association, in the order of VALUES."""
    rows = session.execute(
        select(Association.id, *(getattr(_newest, name) for name in VALUES))
        .join(_newest, true())
        .where(Association.cluster_id == cluster_id)
    )
    return {id_: tuple(values) for id_, *values in rows}


def add_shares(session: Session, rows: Sequence[Told]) -> None:
    """Keep the newest shares of an hour."""
    if not rows:
        return
    new = insert(Share)
    changes = {name: new.excluded[name] for name in ("at", *VALUES)}
    session.execute(
        new.on_conflict_do_update(index_elements=["association_id", "hour"], set_=changes), rows
    )


def thin(session: Session, start: datetime, end: datetime) -> None:
    """Of the shares of hours within [start, end), keep the last of each day."""
    later = aliased(Share)
    day, days = (func.date_trunc("day", hour, "UTC") for hour in (Share.hour, later.hour))
    session.execute(
        delete(Share)
        .where(
            Share.hour >= start,
            Share.hour < end,
            select(later.hour)
            .where(
                later.association_id == Share.association_id, later.hour > Share.hour, days == day
            )
            .exists(),
        )
        .execution_options(synchronize_session=False)
    )


def shares(
    session: Session, principal: Principal, cluster_id: int
) -> Sequence[Row[Association, str | None, Share | None]]:
    """Associations with the parents of accounts and what was told last of their shares.

    Only those that `principal` may see and that are not gone; an account comes before its users.
    """
    return session.execute(
        visible(principal, cluster_id)
        .add_columns(Account.parent, _newest)
        .outerjoin(
            Account,
            (Account.cluster_id == cluster_id)
            & (Account.name == Association.account)
            & Association.user_name.is_(None),
        )
        .outerjoin(_newest, true())
        .where(Association.gone_at.is_(None))
        .order_by(
            Association.account, Association.user_name.asc().nulls_first(), Association.partition
        )
    ).all()


def find(session: Session, principal: Principal, cluster_id: int, key: Key) -> Association | None:
    """One association, also if it is gone; None if there is none that `principal` may see."""
    account, user, partition = key
    return session.scalars(
        visible(principal, cluster_id).where(
            Association.account == account,
            Association.user_name.is_not_distinct_from(user),
            Association.partition == partition,
        )
    ).first()


def history(session: Session, association_id: int, since: datetime) -> Sequence[Share]:
    """Shares from the row on that held at `since`, in the order of time."""
    of_it = Share.association_id == association_id
    held = select(func.max(Share.hour)).where(of_it, Share.at <= since).scalar_subquery()
    return session.scalars(
        select(Share).where(of_it, Share.hour >= func.coalesce(held, since)).order_by(Share.hour)
    ).all()


def sources(session: Session, cluster_id: int, kinds: Collection[str]) -> Sequence[SchedulerSource]:
    """How the conversations of these kinds go."""
    return session.scalars(
        select(SchedulerSource).where(
            SchedulerSource.cluster_id == cluster_id, SchedulerSource.kind.in_(kinds)
        )
    ).all()


def visible(principal: Principal, cluster_id: int) -> Select[Association]:
    """The associations of a cluster that `principal` may see."""
    return select(Association).where(
        Association.cluster_id == cluster_id,
        may_see(principal, Association.user_name, Association.account),
    )
