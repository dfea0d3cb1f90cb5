"""People, accounts and fair share: what the scheduler tells goes in, what one may see comes out."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import func, select
from starlette.testclient import TestClient

from flopwatch_server.access.principal import Principal
from flopwatch_server.app import create_app
from flopwatch_server.database.engine import Database
from flopwatch_server.fleet.models import Cluster
from flopwatch_server.house import House, NotFound
from flopwatch_server.people import service
from flopwatch_server.people.models import Account, Association, Share, User
from flopwatch_server.people.schemas import AssociationShare, FairShare, ShareHistory
from flopwatch_server.scheduler.models import SchedulerSource
from flopwatch_server.scheduler.records import (
    AssociationRecord,
    People,
    ShareRecord,
    UserRecord,
)
from tests.server.world import ADMIN, World, at

# The tree that the captures of Slurm show, in part.
PEOPLE = People(
    associations=(
        AssociationRecord("root", None, None, 1),
        AssociationRecord("vision", None, "root", 70),
        AssociationRecord("vision", "alice", None, 10),
        AssociationRecord("vision", "bob", None, None),
    ),
    users=(UserRecord("alice", "Operator", ("vision",)), UserRecord("bob")),
)
ROOT = ShareRecord("root", raw_usage=67779, effective_usage=1.0)
VISION = ShareRecord("vision", None, "", 70, 0.7, 56803, 0.83807, None, 0.835253)
ALICE = ShareRecord("vision", "alice", "", 10, 0.25, 41723, 0.734523, 0.166667, 0.340357)
BOB = ShareRecord("vision", "bob", "", None, 0.75, 0, 0.0, 0.333333, None)
SHARES = (ROOT, VISION, ALICE, BOB)
IDLE = replace(ALICE, raw_usage=0, effective_usage=0.0, fair_share=1.0, level_fs=math.inf)


class Site:
    """One cluster whose scheduler tells of its people."""

    def __init__(self, world: World) -> None:
        self.session = world.session
        self.cluster_id = world.cluster.id

    def tell(
        self, now: datetime, people: People = PEOPLE, shares: Sequence[ShareRecord] = SHARES
    ) -> None:
        """What one poll does with the answers of the scheduler."""
        service.apply_people(self.session, self.cluster_id, people, now, complete=True)
        service.apply_shares(self.session, self.cluster_id, shares, now)

    def rows(self, *columns: Any) -> list[tuple[Any, ...]]:
        """These columns as they stand in the database, in their own order."""
        statement = select(*columns).order_by(*columns)
        return [tuple(row) for row in self.session.execute(statement)]

    def shares(self, principal: Principal = ADMIN) -> list[AssociationShare]:
        return service.fair_share(self.session, principal, "granite").shares

    def who(self, principal: Principal = ADMIN) -> list[tuple[str, str | None]]:
        return [(share.account, share.user) for share in self.shares(principal)]

    def history(self, user: str | None, since: datetime, principal: Principal = ADMIN) -> (
        ShareHistory
    ):  # fmt: skip
        return service.share_history(self.session, principal, "granite", "vision", user, since)


@pytest.fixture
def site(database: Database) -> Iterator[Site]:
    with database.session() as session:
        yield Site(World(session))


def test_people_come_with_their_level_and_what_they_look_after(site: Site) -> None:
    site.tell(at(0))
    assert site.rows(User.name, User.admin_level, User.coordinates, User.first_told_at) == [
        ("alice", "Operator", ["vision"], at(0)),
        ("bob", "None", [], at(0)),
    ]
    assert site.rows(Account.name, Account.parent) == [("root", None), ("vision", "root")]


def test_what_is_told_anew_replaces_what_was_told(site: Site) -> None:
    site.tell(at(0))
    moved = AssociationRecord("vision", None, "research", 20)
    promoted = UserRecord("bob", "Administrator", ("root",))
    people = People((moved, *PEOPLE.associations[2:]), (PEOPLE.users[0], promoted))
    site.tell(at(5), people)
    assert ("vision", "research") in site.rows(Account.name, Account.parent)
    bob = ("bob", "Administrator", ["root"], at(0))
    assert bob in site.rows(User.name, User.admin_level, User.coordinates, User.first_told_at)
    assert [share.raw_shares for share in site.shares()] == [20, 10, None]


def test_whoever_is_told_of_no_more_is_gone_and_comes_back_when_told_again(site: Site) -> None:
    site.tell(at(0))
    without_bob = People(PEOPLE.associations[:3], PEOPLE.users[:1])
    site.tell(at(5), without_bob, (ROOT, VISION, ALICE))
    site.tell(at(10), without_bob, (ROOT, VISION, ALICE))
    assert site.rows(User.name, User.gone_at) == [("alice", None), ("bob", at(5))]
    assert site.rows(Association.user_name, Association.gone_at, Association.account) == [
        ("alice", None, "vision"),
        ("bob", at(5), "vision"),
        (None, None, "root"),
        (None, None, "vision"),
    ]
    assert ("vision", "bob") not in site.who()
    site.tell(at(15))
    assert ("vision", "bob") in site.who()
    assert site.rows(User.name, User.gone_at) == [("alice", None), ("bob", None)]
    assert len(site.rows(Association.id)) == 4


def test_an_account_that_is_gone_is_marked_too(site: Site) -> None:
    site.tell(at(0))
    site.tell(at(5), People(PEOPLE.associations[:1], ()), (ROOT,))
    assert site.rows(Account.name, Account.gone_at) == [("root", None), ("vision", at(5))]
    assert site.who() == [("root", None)]


def test_people_of_another_cluster_are_left_alone(site: Site) -> None:
    other = Cluster(name="basalt", simulated=False, created_at=at(0))
    site.session.add(other)
    site.session.flush()
    site.tell(at(0))
    service.apply_people(site.session, other.id, People((), ()), at(5), complete=True)
    assert site.rows(User.name, User.gone_at) == [("alice", None), ("bob", None)]
    assert len(site.who()) == 4


def test_the_fair_share_is_told_of_accounts_before_their_users(site: Site) -> None:
    site.tell(at(0))
    assert site.who() == [("root", None), ("vision", None), ("vision", "alice"), ("vision", "bob")]
    alice = site.shares()[2]
    assert alice == AssociationShare(
        account="vision", user="alice", partition="", parent=None, raw_shares=10,
        norm_shares=0.25, raw_usage=41723, effective_usage=0.734523, fair_share=0.166667,
        level_fs=0.340357, changed_at=at(0),
    )  # fmt: skip
    assert [share.parent for share in site.shares()] == [None, "root", None, None]


def test_an_association_without_shares_yet_has_no_figures_and_not_zero(site: Site) -> None:
    site.tell(at(0), shares=())
    bob = site.shares()[3]
    assert (bob.norm_shares, bob.raw_usage, bob.changed_at) == (None, None, None)


def test_a_share_of_an_association_that_nobody_told_of_waits_for_it(site: Site) -> None:
    site.tell(at(0), shares=(ALICE, replace(ALICE, user="new")))
    assert ("vision", "new") not in site.who()
    assert len(site.rows(Share.at)) == 1


def test_what_does_not_change_is_not_written_again(site: Site) -> None:
    for minute in range(0, 600, 5):
        site.tell(at(minute))
    assert site.rows(Share.at) == [(at(0),)] * 4


def test_of_many_changes_in_an_hour_the_last_is_kept(site: Site) -> None:
    # T0 is 9:00; usage grows with every poll from then to 11:25.
    for minute in range(0, 150, 5):
        site.tell(at(minute), shares=(replace(ALICE, raw_usage=minute),))
    assert site.rows(Share.hour, Share.at, Share.raw_usage) == [
        (at(0), at(55), 55),
        (at(60), at(115), 115),
        (at(120), at(145), 145),
    ]


def test_the_history_begins_with_what_held_then(site: Site) -> None:
    for minute in (0, 70, 130):
        site.tell(at(minute), shares=(replace(ALICE, raw_usage=minute),))

    assert (site.shares()[2].raw_usage, site.shares()[2].changed_at) == (130, at(130))

    def told(since: datetime) -> list[tuple[datetime, int | None]]:
        return [(point.at, point.raw_usage) for point in site.history("alice", since).points]

    assert told(at(0)) == [(at(0), 0), (at(70), 70), (at(130), 130)]
    assert told(at(69)) == [(at(0), 0), (at(70), 70), (at(130), 130)]
    assert told(at(70)) == [(at(70), 70), (at(130), 130)]
    assert told(at(500)) == [(at(130), 130)]
    assert told(at(-5)) == [(at(0), 0), (at(70), 70), (at(130), 130)]


def test_the_history_of_who_is_gone_stays_and_says_when_it_ended(site: Site) -> None:
    site.tell(at(0))
    site.tell(at(5), People(PEOPLE.associations[:2], ()), ())
    found = site.history("alice", at(0))
    assert (found.gone_at, [point.at for point in found.points]) == (at(5), [at(0)])


def test_the_account_has_a_history_of_its_own(site: Site) -> None:
    site.tell(at(0))
    [point] = site.history(None, at(0)).points
    assert (point.norm_shares, point.fair_share) == (0.7, None)


def test_one_partition_of_a_user_is_apart_from_all_others(site: Site) -> None:
    debug = AssociationRecord("vision", "alice", None, 3, "debug")
    share = replace(ALICE, partition="debug", raw_shares=3, fair_share=0.9)
    site.tell(at(0), People((*PEOPLE.associations, debug), PEOPLE.users), (*SHARES, share))
    mine = [one for one in site.shares() if one.user == "alice"]
    assert [(one.partition, one.raw_shares, one.fair_share) for one in mine] == [
        ("", 10, 0.166667), ("debug", 3, 0.9),
    ]  # fmt: skip
    found = service.share_history(site.session, ADMIN, "granite", "vision", "alice", at(0), "debug")
    assert [point.fair_share for point in found.points] == [0.9]


def test_an_infinite_level_is_not_an_unknown_one(site: Site) -> None:
    site.tell(at(0), shares=(IDLE, BOB))
    site.tell(at(5), shares=(IDLE, BOB))
    alice, bob = site.shares()[2:]
    assert (alice.level_fs, bob.level_fs) == (math.inf, None)
    assert site.rows(Share.at) == [(at(0),), (at(0),)]
    assert alice.model_dump(mode="json")["level_fs"] == "Infinity"
    assert bob.model_dump(mode="json")["level_fs"] is None
    assert AssociationShare.model_validate_json(alice.model_dump_json()) == alice


@pytest.mark.parametrize(
    ("principal", "seen"),
    [
        (Principal("sue", "support"), 4),
        (Principal("alice", "researcher"), 1),
        (Principal("eve", "researcher"), 0),
        (Principal("", "researcher"), 0),
        (Principal("eve", "manager", frozenset({"vision"})), 3),
        (Principal("", "manager", frozenset({"vision"})), 3),
        (Principal("alice", "manager", frozenset({"bio"})), 1),
    ],
)
def test_a_person_sees_themselves_and_the_accounts_they_look_after(
    site: Site, principal: Principal, seen: int
) -> None:
    site.tell(at(0))
    assert len(site.who(principal)) == seen


def test_what_may_not_be_seen_has_no_history(site: Site) -> None:
    site.tell(at(0))
    alice = Principal("alice", "researcher")
    assert site.history("alice", at(0), alice).user == "alice"
    for user in ("bob", None, "nobody"):
        with pytest.raises(NotFound, match="on cluster granite"):
            site.history(user, at(0), alice)


def test_hostile_names_are_stored_and_found_again(site: Site) -> None:
    name = "nul\0 half \ud800 <b>|\n" + "x" * 2000
    record = AssociationRecord(name, name, name, 1, name)
    people = People((record, replace(record, user=None)), (UserRecord(name, "None", (name,)),))
    share = ShareRecord(name, name, name, 1, 0.5)
    site.tell(at(0), people, (share,))
    site.tell(at(5), people, (share,))
    assert [share.norm_shares for share in site.shares()] == [None, 0.5]
    assert site.rows(Share.at) == [(at(0),)]


def test_five_thousand_associations_are_told_at_once(site: Site) -> None:
    records = [AssociationRecord("vision", f"user{number}", None, 1) for number in range(5000)]
    shares = [ShareRecord("vision", record.user, "", 1, 0.1, 5) for record in records]
    users = tuple(UserRecord(record.user or "") for record in records)
    site.tell(at(0), People(tuple(records), users), shares)
    assert site.session.scalar(select(func.count()).select_from(Share)) == 5000


def test_an_unknown_cluster_is_not_found(site: Site) -> None:
    with pytest.raises(NotFound):
        service.fair_share(site.session, ADMIN, "basalt")


@pytest.fixture
def http(house: House) -> TestClient:
    """A visitor of a server that was told of shares at 9:00 and of nothing at 9:20."""
    with house.database.session() as session:
        world = World(session)
        Site(world).tell(at(0), shares=(VISION, IDLE))
        world.add(
            SchedulerSource(
                cluster_id=world.cluster.id,
                kind=service.SLURM_SHARES,
                last_success_at=at(15),
                error="sshare: no answer within 30 s",
                error_since=at(20),
            )
        )
        world.add(SchedulerSource(cluster_id=world.cluster.id, kind="slurm", error="other"))
    app = create_app(replace(house, clock=lambda: at(25)))
    return TestClient(app, base_url="http://localhost")


def test_the_endpoint_tells_the_shares_and_why_they_are_old(http: TestClient) -> None:
    answer = http.get("/api/v1/fair-share", params={"cluster": "granite"})
    found = FairShare.model_validate(answer.json())
    assert (found.told_at, found.error_since) == (at(15), at(20))
    assert found.error == "sshare: no answer within 30 s"
    assert [share["level_fs"] for share in answer.json()["shares"]] == [
        None, 0.835253, "Infinity", None,
    ]  # fmt: skip


def test_a_cluster_that_never_told_of_shares_says_so(house: House) -> None:
    with house.database.session() as session:
        World(session)
    http = TestClient(create_app(house), base_url="http://localhost")
    answer = http.get("/api/v1/fair-share", params={"cluster": "granite"})
    assert answer.json() == {
        "cluster": "granite", "told_at": None, "error": None, "error_since": None, "shares": [],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("query", "status", "points"),
    [
        ({"account": "vision", "user": "alice"}, 200, 1),
        ({"account": "vision"}, 200, 1),
        ({"account": "vision", "user": "bob"}, 200, 0),
        ({"account": "vision", "user": "eve"}, 404, 0),
        ({"account": "vision", "user": "nul\0"}, 422, 0),
        ({"account": "vision", "days": "0"}, 422, 0),
        ({}, 422, 0),
    ],
)
def test_the_endpoint_of_the_history(
    http: TestClient, query: dict[str, str], status: int, points: int
) -> None:
    answer = http.get("/api/v1/fair-share/history", params={"cluster": "granite", **query})
    assert answer.status_code == status
    if status == 200:
        assert len(ShareHistory.model_validate(answer.json()).points) == points


def test_days_reach_back_from_now(house: House) -> None:
    with house.database.session() as session:
        site = Site(World(session))
        for day in range(4):
            site.tell(at(0) + timedelta(day), shares=(replace(ALICE, raw_usage=day),))
    now = at(5) + timedelta(days=3)
    http = TestClient(create_app(replace(house, clock=lambda: now)), base_url="http://localhost")
    query = {"cluster": "granite", "account": "vision", "user": "alice", "days": "1"}
    answer = http.get("/api/v1/fair-share/history", params=query)
    assert [point["raw_usage"] for point in answer.json()["points"]] == [2, 3]


def test_of_shares_older_than_ninety_days_the_last_of_each_day_is_left(
    house: House, database: Database
) -> None:
    hours = [*range(0, 72, 6), 71]  # from 9:00 on: two whole days lie between two parts of some
    with database.session() as session:
        site = Site(World(session))
        for number, hour in enumerate(hours):
            site.tell(at(60 * hour), shares=[replace(ALICE, raw_usage=number)])
    old = at(60 * 24 * 90 + 60 * 48 + 1)  # two days of them are older than ninety
    service.thin_shares(replace(house, clock=lambda: old))
    with database.session() as session:
        left = session.scalars(select(Share.hour).order_by(Share.hour)).all()
    # 9:00, 15:00, 21:00 | 3:00 to 21:00 | 3:00, 9:00 and, young enough, the rest.
    assert left == [at(60 * hour) for hour in (12, 36, 54, 60, 66, 71)]
