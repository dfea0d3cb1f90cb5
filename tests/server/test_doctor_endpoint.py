"""The doctor over HTTP: what it tells the staff, and that it is not there for anybody else."""

from dataclasses import replace
from typing import Any, cast

import pytest
from fastapi import FastAPI
from sqlalchemy import update
from starlette.testclient import TestClient

from flopwatch_server.access.principal import Principal, Role
from flopwatch_server.app import create_app
from flopwatch_server.doctor.checks import CHECKS
from flopwatch_server.fleet.models import AgentEpoch
from flopwatch_server.house import House, get_principal
from flopwatch_server.scheduler.models import SchedulerSource
from tests.server.world import World, at

NOW = at(60)
WHERE = {"cluster": "granite"}


@pytest.fixture
def http(house: House) -> TestClient:
    """A visitor of a server with two agents, of which one is silent."""
    with house.database.session() as session:
        world = World(session)
        world.node("g1", last_batch_at=at(20))
        world.node("g2", last_batch_at=NOW)
        world.node("login1")
        world.add(
            SchedulerSource(cluster_id=world.cluster.id, kind="slurm", last_success_at=NOW,
                            version="22.05.8")
        )  # fmt: skip
        world.session.execute(update(AgentEpoch).values(capabilities={"cgroup": "v2"}))
    app = create_app(replace(house, clock=lambda: NOW))
    return TestClient(app, base_url="http://localhost")


def diagnosis(http: TestClient) -> dict[str, Any]:
    answer = http.get("/api/v1/doctor", params=WHERE)
    assert answer.status_code == 200
    return cast(dict[str, Any], answer.json())


def test_findings_come_with_what_to_do_and_with_the_check_that_found_them(http: TestClient) -> None:
    assert diagnosis(http)["findings"] == [
        {
            "check": "agents report",
            "severity": "fault",
            "what": "agents are silent on g1",
            "remedy": "look at 'systemctl status flopwatch-agent' there; nodes that are off are "
            "expected",
        }
    ]


def test_all_checks_are_listed_with_what_they_look_for(http: TestClient) -> None:
    found = diagnosis(http)
    assert len(found["checks"]) == len(CHECKS)
    assert found["checks"][0] == {
        "name": "scheduler answers",
        "looks_for": "Whether the scheduler is asked, and answers.",
        "findings": 0,
    }
    assert [check["name"] for check in found["checks"] if check["findings"]] == ["agents report"]


def test_it_says_what_it_looked_at_and_when(http: TestClient) -> None:
    found = diagnosis(http)
    assert (found["agents"], found["agents_reporting"]) == (2, 1)
    assert found["examined_at"] == "2026-03-12T10:00:00Z"
    assert [source["kind"] for source in found["sources"]] == ["slurm"]
    assert (found["version"], found["cgroups"]) == ("22.05.8", {"v2": 1})  # of those not silent


@pytest.mark.parametrize("role", ["manager", "researcher"])
@pytest.mark.parametrize("query", [WHERE, {}, {"cluster": "marble"}])
def test_for_others_than_staff_it_does_not_exist(
    http: TestClient, role: Role, query: dict[str, str]
) -> None:
    app = cast(FastAPI, http.app)
    app.dependency_overrides[get_principal] = lambda: Principal("bo", role)
    assert http.get("/api/v1/doctor", params=query).status_code == 404


def test_a_cluster_that_is_none_is_not_found_and_one_must_be_named(http: TestClient) -> None:
    assert http.get("/api/v1/doctor", params={"cluster": "marble"}).status_code == 404
    assert http.get("/api/v1/doctor").status_code == 422
