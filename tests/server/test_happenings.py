"""Sources and events: from an agent's batch to the job that held the GPUs, in its time only."""

from datetime import datetime
from typing import Any

from sqlalchemy.orm import Session

from flopwatch import wire
from flopwatch_server.database.engine import Database
from flopwatch_server.efficiency.quality import run_quality
from flopwatch_server.efficiency.schemas import RunQuality
from flopwatch_server.fleet.models import Device
from flopwatch_server.telemetry.models import DeviceEvent, DeviceSource
from tests.lab.ingest import NOW_SECONDS, IngestClient, batch, device, query
from tests.server.world import World, at

SOURCES = """SELECT right(uuid, 1), extract(epoch FROM s.valid_from)::int, name, period_seconds,
    passed_over FROM device_sources s JOIN devices ON devices.id = device_id ORDER BY 1, 2"""
EVENTS = """SELECT right(uuid, 1), extract(epoch FROM at)::int, kind, value, detail
    FROM device_events JOIN devices ON devices.id = device_id ORDER BY 1, 2, 3, 4"""


def tell(agent: IngestClient, **lists: Any) -> None:
    response = agent.post(batch(devices=[device(0), device(1)], **lists))
    assert response.status_code == 200, response.text


def test_what_a_batch_tells_is_kept_by_device(agent: IngestClient) -> None:
    tell(
        agent,
        sources=[
            wire.Source(0, "gpm", 1.0, NOW_SECONDS - 60),
            wire.Source(1, "dcgm_exporter", 30.0, NOW_SECONDS - 60, {"gpm": "unsupported"}),
            wire.Source(1, None, None, NOW_SECONDS, {"gpm": "unsupported", "dcgmi": "silent"}),
        ],
        events=[wire.Event(1, NOW_SECONDS - 5.0, "xid", 79), wire.Event(0, NOW_SECONDS - 4.0,
                "pcie_width", 8, "of 16 lanes")],
    )  # fmt: skip
    assert query(agent.database, SOURCES) == [
        ("0", NOW_SECONDS - 60, "gpm", 1.0, {}),
        ("1", NOW_SECONDS - 60, "dcgm_exporter", 30.0, {"gpm": "unsupported"}),
        ("1", NOW_SECONDS, None, None, {"gpm": "unsupported", "dcgmi": "silent"}),
    ]
    assert query(agent.database, EVENTS) == [
        ("0", NOW_SECONDS - 4, "pcie_width", 8, "of 16 lanes"),
        ("1", NOW_SECONDS - 5, "xid", 79, ""),
    ]


def test_a_batch_that_comes_twice_counts_once(agent: IngestClient) -> None:
    for _ in range(2):
        tell(
            agent,
            sources=[wire.Source(0, "gpm", 1.0, NOW_SECONDS)] * 2,
            events=[wire.Event(0, NOW_SECONDS, "xid", 31)] * 2,
        )
    assert len(query(agent.database, SOURCES)) == len(query(agent.database, EVENTS)) == 1


def test_the_largest_value_that_is_let_in_can_be_kept(agent: IngestClient) -> None:
    tell(agent, events=[wire.Event(0, NOW_SECONDS, "ecc_corrected", 2**63 - 1, "x" * 500)])
    ((_, _, _, value, detail),) = query(agent.database, EVENTS)
    assert (value, len(detail)) == (2**63 - 1, 300)


def _source(world: World, gpu: Device, since: datetime, name: str | None, **columns: Any) -> None:
    known = {"period_seconds": 1.0 if name else None, "passed_over": {}}
    world.add(DeviceSource(device_id=gpu.id, valid_from=since, name=name, **known | columns))


def _event(world: World, gpu: Device, moment: datetime, value: int) -> None:
    world.add(DeviceEvent(device_id=gpu.id, at=moment, kind="xid", value=value, detail=""))


def _world(session: Session) -> tuple[World, list[Device], RunQuality]:
    """A run that holds two of three GPUs from minute 10 to minute 20, seen at minute 30."""
    world = World(session)
    node = world.node()
    gpus = world.gpus(node, 3)
    run = world.run(start=at(10), gpu_count=2, state="COMPLETED", ended_at=at(20))
    for ordinal in range(2):
        world.hold(run, node, gpus[ordinal], ordinal, end=at(20))
    for gpu in gpus:
        for minute, value in ((9, 1), (15, 2), (21, 3)):
            _event(world, gpu, at(minute), value)
    _source(world, gpus[0], at(0), "gpm")
    _source(world, gpus[0], at(12), "dcgmi", passed_over={"gpm": "no permission"})
    _source(world, gpus[0], at(25), "gpm")
    _source(world, gpus[1], at(0), "dcgmi", passed_over={"gpm": "no permission"})
    _source(world, gpus[2], at(0), "dcgm_exporter", period_seconds=30.0)
    return world, gpus, run_quality(session, world.view(run, at(30)), at(30))


def test_a_run_has_the_events_of_its_gpus_while_it_held_them(database: Database) -> None:
    with database.session() as session:
        _, gpus, found = _world(session)
        told = [(each.place, each.device_uuid, each.at, each.value) for each in found.events]
        assert told == [
            ("g1:0", gpus[0].uuid, at(15), 2),
            ("g1:1", gpus[1].uuid, at(15), 2),
        ]


def test_a_run_has_the_sources_that_its_gpus_had_at_its_end(database: Database) -> None:
    with database.session() as session:
        _, _, found = _world(session)
        (use,) = found.sources
        assert (use.name, use.gpus, use.period_seconds) == ("dcgmi", 2, 1.0)
        assert use.passed_over == {"gpm": "no permission"}


def test_gpus_of_different_sources_are_counted_apart_the_most_first(database: Database) -> None:
    with database.session() as session:
        world = World(session)
        node = world.node()
        run = world.run(gpu_count=4)
        for ordinal, gpu in enumerate(world.gpus(node, 4)):
            world.hold(run, node, gpu, ordinal)
            if ordinal < 3:
                _source(world, gpu, at(-5), None if ordinal == 0 else "gpm")
        found = run_quality(session, world.view(run, at(5)), at(5))
        assert [(use.name, use.gpus) for use in found.sources] == [("gpm", 2), (None, 1)]
        assert found.events == []
