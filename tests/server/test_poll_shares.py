"""The periodic question for fair share: it is noted apart from the queue's."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from sqlalchemy import select

from flopwatch_server.access.visibility import ALL_STAFF
from flopwatch_server.house import House
from flopwatch_server.people.schemas import FairShare
from flopwatch_server.people.service import fair_share
from flopwatch_server.scheduler.models import SchedulerSource
from flopwatch_server.scheduler.records import SchedulerError
from flopwatch_server.scheduler.slurm import Slurm
from flopwatch_server.settings import Settings
from flopwatch_server.work.poll import SlurmPoll
from flopwatch_server.work.schedule import periodic_tasks
from tests.server.world import T0

ANSWERS = {
    "scontrol": "ClusterName = lab\n",
    "associations": "root||||1\nvision|root|||70\nvision||alice||10\n",
    "users": "alice|None|vision\n",
    "sshare": "root|||||67779|1.000000||\n"
    " vision|||70|0.700000|56803|0.838070||0.835253\n"
    "  vision|alice||10|0.250000|0|0.000000|1.000000|inf\n",
    "squeue": "",
    "sinfo": "",
}


class Site:
    """A poll of a Slurm whose commands print what the test wants, and a clock that it moves."""

    def __init__(self, house: House) -> None:
        self.now = T0
        self.answers: dict[str, str | SchedulerError] = dict(ANSWERS)
        self.house = replace(house, clock=lambda: self.now)
        self.poll = SlurmPoll("granite", Slurm("granite", run=self._run))

    def _run(self, command: Sequence[str], environment: Mapping[str, str], deadline: float) -> str:
        answer = self.answers[command[4] if command[0] == "sacctmgr" else command[0]]
        if isinstance(answer, SchedulerError):
            raise answer
        return answer

    def read(self, minute: int) -> None:
        self.now = T0 + timedelta(minutes=minute)
        self.poll.read_shares(self.house)

    def shown(self) -> FairShare:
        with self.house.database.session() as session:
            return fair_share(session, ALL_STAFF, "granite")

    def errors(self) -> dict[str, str | None]:
        with self.house.database.session() as session:
            return {one.kind: one.error for one in session.scalars(select(SchedulerSource))}


@pytest.fixture
def site(house: House) -> Site:
    return Site(house)


def told(shown: FairShare) -> list[tuple[str, str | None, int | None, datetime | None]]:
    return [(one.account, one.user, one.raw_usage, one.changed_at) for one in shown.shares]


def test_a_poll_brings_people_and_shares(site: Site) -> None:
    site.read(0)
    assert told(site.shown()) == [
        ("root", None, 67779, T0), ("vision", None, 56803, T0), ("vision", "alice", 0, T0),
    ]  # fmt: skip
    assert (site.shown().told_at, site.shown().error) == (T0, None)


@pytest.mark.parametrize(
    ("call", "error"),
    [
        ("associations", "sacctmgr: no such command"),
        ("users", "sacctmgr: exit status 1: Connection refused"),
        ("sshare", "sshare: exit status 1: priority/multifactor is not in use"),
        ("scontrol", "scontrol: no answer within 30 s"),
    ],
)
def test_without_an_answer_fair_share_is_not_known_and_says_why_while_the_queue_is(
    site: Site, call: str, error: str
) -> None:
    site.answers[call] = SchedulerError(error)
    site.read(0)
    site.poll.read_queue(site.house)
    assert site.errors() == {"slurm shares": error, "slurm": None}
    shown = site.shown()
    assert (shown.told_at, shown.error, shown.error_since, shown.shares) == (None, error, T0, [])


def test_a_queue_that_fails_hides_no_shares(site: Site) -> None:
    site.answers["squeue"] = SchedulerError("squeue: connection refused")
    site.read(0)
    site.poll.read_queue(site.house)
    assert site.errors() == {"slurm shares": None, "slurm": "squeue: connection refused"}
    assert len(site.shown().shares) == 3


def test_shares_stay_as_told_last_while_nobody_answers(site: Site) -> None:
    site.read(0)
    before = site.shown()
    site.answers["sshare"] = SchedulerError("sshare: no answer within 30 s")
    site.answers["associations"] = ""
    site.read(5)
    after = site.shown()
    assert (after.shares, after.told_at) == (before.shares, T0)
    assert after.error_since == T0 + timedelta(minutes=5)


def test_who_left_an_account_is_shown_no_more(site: Site) -> None:
    site.read(0)
    site.answers["associations"] = "root||||1\nvision|root|||70\n"
    site.answers["sshare"] = str(ANSWERS["sshare"]).rpartition("  vision")[0]
    site.read(5)
    assert [(one.account, one.user) for one in site.shown().shares] == [
        ("root", None), ("vision", None),
    ]  # fmt: skip


def test_a_server_that_speaks_for_slurm_asks_for_shares_every_five_minutes() -> None:
    def periods(cluster: str | None) -> dict[str, float]:
        tasks = periodic_tasks(Settings(slurm_cluster=cluster))
        return {task.name: task.period_seconds for task in tasks}

    assert periods("granite")["slurm shares"] == 300
    assert "slurm shares" not in periods(None)
