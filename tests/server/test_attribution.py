"""Allocations get their devices, whichever is told first."""

from dataclasses import replace

from sqlalchemy import select

from flopwatch_server.house import House
from flopwatch_server.jobs.models import Allocation
from flopwatch_server.work.schedule import attribute_devices
from tests.server.world import World, at


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
