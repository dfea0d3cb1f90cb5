"""People and their fair share: what the scheduler says goes in, what a person may see comes out."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy.orm import Session

from flopwatch_server.access.principal import Principal
from flopwatch_server.database.text import storable
from flopwatch_server.fleet.repository.clusters import the_cluster
from flopwatch_server.house import House, NotFound
from flopwatch_server.people import repository
from flopwatch_server.people.models import Share
from flopwatch_server.people.repository import VALUES, Key
from flopwatch_server.people.schemas import (
    AssociationShare,
    FairShare,
    ShareHistory,
    SharePoint,
    SharesTold,
)
from flopwatch_server.scheduler.records import AssociationRecord, People, ShareRecord

SLURM_SHARES = "slurm shares"
FED_SHARES = "feed shares"
"""The kinds of source that tell of fair share."""

HOURLY_FOR = timedelta(days=90)
_WEEK = timedelta(days=7)


def apply_people(
    session: Session, cluster_id: int, people: People, now: datetime, *, complete: bool
) -> None:
    """Bring users, accounts and associations up to what a scheduler says now.

    With `complete`, `people` holds all of them: whoever is missing is gone since `now`.
    """
    told: dict[str, Any] = {"cluster_id": cluster_id, "first_told_at": now}
    users = [
        {"name": storable(user.name), "admin_level": user.admin_level,
         "coordinates": [storable(account) for account in user.coordinates], **told}
        for user in people.users
    ]  # fmt: skip
    parents = {storable(record.account): None for record in people.associations} | {
        storable(record.account): record.parent and storable(record.parent)
        for record in people.associations
        if record.user is None
    }
    raw_shares = {_key(record): record.raw_shares for record in people.associations}
    associations = [
        {"account": account, "user_name": user, "partition": partition, "raw_shares": count, **told}
        for (account, user, partition), count in raw_shares.items()
    ]
    repository.tell_users(session, users)
    repository.tell_accounts(
        session, [{"name": name, "parent": parent, **told} for name, parent in parents.items()]
    )
    repository.tell_associations(session, associations)
    if complete:
        ids = repository.association_ids(session, cluster_id)
        names = [user["name"] for user in users]
        present = [ids[key] for key in raw_shares]
        repository.mark_gone(session, cluster_id, names, parents, present, now)


def apply_shares(
    session: Session, cluster_id: int, shares: Sequence[ShareRecord], now: datetime
) -> None:
    """Keep the fair share of associations that are known, where it changed since it was told."""
    ids = repository.association_ids(session, cluster_id)
    known = repository.newest_values(session, cluster_id)
    hour = now.replace(minute=0, second=0, microsecond=0)
    told = {ids[_key(share)]: share for share in shares if _key(share) in ids}
    repository.add_shares(
        session,
        [
            {"association_id": id_, "hour": hour, "at": now, **_values(share)}
            for id_, share in told.items()
            if known.get(id_) != tuple(_values(share).values())
        ],
    )


def apply_fed_shares(
    session: Session,
    cluster_id: int,
    shares: Sequence[ShareRecord],
    now: datetime,
    *,
    complete: bool,
) -> None:
    """Keep what a scheduler tells of shares and of nothing else: who has any is an association."""
    associations = tuple(
        AssociationRecord(
            share.account, share.user, raw_shares=share.raw_shares, partition=share.partition
        )
        for share in shares
    )
    apply_people(session, cluster_id, People(associations, ()), now, complete=complete)
    apply_shares(session, cluster_id, shares, now)


def thin_shares(house: House) -> None:
    """Keep one row a day of the shares that are old: which day it was is all one asks by then.

    A turn looks at a week, so that what a pause has left is made up for.
    """
    now = house.clock()
    with house.database.session() as session:
        repository.thin(session, now - HOURLY_FOR - _WEEK, now - HOURLY_FOR)


def shares_told(session: Session, cluster: str) -> SharesTold:
    """Whether and when fair share was told, without the figures; raises NotFound."""
    sources = repository.sources(
        session, the_cluster(session, cluster).id, (SLURM_SHARES, FED_SHARES)
    )
    told = [source.last_success_at for source in sources if source.last_success_at]
    failing = next((source for source in sources if source.error is not None), None)
    return SharesTold(
        told_at=max(told, default=None),
        error=failing.error if failing else None,
        error_since=failing.error_since if failing else None,
    )


def fair_share(session: Session, principal: Principal, cluster: str) -> FairShare:
    """The fair share of a cluster's associations that `principal` may see; raises NotFound."""
    found = the_cluster(session, cluster)
    return FairShare(
        cluster=found.name,
        **shares_told(session, cluster).model_dump(),
        shares=[
            AssociationShare(
                account=association.account,
                user=association.user_name,
                partition=association.partition,
                parent=parent,
                raw_shares=association.raw_shares,
                changed_at=newest.at if newest else None,
                **(_values(newest) if newest else {}),
            )
            for association, parent, newest in repository.shares(session, principal, found.id)
        ],
    )


def share_history(
    session: Session,
    principal: Principal,
    cluster: str,
    account: str,
    user: str | None,
    since: datetime,
    partition: str = "",
) -> ShareHistory:
    """The fair share of one association from what held at `since` on.

    Raises NotFound if there is none that `principal` may see; one that is gone has its history.
    """
    cluster_id = the_cluster(session, cluster).id
    found = repository.find(session, principal, cluster_id, (account, user, partition))
    if found is None:
        who = f"account {account}" if user is None else f"user {user} in account {account}"
        raise NotFound(f"no {who} on cluster {cluster}")
    return ShareHistory(
        cluster=cluster,
        account=account,
        user=user,
        partition=partition,
        gone_at=found.gone_at,
        points=[
            SharePoint(at=share.at, **_values(share))
            for share in repository.history(session, found.id, since)
        ],
    )


def _key(record: AssociationRecord | ShareRecord) -> Key:
    user = record.user and storable(record.user)
    return storable(record.account), user, storable(record.partition)


def _values(share: ShareRecord | Share) -> dict[str, Any]:
    return {name: getattr(share, name) for name in VALUES}
