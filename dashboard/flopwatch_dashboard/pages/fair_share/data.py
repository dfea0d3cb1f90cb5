"""What the fair-share page reads, and what its address chooses.

`account` chooses an account, `user` one of its users, `partition` an association that is for one
partition alone, `range` how far back the course goes.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple
from urllib.parse import urlencode

from flopwatch_dashboard.address import Place
from flopwatch_dashboard.services import Visit
from flopwatch_server.access.visibility import is_staff
from flopwatch_server.jobs.schemas import WaitingDemand, WaitingGroup
from flopwatch_server.jobs.waiting import waiting_demand
from flopwatch_server.people import service as people
from flopwatch_server.people.schemas import AssociationShare, FairShare, ShareHistory, SharesTold

RANGES = {"24h": 1, "7d": 7, "30d": 30, "1y": 366}
"""How far back the course goes, by name in the address, in days."""

RANGE_LABELS = {"24h": "24 h", "7d": "7 d", "30d": "30 d", "1y": "1 y"}
DEFAULT_RANGE = "7d"
_LONGEST_WORD = 256


class Chosen(NamedTuple):
    """An association: of a user in an account or, with `user` None, of the account."""

    account: str
    user: str | None = None
    partition: str = ""


class Line(NamedTuple):
    """An account in the tree."""

    share: AssociationShare
    depth: int


@dataclass(frozen=True)
class FairShareData:
    """All that the page shows; `course` is the history of what is chosen, since `since`."""

    told: FairShare
    waiting: WaitingDemand
    chosen: Chosen | None
    course: ShareHistory | None
    since: datetime
    now: datetime
    sees_all: bool

    @property
    def accounts(self) -> list[Line]:
        """The accounts that may be seen, as a tree."""
        return list(tree([share for share in self.told.shares if share.user is None]))

    @property
    def single_users(self) -> list[AssociationShare]:
        """Users in accounts whose own figures may not be seen: one's own, for most people."""
        seen = {share.account for share in self.told.shares if share.user is None}
        return [share for share in self.told.shares if share.account not in seen]

    @property
    def members(self) -> list[AssociationShare]:
        """The users of the chosen account, those furthest over their share first."""
        if self.chosen is None:
            return []
        account = self.chosen.account
        users = [share for share in self.told.shares if share.account == account and share.user]
        return sorted(users, key=over_first)

    @property
    def chosen_share(self) -> AssociationShare | None:
        """What was told last of what is chosen; None of one that is gone."""
        return next((share for share in self.told.shares if chosen_of(share) == self.chosen), None)


class Basis(NamedTuple):
    """What the page is made of: nothing on it changes before one of these does."""

    told: SharesTold
    waiting: list[WaitingGroup] | None


def made_of(visit: Visit, place: Place) -> Basis:
    """The basis of the page at an address, which costs little to read."""
    assert place.cluster is not None
    cluster = place.cluster.name
    waiting = waiting_demand(visit.session, visit.principal, cluster)
    groups = None if waiting.told_at is None else waiting.groups
    return Basis(people.shares_told(visit.session, cluster), groups)


def read(visit: Visit, place: Place) -> FairShareData:
    """The page at an address; NotFound if what is chosen does not exist or may not be seen."""
    assert place.cluster is not None
    cluster, chosen = place.cluster.name, choice(place)
    since = visit.now - timedelta(days=RANGES[range_of(place)])
    return FairShareData(
        told=people.fair_share(visit.session, visit.principal, cluster),
        waiting=waiting_demand(visit.session, visit.principal, cluster),
        chosen=chosen,
        course=None if chosen is None else _course(visit, cluster, chosen, since),
        since=since,
        now=visit.now,
        sees_all=is_staff(visit.principal),
    )


def check(visit: Visit, place: Place) -> None:
    """Raise NotFound if what the address chooses does not exist or may not be seen."""
    chosen = choice(place)
    if place.cluster is not None and chosen is not None:
        _course(visit, place.cluster.name, chosen, visit.now)


def choice(place: Place) -> Chosen | None:
    """What the address chooses."""
    query = {key: value.replace("\0", "")[:_LONGEST_WORD]
             for key, value in place.address.query.items()}  # fmt: skip
    if not query.get("account"):
        return None
    return Chosen(query["account"], query.get("user") or None, query.get("partition", ""))


def range_of(place: Place) -> str:
    """The name of the range that the address asks for."""
    name = place.address.query.get("range", DEFAULT_RANGE)
    return name if name in RANGES else DEFAULT_RANGE


def path(place: Place, chosen: Chosen | None) -> str:
    """The address of this page with another choice."""
    kept = {key: value for key, value in place.address.query.items() if key in ("cluster", "range")}
    named = {} if chosen is None else chosen._asdict()
    query = kept | {key: value for key, value in named.items() if value}
    return f"/fair-share?{urlencode(query)}" if query else "/fair-share"


def chosen_of(share: AssociationShare) -> Chosen:
    """The choice that means this association."""
    return Chosen(share.account, share.user, share.partition)


def tree(accounts: Sequence[AssociationShare]) -> Iterator[Line]:
    """Each account, then those below it; on one level those furthest over their share first."""
    names = {share.account for share in accounts}
    below: defaultdict[str | None, list[AssociationShare]] = defaultdict(list)
    for share in sorted(accounts, key=over_first, reverse=True):
        below[share.parent if share.parent in names else None].append(share)
    stack = [Line(share, 0) for share in below[None]]
    while stack:
        line = stack.pop()
        yield line
        stack += [Line(share, line.depth + 1) for share in below[line.share.account]]


def over_first(share: AssociationShare) -> tuple[bool, float, str, str]:
    """A key that sorts by the level, the unknown last."""
    level = share.level_fs
    return level is None, level or 0.0, share.account, share.user or ""


def _course(visit: Visit, cluster: str, chosen: Chosen, since: datetime) -> ShareHistory:
    account, user, partition = chosen
    return people.share_history(
        visit.session, visit.principal, cluster, account, user, since, partition
    )
