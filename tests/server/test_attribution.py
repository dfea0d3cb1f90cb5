"""Allocations get their devices, whichever is told first, and what agents see is weighed."""

from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from flopwatch_server.fleet.models import Device, Node, Placement
from flopwatch_server.house import House
from flopwatch_server.jobs.evidence.repository import weigh_processes
from flopwatch_server.jobs.models import Allocation, Evidence, Run
from flopwatch_server.work.schedule import attribute_devices
from tests.server.world import T0, World, at


def test_a_run_told_before_its_nodes_agent_reports_gets_its_device(house: House) -> None:
    with house.database.session() as session:
        world = World(session)
        node = world.node()
        world.hold(world.run(), node, None, confidence="unknown")
        device_id = world.gpu(node, 0).id
    attribute_devices(replace(house, clock=lambda: at(3)))
    with house.database.session() as session:
        found = session.execute(select(Allocation.device_id, Allocation.confidence)).one()
    assert tuple(found) == (device_id, "likely")


@pytest.mark.parametrize(
    ("held", "device"),
    [
        ({}, 1),
        ({"confidence": "disputed"}, 1),
        ({"confidence": "certain"}, 0),
        ({"end": at(2)}, 0),
    ],
    ids=["found by minors", "disputed", "proved by a process", "over"],
)
def test_what_is_held_moves_to_the_device_that_gres_conf_names_later(
    house: House, held: dict[str, Any], device: int
) -> None:
    with house.database.session() as session:
        world = World(session)
        node = world.node()
        gpus = world.gpus(node, 2)
        ids = [gpu.id for gpu in gpus]
        world.hold(world.run(), node, gpus[0], 0, **held)
        for gpu, ordinal in zip(gpus, (1, 0), strict=True):
            placement = session.get_one(Placement, (gpu.id, T0))
            placement.gres_ordinal, placement.ordinal_source = ordinal, "gres.conf"
    attribute_devices(replace(house, clock=lambda: at(3)))
    with house.database.session() as session:
        assert session.scalars(select(Allocation.device_id)).one() == ids[device]


def test_a_gpu_that_was_exchanged_keeps_what_was_held_on_it(house: House) -> None:
    with house.database.session() as session:
        world = World(session)
        node = world.node()
        gone, _ = world.gpus(node, 2)
        world.hold(world.run(), node, gone, 0)
        session.get_one(Placement, (gone.id, T0)).valid_to = at(2)
        new = world.add(Device(uuid="GPU-new", instance="", profile="", valid_from=at(2),
                               model="H100"))  # fmt: skip
        world.add(Placement(device_id=new.id, valid_from=at(2), node_id=node.id, minor=0,
                            gres_ordinal=0, ordinal_source="gres.conf"))  # fmt: skip
        known = gone.id
    attribute_devices(replace(house, clock=lambda: at(3)))
    with house.database.session() as session:
        assert session.scalars(select(Allocation.device_id)).one() == known


@pytest.mark.parametrize(
    ("named", "devices", "confidence"),
    [((1, 2), [1, 2], "likely"), ((1,), [None, None], "unknown"),
     ((0, 1, 2), [None, None], "unknown"), ((), [None, None], "unknown")],
    ids=["as many", "fewer", "more", "none"],
)  # fmt: skip
def test_gpus_of_unknown_position_are_those_that_the_prolog_named(
    house: House, named: tuple[int, ...], devices: list[int | None], confidence: str
) -> None:
    with house.database.session() as session:
        world = World(session)
        node = world.node()
        ids = [gpu.id for gpu in world.gpus(node, 3)]
        run = world.run()
        for place in (0, 1):
            world.hold(run, node, None, None, place=place, confidence="unknown")
        for gpu in named:
            name(world, node, run.raw_job_id, ids[gpu])
        name(world, node, 999, ids[0])
    attribute_devices(replace(house, clock=lambda: at(3)))
    with house.database.session() as session:
        found = session.execute(
            select(Allocation.device_id, Allocation.confidence).order_by(Allocation.place)
        )
        expected = [device if device is None else ids[device] for device in devices]
        assert [tuple(row) for row in found] == [(device, confidence) for device in expected]


def name(world: World, node: Node, raw_job_id: int, device_id: int) -> None:
    """Let a prolog's drop file say that the job holds the device."""
    world.add(
        Evidence(
            node_id=node.id, kind="prolog", raw_job_id=raw_job_id, device_id=device_id,
            first_seen_at=T0, last_seen_at=at(1),
        )
    )  # fmt: skip


# Job "own" of mchen holds GPU 0 of a node since minute 0. Of the others, "bob's" holds GPU 1, "mine
# here" GPU 2, "mine elsewhere" a GPU of another node; "before" of bob held GPU 0 until minute 0,
# and "bob's too" holds it as well. "bob's on CPUs" and "mine on CPUs" hold none, "next" still waits
# for all that the scheduler told, and of "unknown" nobody has heard. A sign is (kind, job, minutes
# in which it was seen on GPU 0).
Sign = tuple[str, str, float, float]
CASES: dict[str, tuple[list[Sign], str]] = {
    "nothing is seen": ([], "likely"),
    "a cgroup proves": ([("cgroup", "own", 1, 30)], "certain"),
    "a cgroup of the run before proves nothing": ([("cgroup", "own", -60, -1)], "likely"),
    "a claim proves nothing": ([("environ", "own", 1, 30)], "likely"),
    "a foreign cgroup disputes": ([("cgroup", "bob's", 1, 2)], "disputed"),
    "a foreign claim disputes": ([("environ", "bob's", 1, 30)], "disputed"),
    "a right claim beside it changes nothing": (
        [("environ", "bob's", 1, 30), ("environ", "own", 1, 30)], "disputed",
    ),
    "proof outweighs a foreign claim": (
        [("environ", "bob's", 1, 30), ("cgroup", "own", 1, 30)], "certain",
    ),
    "proof outweighs a foreign cgroup": (
        [("cgroup", "bob's", 1, 30), ("cgroup", "own", 1, 30)], "certain",
    ),
    "a job without GPUs that computes on somebody's": (
        [("environ", "bob's on CPUs", 5, 6)], "disputed",
    ),
    "a claim of a job that nobody knows": ([("environ", "unknown", 5, 6)], "likely"),
    "a claim of the next job before its start is told": ([("environ", "next", 29, 30)], "likely"),
    "the cgroup of the next job": ([("cgroup", "next", 29, 30)], "likely"),
    "a foreign claim from the start": ([("environ", "bob's", 0, 0.5)], "disputed"),
    "a foreign claim before the start": ([("environ", "bob's", -9, -1)], "likely"),
    "a foreign cgroup from before the start": ([("cgroup", "bob's", -1, 1)], "likely"),
    "a job that ends late": ([("environ", "before", -30, 1.9)], "likely"),
    "processes that outlived their job": ([("environ", "before", -30, 30)], "disputed"),
    "one that such a process starts": ([("environ", "before", 20, 30)], "disputed"),
    "the cgroup of a job that ends late": ([("cgroup", "before", 1, 1.9)], "likely"),
    "a shell that salloc started": ([("environ", "mine elsewhere", 1, 30)], "likely"),
    "an own job without GPUs": ([("environ", "mine on CPUs", 1, 30)], "likely"),
    "an own job with other GPUs here": ([("environ", "mine here", 1, 30)], "disputed"),
    "two that the scheduler gave the same GPU": ([("environ", "bob's too", 1, 30)], "likely"),
    "a prolog is no process": ([("prolog", "bob's", 1, 30)], "likely"),
}  # fmt: skip


def test_each_sign_has_its_weight(house: House) -> None:
    with house.database.session() as session:
        world = World(session)
        held = {name: held_with(world, name, signs) for name, (signs, _) in CASES.items()}
        weigh_processes(session, world.cluster.id)
        found = {name: confidence(session, each) for name, each in held.items()}
    assert found == {name: expected for name, (_, expected) in CASES.items()}


def test_proof_that_comes_late_ends_a_dispute(house: House) -> None:
    with house.database.session() as session:
        world = World(session)
        held = held_with(world, "g", [("environ", "bob's", 1, 30)])
        weigh_processes(session, world.cluster.id)
        assert confidence(session, held) == "disputed"
        own = session.get_one(Run, held.run_id)
        sign(world, held, "cgroup", own.raw_job_id, 40, 50)
        weigh_processes(session, world.cluster.id)
        assert confidence(session, held) == "certain"


def test_a_shared_gpu_is_not_disputed(house: House) -> None:
    with house.database.session() as session:
        world = World(session)
        signs: list[Sign] = [("environ", "bob's", 1, 30), ("cgroup", "bob's", 1, 30)]
        held = held_with(world, "g", signs)
        held.shared = True
        session.flush()
        weigh_processes(session, world.cluster.id)
        assert confidence(session, held) == "likely"


def test_the_first_component_lends_its_id_to_a_heterogeneous_job_and_an_array_to_no_task(
    house: House,
) -> None:
    with house.database.session() as session:
        world = World(session)
        node = world.node()
        gpus = world.gpus(node, 3)
        leader = world.run(10, het_job_id=10, het_offset=0)
        component = world.run(11, het_job_id=10, het_offset=1)
        last_task = world.run(20, array_job_id=20, array_task_id=9)
        task = world.run(21, array_job_id=20, array_task_id=1)
        spare = world.node("g2")
        for ordinal, run in enumerate((leader, last_task)):
            world.hold(run, spare, world.gpu(spare, ordinal), ordinal)
            world.hold(run, node, gpus[2], 2, start=at(-60), end=at(-30))
        of_component = world.hold(component, node, gpus[0])
        of_task = world.hold(task, node, gpus[1], 1)
        sign(world, of_component, "environ", 10, 1, 30)
        sign(world, of_task, "environ", 20, 1, 30)
        weigh_processes(session, world.cluster.id)
        assert confidence(session, of_component) == "likely"
        assert confidence(session, of_task) == "disputed"


def test_a_process_on_another_gpu_or_another_node_says_nothing_of_this_one(house: House) -> None:
    with house.database.session() as session:
        world = World(session)
        held = held_with(world, "g", [])
        other = held_with(world, "h", [("environ", "bob's", 1, 30)])
        weigh_processes(session, world.cluster.id)
        assert confidence(session, held) == "likely"
        assert confidence(session, other) == "disputed"
        of_other = session.scalars(
            select(Allocation.confidence).where(
                Allocation.node_id == other.node_id, Allocation.device_id != other.device_id
            )
        )
        assert set(of_other) == {"likely"}


def held_with(world: World, name: str, signs: list[Sign]) -> Allocation:
    """What "own" holds, on a node of this name, and the signs of who computes on it."""
    node, elsewhere = world.node(name), world.node(f"{name}, elsewhere")
    gpus = world.gpus(node, 3)
    first = node.id * 100

    def run(user: str, start: datetime | None = T0) -> Run:
        nonlocal first
        first += 1
        return world.run(first, start, submitted_at=at(-90), user_name=user)

    jobs = {
        "own": run("mchen"), "bob's": run("bob"), "mine here": run("mchen"),
        "mine elsewhere": run("mchen"), "before": run("bob", at(-60)), "bob's on CPUs": run("bob"),
        "mine on CPUs": run("mchen"), "next": run("bob", None), "bob's too": run("bob"),
    }  # fmt: skip
    held = world.hold(jobs["own"], node, gpus[0])
    world.hold(jobs["before"], node, gpus[0], end=at(0))
    world.hold(jobs["bob's too"], node, gpus[0])
    world.hold(jobs["bob's"], node, gpus[1], 1)
    world.hold(jobs["mine here"], node, gpus[2], 2)
    world.hold(jobs["mine elsewhere"], elsewhere, world.gpu(elsewhere, 0))
    for kind, job, start, end in signs:
        sign(world, held, kind, jobs[job].raw_job_id if job in jobs else first + 1, start, end)
    return held


def sign(world: World, held: Allocation, kind: str, job_id: int, start: float, end: float) -> None:
    world.add(
        Evidence(node_id=held.node_id, kind=kind, raw_job_id=job_id, device_id=held.device_id,
                 pid=7, uid=1001, first_seen_at=at(start), last_seen_at=at(end))
    )  # fmt: skip


def confidence(session: Session, held: Allocation) -> str:
    session.refresh(held)
    return held.confidence
