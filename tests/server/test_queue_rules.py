"""Partitions and QOS: polled, kept until they are told no more, and shown to everybody."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import select
from starlette.testclient import TestClient

from flopwatch_server.app import create_app
from flopwatch_server.house import House, NotFound
from flopwatch_server.scheduler import service
from flopwatch_server.scheduler.models import Qos
from flopwatch_server.scheduler.records import SchedulerError
from flopwatch_server.scheduler.slurm import Slurm
from flopwatch_server.settings import Settings
from flopwatch_server.work.poll import SlurmPoll
from flopwatch_server.work.schedule import periodic_tasks
from tests.server.world import T0

GPU = "PartitionName=gpu State=UP Default=YES MaxTime=2-00:00:00 QoS=high PreemptMode=OFF\n"
DEBUG = "PartitionName=debug State=UP Default=NO MaxTime=UNLIMITED QoS=N/A PreemptMode=OFF\n"
HIGH = "high|100|normal|requeue|2.500000|12:00:00|gres/gpu=16\n"
NORMAL = "normal|0||cluster|1.000000||\n"
REFUSED = SchedulerError("sacctmgr: exit status 1: Connection refused")


class Site:
    """A poll of a Slurm whose commands print what the test wants, and a clock that it moves."""

    def __init__(self, house: House) -> None:
        self.now = T0
        self.answers: dict[str, str | SchedulerError] = {
            "scontrol": GPU + DEBUG, "sacctmgr": NORMAL + HIGH,
        }  # fmt: skip
        self.house = replace(house, clock=lambda: self.now)
        self.poll = SlurmPoll("granite", Slurm("granite", run=self._run))

    def _run(self, command: Sequence[str], environment: Mapping[str, str], deadline: float) -> str:
        answer = self.answers[command[0]]
        if isinstance(answer, SchedulerError):
            raise answer
        return answer

    def read(self, minute: int) -> None:
        self.now = T0 + timedelta(minutes=minute)
        self.poll.read_queue_rules(self.house)

    def partitions(self) -> dict[str, Any]:
        with self.house.database.session() as session:
            return service.partitions(session, "granite").model_dump()

    def qos(self) -> dict[str, Any]:
        with self.house.database.session() as session:
            return service.qos(session, "granite").model_dump()


@pytest.fixture
def site(house: House) -> Site:
    return Site(house)


def test_a_poll_brings_partitions_with_their_limits(site: Site) -> None:
    site.read(0)
    limits = {"state": "UP", "preempt_mode": "OFF"}
    assert site.partitions() == {
        "cluster": "granite", "told_at": T0, "error": None, "error_since": None,
        "partitions": [
            {"name": "debug", "is_default": False, "max_time_seconds": None, "qos": None, **limits},
            {"name": "gpu", "is_default": True, "max_time_seconds": 172800, "qos": "high",
             **limits},
        ],
    }  # fmt: skip


def test_a_poll_brings_qos_the_highest_first(site: Site) -> None:
    site.read(0)
    assert site.qos()["qos"] == [
        {"name": "high", "priority": 100, "preempts": ["normal"], "preempt_mode": "REQUEUE",
         "usage_factor": 2.5, "max_wall_seconds": 43200, "max_gpus_per_user": 16,
         "first_told_at": T0},
        {"name": "normal", "priority": 0, "preempts": [], "preempt_mode": "CLUSTER",
         "usage_factor": 1.0, "max_wall_seconds": None, "max_gpus_per_user": None,
         "first_told_at": T0},
    ]  # fmt: skip


def test_without_slurmdbd_the_qos_stay_as_told_and_partitions_are_known(site: Site) -> None:
    site.read(0)
    before = site.qos()["qos"]
    site.answers["sacctmgr"] = REFUSED
    site.answers["scontrol"] = GPU
    site.read(10)
    qos, partitions = site.qos(), site.partitions()
    assert (qos["qos"], qos["told_at"], qos["error"]) == (before, T0, str(REFUSED))
    assert qos["error_since"] == T0 + timedelta(minutes=10)
    assert [one["name"] for one in partitions["partitions"]] == ["gpu"]
    assert (partitions["told_at"], partitions["error"]) == (T0 + timedelta(minutes=10), None)


def test_what_is_told_no_more_is_gone_and_comes_back_with_its_first_time(site: Site) -> None:
    site.read(0)
    site.answers["sacctmgr"] = NORMAL
    site.read(10)
    site.read(20)
    assert [one["name"] for one in site.qos()["qos"]] == ["normal"]
    with site.house.database.session() as session:
        high = session.scalars(select(Qos).where(Qos.name == "high")).one()
        assert high.gone_at == T0 + timedelta(minutes=10)
    site.answers["sacctmgr"] = NORMAL + HIGH.replace("|100|", "|7|")
    site.read(30)
    (high_again, _) = site.qos()["qos"]
    assert (high_again["priority"], high_again["first_told_at"]) == (7, T0)


def test_a_cluster_left_without_partitions_has_none(site: Site) -> None:
    site.read(0)
    site.answers["scontrol"] = "No partitions in the system\n"
    site.read(10)
    assert site.partitions()["partitions"] == []


def test_before_any_answer_nothing_is_known_and_no_cluster_is_not_there(site: Site) -> None:
    site.answers = dict.fromkeys(site.answers, REFUSED)
    site.read(0)
    assert (site.partitions()["told_at"], site.qos()["told_at"]) == (None, None)
    with site.house.database.session() as session, pytest.raises(NotFound):
        service.partitions(session, "basalt")


@pytest.mark.parametrize("what", ["partitions", "qos"])
def test_the_endpoint_tells_it_of_a_cluster_that_there_is(site: Site, what: str) -> None:
    site.read(0)
    http = TestClient(create_app(site.house), base_url="http://localhost")
    answer = http.get(f"/api/v1/{what}", params={"cluster": "granite"})
    assert answer.status_code == 200
    assert len(answer.json()[what]) == 2
    assert http.get(f"/api/v1/{what}", params={"cluster": "basalt"}).status_code == 404


def test_a_server_that_speaks_for_slurm_asks_every_ten_minutes() -> None:
    tasks = {task.name: task for task in periodic_tasks(Settings(slurm_cluster="granite"))}
    assert tasks["slurm queue rules"].period_seconds == 600
    assert "slurm queue rules" not in {task.name for task in periodic_tasks(Settings())}
