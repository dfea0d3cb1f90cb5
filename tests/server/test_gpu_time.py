"""Every second of a GPU is in one state: cases by hand, and the same slot by slot in Python."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flopwatch_server.database.engine import Database
from flopwatch_server.efficiency.gpu_time import gpu_time
from flopwatch_server.efficiency.repository.gpu_time import STATES, by_gpu
from flopwatch_server.fleet.models import Device, Node, Placement
from flopwatch_server.jobs.models import Allocation
from flopwatch_server.scheduler.models import (
    NodeState,
    Reservation,
    SchedulerOutage,
    SchedulerSource,
)
from flopwatch_server.scheduler.records import service_of
from tests.server.world import T0, World, at

SLOT = timedelta(seconds=30)
SLOTS = 40
NOW = at(0, 30 * SLOTS)


@pytest.fixture
def world(database: Database) -> Iterator[World]:
    with database.session() as session:
        world = World(session)
        tell(world)
        yield world


def tell(world: World, kind: str = "slurm", **columns: Any) -> None:
    told = {"last_success_at": NOW} | columns
    world.add(SchedulerSource(cluster_id=world.cluster.id, kind=kind, **told))


def serve(world: World, node: Node, service: str, start: datetime, end: datetime | None) -> None:
    world.add(NodeState(node_id=node.id, valid_from=start, valid_to=end, service=service))


def reserve(world: World, node: str, start: datetime, end: datetime, whole: bool = True) -> None:
    world.add(
        Reservation(
            cluster_id=world.cluster.id, name=f"from {start}", valid_from=start, valid_to=end,
            nodes=[node], is_whole=whole, users=[], accounts=[], flags=[],
        )
    )  # fmt: skip


def seconds(world: World, start: datetime = T0, end: datetime = NOW) -> dict[int, dict[str, float]]:
    """By device, the states in which it was for any time."""
    rows = world.session.execute(by_gpu(start, end, NOW)).all()
    told = {row.device_id: {s: getattr(row, f"{s}_seconds") for s in STATES} for row in rows}
    assert len(told) == len(rows)
    return {id_: {s: n for s, n in states.items() if n} for id_, states in told.items()}


def test_what_nobody_holds_is_what_its_node_is_there_for(world: World) -> None:
    node = world.node("g1")
    [gpu] = world.gpus(node, 1)
    serve(world, node, "serving", at(1), at(5))
    serve(world, node, "drained", at(5), at(7))
    serve(world, node, "down", at(7), at(8, 30))
    serve(world, node, "reserved", at(8, 30), at(9))
    serve(world, node, "serving", at(9), None)
    reserve(world, "g1", at(4), at(6))
    reserve(world, "g1", at(12), at(40))
    reserve(world, "g1", at(10), at(11), whole=False)
    # Before minute 1 nobody told. The reservation from minute 4 counts until the node is drained.
    assert seconds(world) == {
        gpu.id: {
            "unknown": 60, "free": 3 * 60 + 3 * 60, "reserved": 60 + 30 + 8 * 60,
            "drained": 120, "down": 90,
        }
    }  # fmt: skip


def test_what_is_held_is_held_whatever_its_node_does(world: World) -> None:
    node = world.node("g1", scheduler_state="MIXED+DRAIN")
    one, two = world.gpus(node, 2)
    world.hold(world.run(100), node, one, 0, start=at(5), end=at(10))
    world.hold(world.run(101), node, one, 0, start=at(10))
    reserve(world, "g1", at(0), at(60))
    assert seconds(world) == {
        one.id: {"drained": 300, "allocated": 900}, two.id: {"drained": 1200}
    }  # fmt: skip


def test_a_gpu_that_several_share_counts_once_and_one_that_two_hold_is_disputed(
    world: World,
) -> None:
    node = world.node("g1", scheduler_state="MIXED")
    shards, twice, mixed, denied = world.gpus(node, 4)
    runs = [world.run(100 + number) for number in range(7)]
    world.hold(runs[0], node, shards, 0, start=at(0), end=at(10), shared=True)
    world.hold(runs[1], node, shards, 0, start=at(5), end=at(15), shared=True)
    world.hold(runs[2], node, twice, 1, start=at(0), end=at(10))
    world.hold(runs[3], node, twice, 1, start=at(8), end=at(12))
    world.hold(runs[4], node, mixed, 2, start=at(0), end=at(10))
    world.hold(runs[5], node, mixed, 2, start=at(9), end=at(11), shared=True)
    world.hold(runs[6], node, denied, 3, start=at(0), end=at(20), confidence="disputed")
    assert seconds(world) == {
        shards.id: {"shared": 900, "free": 300},
        twice.id: {"allocated": 600, "disputed": 120, "free": 480},
        mixed.id: {"allocated": 540, "disputed": 60, "shared": 60, "free": 540},
        denied.id: {"disputed": 1200},
    }


def test_while_the_scheduler_is_out_only_what_is_held_is_known(world: World) -> None:
    node = world.node("g1", scheduler_state="MIXED")
    held, other = world.gpus(node, 2)
    world.hold(world.run(), node, held, 0, start=at(2), end=at(4))
    world.add(
        SchedulerOutage(cluster_id=world.cluster.id, kind="slurm", valid_from=at(3), valid_to=at(6))
    )
    assert seconds(world) == {
        held.id: {"free": 120 + 840, "allocated": 120, "unknown": 120},
        other.id: {"free": 180 + 840, "unknown": 180},
    }


@pytest.mark.parametrize(
    ("source", "unknown"),
    [
        ({"last_success_at": at(19)}, 0),
        ({"last_success_at": at(19), "error": "squeue: no answer"}, 60),
        ({"last_success_at": at(13, 30)}, 390),
    ],
    ids=["told of lately", "fails", "not told of for long"],
)
def test_an_outage_that_goes_on_makes_free_gpus_unknown(
    database: Database, source: dict[str, Any], unknown: float
) -> None:
    with database.session() as session:
        world = World(session)
        tell(world, **source)
        [gpu] = world.gpus(world.node("g1", scheduler_state="IDLE"), 1)
        free = {"free": 1200.0 - unknown} | ({"unknown": unknown} if unknown else {})
        assert seconds(world) == {gpu.id: free}


def test_a_feed_that_is_used_no_more_makes_nothing_unknown(world: World) -> None:
    tell(world, "feed", last_success_at=at(-60))
    [gpu] = world.gpus(world.node("g1", scheduler_state="IDLE"), 1)
    assert seconds(world) == {gpu.id: {"free": 1200}}


def test_where_a_job_holds_some_gpu_of_a_node_each_other_is_unknown_and_all_but_one_are_free(
    world: World,
) -> None:
    node = world.node("g1", scheduler_state="MIXED")
    one, two, held = world.gpus(node, 3)
    world.hold(world.run(100), node, None, None, start=at(5), end=at(10))
    world.hold(world.run(101), node, held, 2, start=at(0))
    unknown = {"free": 900, "unknown": 300}
    assert seconds(world) == {one.id: unknown, two.id: unknown, held.id: {"allocated": 1200}}
    [of_node] = gpu_time(world.session, "granite", T0, NOW, NOW).nodes
    found = of_node.seconds
    assert (found.free, found.unknown, found.allocated) == (2 * 900 + 300, 300, 1200)


def test_what_ended_before_it_began_never_was(world: World) -> None:
    """Clocks and late news make such rows; the windows of all others must not suffer from one."""
    node = world.node("g1")
    [gpu] = world.gpus(node, 1)
    world.hold(world.run(), node, gpu, 0, start=at(9), end=at(5))
    serve(world, node, "serving", at(0), None)
    serve(world, node, "down", at(8), at(7))
    reserve(world, "g1", at(9), at(4))
    world.add(
        SchedulerOutage(cluster_id=world.cluster.id, kind="slurm", valid_from=at(6), valid_to=at(3))
    )
    assert seconds(world) == {gpu.id: {"free": 1200}}


def test_of_a_window_that_has_not_begun_there_is_nothing_yet(world: World) -> None:
    world.gpus(world.node("g1", scheduler_state="IDLE"), 1)
    assert seconds(world, at(600), at(660)) == {}


def test_a_machine_without_a_scheduler_serves_while_it_reports(database: Database) -> None:
    with database.session() as session:
        world = World(session)
        tell(world, "local")
        node = world.node("workstation")
        [gpu] = world.gpus(node, 1)
        world.minutes(gpu, T0, "IIIII     IIIII")
        world.hold(world.run(), node, gpu, 0, start=at(4), end=at(6))
        assert seconds(world) == {gpu.id: {"free": 540, "allocated": 120, "unknown": 540}}


def test_a_gpu_counts_only_while_it_is_there_and_only_what_is_over(world: World) -> None:
    node = world.node("g1", scheduler_state="IDLE")
    [gpu] = world.gpus(node, 1)
    world.session.get_one(Placement, (gpu.id, T0)).valid_to = at(15)
    assert seconds(world, at(-60), at(60)) == {gpu.id: {"free": 900}}
    [late] = world.gpus(world.node("g2", scheduler_state="IDLE"), 1)
    assert seconds(world, at(10), at(60)) == {gpu.id: {"free": 300}, late.id: {"free": 600}}


@pytest.mark.parametrize(
    ("state", "service"),
    [
        ("IDLE", "serving"), ("mixed", "serving"), ("ALLOCATED+COMPLETING", "serving"),
        ("IDLE+POWERED_DOWN", "serving"), ("IDLE+POWERING_DOWN", "serving"), ("idle~", "serving"),
        ("MIXED+DRAIN", "drained"), ("idle+drain", "drained"), ("DOWN+DRAIN", "down"),
        ("DOWN*", "down"), ("down", "down"), ("IDLE+NOT_RESPONDING", "down"),
        ("IDLE+RESERVED", "reserved"), ("IDLE+MAINTENANCE", "reserved"),
        ("MAINT+DRAIN", "drained"), ("UNKNOWN", "unknown"), ("FUTURE", "unknown"),
    ],
)  # fmt: skip
def test_what_a_node_does_follows_from_the_words_of_its_state(state: str, service: str) -> None:
    """As sinfo(1) defines them under NODE STATE CODES."""
    assert service_of(state) == service


_slot = st.integers(0, SLOTS)
_gpu = st.integers(0, 3)
_node = st.integers(0, 1)
_stretch = st.tuples(_slot, _slot).map(sorted).filter(lambda pair: pair[0] < pair[1])
_event = st.one_of(
    st.tuples(st.just("hold"), st.none() | _gpu, _node, _stretch, st.booleans(), st.booleans()),
    st.tuples(st.just("outage"), _stretch),
    st.tuples(st.just("reservation"), _node, _stretch, st.booleans()),
)
_services = st.lists(
    st.sampled_from(["serving", "reserved", "drained", "down", "unknown"]), min_size=4, max_size=4
)
_turns = st.lists(_slot, min_size=3, max_size=3).map(sorted)


@dataclass
class Told:
    """What was told, in the database and beside it: four GPUs on two nodes."""

    world: World
    nodes: list[Node]
    gpus: list[Device]
    services: list[list[str]] = field(default_factory=lambda: [["unknown"] * SLOTS] * 2)
    outage: set[int] = field(default_factory=set)
    kept: set[tuple[int, int]] = field(default_factory=set)
    held: list[tuple[Allocation, int | None, int, range]] = field(default_factory=list)

    def take(self, event: tuple[Any, ...]) -> None:
        name, *details = event
        getattr(self, f"_{name}")(*details)

    def serve(self, node: int, services: list[str], turns: list[int]) -> None:
        bounds = [0, *turns, SLOTS]
        words = []
        for service, start, end in zip(services, bounds, bounds[1:], strict=False):
            words += [service] * (end - start)
            if start < end:
                serve(self.world, self.nodes[node], service, T0 + start * SLOT, T0 + end * SLOT)
        self.services = [words if n == node else known for n, known in enumerate(self.services)]

    def _hold(
        self, gpu: int | None, node: int, stretch: list[int], shared: bool, disputed: bool
    ) -> None:
        start, end = stretch
        node = node if gpu is None else gpu // 2
        held = self.world.hold(
            self.world.run(100 + len(self.held)), self.nodes[node],
            None if gpu is None else self.gpus[gpu], None if gpu is None else gpu % 2,
            start=T0 + start * SLOT, end=T0 + end * SLOT, shared=shared,
            confidence="disputed" if disputed else "likely",
        )  # fmt: skip
        self.held.append((held, gpu, node, range(start, end)))

    def _outage(self, stretch: list[int]) -> None:
        start, end = stretch
        self.outage |= set(range(start, end))
        begin, until = T0 + start * SLOT, T0 + end * SLOT
        key = self.world.cluster.id, "slurm", begin
        known = self.world.session.get(SchedulerOutage, key)
        row = SchedulerOutage(
            cluster_id=self.world.cluster.id, kind="slurm", valid_from=begin,
            valid_to=max(until, known.valid_to) if known else until,
        )  # fmt: skip
        self.world.session.merge(row)

    def _reservation(self, node: int, stretch: list[int], whole: bool) -> None:
        start, end = stretch
        name = f"{node} {stretch} {whole} {len(self.kept)}"
        self.world.session.merge(
            Reservation(
                cluster_id=self.world.cluster.id, name=name, valid_from=T0 + start * SLOT,
                valid_to=T0 + end * SLOT, nodes=[self.nodes[node].name], is_whole=whole,
                users=[], accounts=[], flags=[],
            )
        )  # fmt: skip
        if whole:
            self.kept |= {(node, slot) for slot in range(start, end)}

    def state(self, gpu: int, slot: int) -> str:
        """What a GPU is in a slot, by the words of the definition."""
        node = gpu // 2
        holders = [held for held, of, _, slots in self.held if of == gpu and slot in slots]
        if holders:
            if any(held.confidence == "disputed" for held in holders):
                return "disputed"
            if len(holders) > 1 and not all(held.shared for held in holders):
                return "disputed"
            return "shared" if holders[0].shared else "allocated"
        if slot in self.outage:
            return "unknown"
        service = self.services[node][slot]
        if service != "serving":
            return service
        if (node, slot) in self.kept:
            return "reserved"
        loose = any(of is None and on == node and slot in slots for _, of, on, slots in self.held)
        return "unknown" if loose else "free"


@settings(max_examples=settings().max_examples // 2)
@given(
    events=st.lists(_event, max_size=10),
    services=st.tuples(_services, _services),
    turns=st.tuples(_turns, _turns),
)
def test_whatever_happens_every_second_is_in_the_state_that_the_words_say(
    world: World,
    events: list[tuple[Any, ...]],
    services: tuple[list[str], list[str]],
    turns: tuple[list[int], list[int]],
) -> None:
    with world.session.begin_nested() as example:
        nodes = [world.node(name) for name in ("g1", "g2")]
        told = Told(world, nodes, [gpu for node in nodes for gpu in world.gpus(node, 2)])
        for node in range(2):
            told.serve(node, services[node], turns[node])
        for event in events:
            told.take(event)
        world.session.flush()
        found = seconds(world)
        for gpu, device in enumerate(told.gpus):
            expected: Counter[str] = Counter()
            for slot in range(SLOTS):
                expected[told.state(gpu, slot)] += 30
            assert found[device.id] == expected
        example.rollback()
