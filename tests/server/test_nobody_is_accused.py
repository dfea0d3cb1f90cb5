"""What nobody can know of a GPU's holder is unknown: it is never called the holder's idleness."""

from collections.abc import Iterator

import pytest

from flopwatch_server.database.engine import Database
from flopwatch_server.efficiency import service
from flopwatch_server.efficiency.schemas import StateSeconds
from flopwatch_server.jobs.models import Run
from tests.server.world import ADMIN, T0, World, at

NOW = at(10, 20)


@pytest.fixture
def world(database: Database) -> Iterator[World]:
    with database.session() as session:
        yield World(session)


def idle_now(world: World) -> list[str]:
    found = service.allocations(world.session, ADMIN, "granite", "idle", NOW)
    return [allocation.job_id for allocation in found]


def seconds(world: World, run: Run) -> StateSeconds:
    return service.run_efficiency(world.session, world.view(run, NOW), NOW).state_seconds


def test_a_gpu_that_the_scheduler_says_one_run_holds_alone_is_its_own(world: World) -> None:
    node = world.node()
    device = world.gpu(node, 0)
    world.hold(world.run(), node, device)
    world.minutes(device, T0, "IIIIIIIIII")
    assert idle_now(world) == ["100"]


@pytest.mark.parametrize("second_start", [0, 4])
def test_of_a_gpu_that_two_runs_are_said_to_hold_neither_is_idle(
    world: World, second_start: int
) -> None:
    node = world.node()
    device = world.gpu(node, 0)
    first, second = world.run(100), world.run(101, start=at(second_start))
    world.hold(first, node, device)
    world.hold(second, node, device)
    world.minutes(device, T0, "IIIIIIIIII")
    assert idle_now(world) == []
    alone = second_start * 60
    assert seconds(world, first) == StateSeconds(idle=alone, unknown=620 - alone)
    assert seconds(world, second) == StateSeconds(unknown=620 - alone)


def test_the_next_holder_counts_from_when_the_last_one_has_gone(world: World) -> None:
    node = world.node()
    device = world.gpu(node, 0)
    first = world.run(100, vanished_at=at(6))  # the queue was read late
    second = world.run(101, start=at(5))
    world.hold(first, node, device, end=at(6))
    world.hold(second, node, device)
    world.minutes(device, T0, "AAAAAIAIII")
    assert seconds(world, first) == StateSeconds(active=300, unknown=60)
    assert seconds(world, second) == StateSeconds(active=60, idle=180, unknown=80)
    [row] = service.allocations(world.session, ADMIN, "granite", "idle", NOW)
    assert (row.job_id, row.since) == ("101", at(7))


@pytest.mark.parametrize("state", ["SUSPENDED", "STOPPED", "CONFIGURING", "COMPLETING"])
def test_a_run_whose_processes_may_not_work_is_not_idle_now(world: World, state: str) -> None:
    node = world.node()
    device = world.gpu(node, 0)
    world.hold(world.run(state=state), node, device)
    world.minutes(device, T0, "IIIIIIIIII")
    assert idle_now(world) == []
    [held] = service.allocations(world.session, ADMIN, "granite", None, NOW)
    assert (held.state, held.since) == ("unknown", None)


def test_a_device_that_a_strangers_process_uses_accuses_nobody(world: World) -> None:
    node = world.node()
    device = world.gpu(node, 0)
    run = world.run()
    world.hold(run, node, device, confidence="disputed")
    world.minutes(device, T0, "IIIIIIIIII")
    assert idle_now(world) == []
    assert seconds(world, run) == StateSeconds(unknown=620)
