"""What waits: why, in classes, and for how many GPUs."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
from starlette.testclient import TestClient

from flopwatch_server.access.principal import Principal
from flopwatch_server.app import create_app
from flopwatch_server.database.engine import Database
from flopwatch_server.house import House, NotFound
from flopwatch_server.jobs.pending import pending_class
from flopwatch_server.jobs.schemas import WaitingDemand, WaitingGroup
from flopwatch_server.jobs.waiting import waiting_demand
from flopwatch_server.scheduler.models import SchedulerSource
from tests.server.world import ADMIN, World, at


@pytest.fixture
def world(database: Database) -> Iterator[World]:
    with database.session() as session:
        yield World(session)


def waits(world: World, raw_job_id: int, reason: str = "Resources", **columns: object) -> None:
    world.run(raw_job_id, start=None, reason=reason, **columns)


def groups(world: World, principal: Principal = ADMIN) -> list[WaitingGroup]:
    return waiting_demand(world.session, principal, "granite").groups


# Each word as Slurm's page Job Reason Codes tells it, and what squeue shows beside such words.
@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("Resources", "resources"),
        ("ReqNodeNotAvail", "resources"),
        ("ReqNodeNotAvail, UnavailableNodes:gpu[1-3],login1", "resources"),
        ("ReqNodeNotAvail, Reserved for maintenance", "resources"),
        ("ReqNodeNotAvail(Unavailable:gpu1)", "resources"),
        ("Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority "
         "partitions", "resources"),
        ("Nodes_required_for_job_are_DOWN,_DRAINED_or_reserved_for_jobs", "resources"),
        ("NodeDown", "resources"),
        ("Licenses", "resources"),
        ("BurstBufferResources", "resources"),
        ("Priority", "priority"),
        ("AssocGrpGRES", "limit"),
        ("AssocGrpCpuLimit", "limit"),
        ("AssocGrpGRESRunMinutes", "limit"),
        ("AssocMaxJobsLimit", "limit"),
        ("AssocMaxWallDurationPerJobLimit", "limit"),
        ("AssociationResourceLimit", "limit"),
        ("QOSMaxGRESPerUser", "limit"),
        ("QOSGrpNodeLimit", "limit"),
        ("QOSMinGRES", "limit"),
        ("QOSJobLimit", "limit"),
        ("QOSUsageThreshold", "limit"),
        ("MaxGRESPerAccount", "limit"),
        ("MaxMemPerLimit", "limit"),
        ("PartitionTimeLimit", "limit"),
        ("PartitionNodeLimit", "limit"),
        ("JobArrayTaskLimit", "limit"),
        ("AccountingPolicy", "limit"),
        ("Dependency", "dependency"),
        ("DependencyNeverSatisfied", "dependency"),
        ("QOSNotAllowed", "other"),
        ("AccountNotAllowed", "other"),
        ("InvalidQOS", "other"),
        ("BadConstraints", "other"),
        ("BeginTime", "other"),
        ("JobHeldUser", "other"),
        ("JobHeldAdmin", "other"),
        ("JobHoldMaxRequeue", "other"),
        ("PartitionDown", "other"),
        ("Reservation", "other"),
        ("BurstBufferStageIn", "other"),
        ("InactiveLimit", "other"),
        ("TimeLimit", "other"),
        ("launch failed requeued held", "other"),
        ("Not Running: Insufficient amount of resource: ngpus", "other"),
        ("Prioritätsstufe", "other"),
        ("", "other"),
    ],
)  # fmt: skip
def test_a_reason_has_a_class(reason: str, expected: str) -> None:
    assert pending_class(reason) == expected


def test_waiting_runs_are_counted_by_class_and_account(world: World) -> None:
    waits(world, 1, gpu_count=4)
    waits(world, 2, gpu_count=8)
    waits(world, 3, "Priority", gpu_count=2)
    waits(world, 4, account="bio", gpu_count=1)
    assert groups(world) == [
        WaitingGroup(pending_class="priority", account="nlp", runs=1, tasks=1, gpus=2),
        WaitingGroup(pending_class="resources", account="bio", runs=1, tasks=1, gpus=1),
        WaitingGroup(pending_class="resources", account="nlp", runs=2, tasks=2, gpus=12),
    ]


def test_a_run_whose_gpus_nobody_told_is_counted_apart_and_one_without_any_not_at_all(
    world: World,
) -> None:
    waits(world, 1, gpu_count=None)
    waits(world, 2, gpu_count=0)
    assert groups(world) == [
        WaitingGroup(pending_class="resources", account="nlp", runs=1, tasks=1, unknown_runs=1)
    ]


def test_every_task_of_an_array_that_waits_asks_for_its_gpus(world: World) -> None:
    waits(world, 123, "JobArrayTaskLimit", display_id="123_[4-9%2]", array_job_id=123, gpu_count=2)
    waits(world, 124, "Priority", display_id="123_3", array_job_id=123, array_task_id=3)
    assert groups(world) == [
        WaitingGroup(pending_class="limit", account="nlp", runs=1, tasks=6, gpus=12),
        WaitingGroup(pending_class="priority", account="nlp", runs=1, tasks=1, gpus=1),
    ]


def test_an_array_whose_list_was_cut_short_asks_for_nobody_knows_how_many(world: World) -> None:
    waits(world, 5, display_id="5_[1,3,5,...%4]", array_job_id=5, gpu_count=8)
    waits(world, 6, gpu_count=3)
    assert groups(world) == [
        WaitingGroup(
            pending_class="resources", account="nlp", runs=2, tasks=1, gpus=3, unknown_runs=1
        )
    ]


def test_what_runs_is_over_or_has_left_the_queue_does_not_wait(world: World) -> None:
    world.run(1)
    waits(world, 2, state="CANCELLED", ended_at=at(1))
    waits(world, 3, vanished_at=at(1))
    waits(world, 4, state="REQUEUE_HOLD", reason="JobHeldUser")
    assert [(group.pending_class, group.runs) for group in groups(world)] == [("other", 1)]


def test_a_person_is_told_of_the_demand_of_the_runs_they_may_see(world: World) -> None:
    waits(world, 1)
    waits(world, 2, user_name="bo", account="bio")

    def accounts(principal: Principal) -> list[str]:
        return [group.account for group in groups(world, principal)]

    assert accounts(Principal("sue", "support")) == ["bio", "nlp"]
    assert accounts(Principal("bo", "researcher")) == ["bio"]
    assert accounts(Principal("max", "manager", frozenset({"nlp"}))) == ["nlp"]
    assert accounts(Principal("eve", "researcher")) == []


def test_it_says_when_jobs_were_told_of_last_or_that_they_never_were(world: World) -> None:
    assert waiting_demand(world.session, ADMIN, "granite").told_at is None
    for kind, told_at in (("slurm", at(1)), ("feed", at(0)), ("slurm shares", at(5))):
        world.add(SchedulerSource(cluster_id=world.cluster.id, kind=kind, last_success_at=told_at))
    assert waiting_demand(world.session, ADMIN, "granite").told_at == at(1)


def test_an_unknown_cluster_is_not_found(world: World) -> None:
    with pytest.raises(NotFound):
        waiting_demand(world.session, ADMIN, "basalt")


def test_the_endpoint_tells_what_waits(house: House) -> None:
    with house.database.session() as session:
        waits(World(session), 1, gpu_count=4)
    http = TestClient(create_app(replace(house, clock=lambda: at(1))), base_url="http://localhost")
    answer = http.get("/api/v1/waiting", params={"cluster": "granite"})
    assert WaitingDemand.model_validate(answer.json()).groups == [
        WaitingGroup(pending_class="resources", account="nlp", runs=1, tasks=1, gpus=4)
    ]
    assert http.get("/api/v1/waiting", params={"cluster": "basalt"}).status_code == 404
