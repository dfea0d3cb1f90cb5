"""Jobs, allocations and the overview over HTTP, through the whole application."""

from dataclasses import replace
from datetime import datetime
from typing import cast

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from flopwatch_server.access.principal import Principal, Role
from flopwatch_server.app import create_app
from flopwatch_server.efficiency.schemas import (
    GpuTime,
    JobDetail,
    JobMfu,
    JobPage,
    Overview,
    RunSeries,
)
from flopwatch_server.house import House, get_principal
from flopwatch_server.scheduler.models import SchedulerSource
from flopwatch_server.telemetry.models import DeviceEvent, DeviceSource
from tests.server.world import T0, World, at

NOW = at(3, 20)
ZERO = int(T0.timestamp())


@pytest.fixture
def http(house: House) -> TestClient:
    """A visitor of a server with two running jobs: one on an idle GPU, one of another user."""
    with house.database.session() as session:
        world = World(session)
        cluster_id = world.cluster.id
        world.add(SchedulerSource(cluster_id=cluster_id, kind="feed", last_success_at=T0))
        node = world.node()
        device, other = world.gpus(node, 2)
        run = world.run(100)
        world.hold(run, node, device, 0)
        world.hold(world.run(101, user_name="bo", display_id="90_1"), node, other, 1)
        world.minutes(device, T0, "III", sm_active=0.0)
        world.samples(device, [at(3), at(3, 10)], sm_active=0.0)
        world.add(DeviceSource(device_id=device.id, valid_from=T0, name="gpm", period_seconds=1.0,
                               passed_over={}))  # fmt: skip
        for one, xid in ((device, 79), (other, 31)):
            world.add(DeviceEvent(device_id=one.id, at=at(1), kind="xid", value=xid, detail=""))
        world.report(run, node, at(1), {"bfloat16": 989.5e12 * 6}, 20.0)

    def clock() -> datetime:
        return NOW

    app = create_app(replace(house, clock=clock))
    return TestClient(app, base_url="http://localhost", raise_server_exceptions=False)


@pytest.mark.parametrize("role", ["admin", "researcher"])
def test_gpu_time_adds_up_to_the_time_that_the_gpus_were_there(
    http: TestClient, role: Role
) -> None:
    cast(FastAPI, http.app).dependency_overrides[get_principal] = lambda: Principal("zoe", role)
    window = {"cluster": "granite", "from": T0.isoformat(), "to": at(60).isoformat()}
    found = GpuTime.model_validate(http.get("/api/v1/gpu-time", params=window).json())
    assert (found.start, found.end) == (T0, NOW)
    assert (found.seconds.allocated, sum(found.seconds.model_dump().values())) == (400, 400)
    assert [(each.node, each.seconds.allocated) for each in found.nodes] == [("g1", 400)]


@pytest.mark.parametrize(
    ("window", "status"),
    [
        ({"cluster": "basalt", "from": T0.isoformat(), "to": at(60).isoformat()}, 404),
        ({"cluster": "granite", "from": T0.isoformat(), "to": T0.isoformat()}, 422),
        ({"cluster": "granite", "from": T0.isoformat(), "to": at(31 * 1440 + 1).isoformat()}, 422),
        ({"cluster": "granite", "from": "2026-03-12T09:00:00", "to": at(60).isoformat()}, 422),
        ({"cluster": "granite", "to": at(60).isoformat()}, 422),
    ],
    ids=["no such cluster", "empty", "too long", "no time zone", "no start"],
)
def test_a_window_of_gpu_time_must_be_one(
    http: TestClient, window: dict[str, str], status: int
) -> None:
    assert http.get("/api/v1/gpu-time", params=window).status_code == status


def as_researcher(http: TestClient, name: str) -> TestClient:
    app = cast(FastAPI, http.app)
    app.dependency_overrides[get_principal] = lambda: Principal(name, "researcher")
    return http


def test_jobs_give_one_block_of_the_list(http: TestClient) -> None:
    answer = http.get("/api/v1/jobs", params={"users": ["mchen"], "sort": "-elapsed", "limit": 5})
    found = JobPage.model_validate(answer.json())
    assert [(row.job_id, row.state_now) for row in found.rows] == [("100", "idle")]


def test_a_job_gives_all_that_is_known_of_it(http: TestClient) -> None:
    found = JobDetail.model_validate(http.get("/api/v1/jobs/granite/100").json())
    assert (found.run.user, found.efficiency.state_seconds.idle) == ("mchen", 180)
    assert found.mfu is not None
    assert found.mfu.train_mfu == pytest.approx(0.3)
    assert [device.state_now for device in found.devices] == ["idle"]
    assert [(use.name, use.gpus) for use in found.quality.sources] == [("gpm", 1)]
    assert [(event.place, event.value) for event in found.quality.events] == [("g1:0", 79)]


def test_a_series_covers_the_whole_run_unless_told_otherwise(http: TestClient) -> None:
    path = "/api/v1/jobs/granite/100/series"
    whole = RunSeries.model_validate(http.get(path, params={"metrics": "sm_active"}).json())
    assert (whole.start, whole.end, len(whole.times)) == (ZERO, ZERO + 200, 20)
    window = {"metrics": "sm_active,power_watts", "from": at(3).isoformat(), "to": ZERO + 190}
    part = RunSeries.model_validate(http.get(path, params=window).json())
    assert part.devices[0].values == {"sm_active": [0.0], "power_watts": [None]}


def test_mfu_comes_with_its_minutes(http: TestClient) -> None:
    found = JobMfu.model_validate(http.get("/api/v1/jobs/granite/100/mfu").json())
    assert [(point.time, point.train_mfu) for point in found.series] == [
        (ZERO + 60, pytest.approx(0.3))
    ]


def test_allocations_give_idle_gpus(http: TestClient) -> None:
    answer = http.get("/api/v1/allocations", params={"cluster": "granite", "state": "idle"})
    assert [(row["job_id"], row["since"]) for row in answer.json()] == [
        ("100", "2026-03-12T09:00:00Z")
    ]


def test_the_overview_counts_the_cluster(http: TestClient) -> None:
    answer = http.get("/api/v1/overview", params={"cluster": "granite", "window_hours": 2})
    found = Overview.model_validate(answer.json())
    assert (found.allocated, len(found.history)) == (2, 12)


@pytest.mark.parametrize("tail", ["", "/series?metrics=sm_active", "/mfu"])
def test_a_job_that_may_not_be_seen_does_not_exist(http: TestClient, tail: str) -> None:
    visitor = as_researcher(http, "bo")
    assert visitor.get(f"/api/v1/jobs/granite/90_1{tail}").status_code == 200
    hidden = visitor.get(f"/api/v1/jobs/granite/100{tail}")
    missing = visitor.get(f"/api/v1/jobs/granite/999{tail}")
    assert (hidden.status_code, missing.status_code) == (404, 404)
    assert hidden.json()["detail"].replace("100", "999") == missing.json()["detail"]


def test_a_researcher_lists_only_their_own(http: TestClient) -> None:
    visitor = as_researcher(http, "bo")
    assert [row["user"] for row in visitor.get("/api/v1/jobs").json()["rows"]] == ["bo"]
    assert [row["user"] for row in visitor.get("/api/v1/allocations").json()] == ["bo"]


@pytest.mark.parametrize(
    ("path", "parameter"),
    [
        ("jobs?sort=colour", "sort"),
        ("jobs?limit=201", "limit"),
        ("jobs?colour=red", "colour"),
        ("jobs?text=a%00b", "text"),
        ("jobs?states=RUNNING&states=SLEEPING", "states"),
        ("jobs/granite/1%00", "job_id"),
        ("jobs/granite/100/series", "metrics"),
        ("jobs/granite/100/series?metrics=sm_active,colour", "metrics"),
        ("jobs/granite/100/series?metrics=sm_active&from=yesterday", "from"),
        ("jobs/granite/100/series?metrics=sm_active&from=2026-03-12T09:00:00", "from"),
        ("jobs/granite/100/series?metrics=sm_active&from=0001-01-01T00:00:00Z", "from"),
        ("jobs/granite/100/series?metrics=sm_active&to=2026-03-12T08:00:00Z", "to"),
        ("jobs/granite/100/mfu?to=9999-01-01T00:00:00Z", "to"),
        ("allocations?state=sleeping", "state"),
        ("overview?cluster=granite&window_hours=169", "window_hours"),
        ("overview", "cluster"),
    ],
)
def test_a_wrong_value_is_refused_by_the_name_of_its_parameter(
    http: TestClient, path: str, parameter: str
) -> None:
    answer = http.get(f"/api/v1/{path}")
    assert answer.status_code == 422
    assert answer.json()["detail"][0]["loc"][-1] == parameter


def test_an_unknown_cluster_is_not_found(http: TestClient) -> None:
    assert http.get("/api/v1/overview?cluster=basalt").status_code == 404
    assert http.get("/api/v1/jobs/basalt/100").status_code == 404
    assert http.get("/api/v1/jobs?cluster=basalt").status_code == 404


def test_a_state_that_no_job_can_have_is_refused_with_those_that_there_are(
    http: TestClient,
) -> None:
    [error] = http.get("/api/v1/jobs?states=DONE").json()["detail"]
    assert error["msg"].startswith("no such state: DONE; there are BOOT_FAIL, CANCELLED, COMPLETED")
    for state in ("COMPLETED", "UNKNOWN"):
        assert http.get(f"/api/v1/jobs?states={state}").json()["rows"] == []
