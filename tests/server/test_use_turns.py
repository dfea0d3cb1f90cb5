"""How the use of GPUs is counted again piece by piece, and in whose cluster a GPU counts."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from sqlalchemy import delete, func, insert, select, text, update
from sqlalchemy.schema import CreateTable

from flopwatch_server.database import partitions
from flopwatch_server.database.engine import Database
from flopwatch_server.efficiency.models import allocation_hours, cluster_steps, run_figures
from flopwatch_server.efficiency.repository import hours
from flopwatch_server.efficiency.repository.overview import newest_minute_end
from flopwatch_server.efficiency.rollups import count_use
from flopwatch_server.fleet.models import Cluster, Node, Placement
from flopwatch_server.jobs.models import Allocation, AllocationMark, Run
from flopwatch_server.scheduler.models import NodeState
from flopwatch_server.settings import Retention
from flopwatch_server.telemetry.models import STEP, dirty_steps
from flopwatch_server.telemetry.repository.rollups import marked
from tests.server.world import T0, World, at

LONG = timedelta(hours=18)
STEPS = LONG // STEP
MOST_A_TURN = 100  # of the 108


@pytest.fixture
def world(database: Database) -> Iterator[World]:
    with database.session() as session:
        yield World(session)


def turn(world: World, now: datetime) -> bool:
    world.session.execute(CreateTable(marked, if_not_exists=True))
    world.session.execute(text("TRUNCATE marked"))
    return count_use(world.session, now, Retention())


def steps_made(world: World) -> int:
    return world.session.scalars(select(func.count()).select_from(cluster_steps)).one()


def made_by_turns(world: World, now: datetime) -> list[int]:
    """How many steps each turn adds, until nothing is left to do."""
    counts, more = [steps_made(world)], True
    while more:
        more = turn(world, now)
        counts.append(steps_made(world))
    return [after - before for before, after in pairwise(counts)]


def test_what_a_long_job_changes_is_counted_in_short_turns(world: World) -> None:
    node = world.node()
    [gpu] = world.gpus(node, 1)
    for number, device in enumerate([gpu, None]):
        world.hold(world.run(number), node, device, number)
    world.minutes(gpu, T0 + LONG - timedelta(hours=1), "A" * 60)
    world.session.execute(delete(dirty_steps))  # so that only the job tells what to count
    made = made_by_turns(world, T0 + LONG + timedelta(minutes=1))
    assert max(made) <= MOST_A_TURN
    held = select(func.sum(cluster_steps.c.allocated_seconds))
    assert world.session.scalars(held).one() == 2 * LONG.total_seconds()
    assert world.session.scalars(select(allocation_hours.c.active_seconds)).all() == [3600]
    assert world.session.scalars(select(AllocationMark)).all() == []


def test_a_long_pause_is_made_up_for_in_short_turns_and_leaves_no_hole(world: World) -> None:
    [gpu] = world.gpus(world.node(), 1)
    world.count_use(at(11))
    world.minutes(gpu, T0 + LONG, "A")
    made = made_by_turns(world, T0 + LONG + STEP + timedelta(minutes=1))
    assert max(made) <= MOST_A_TURN
    assert sum(made) == STEPS
    seen = select(cluster_steps.c.step).where(cluster_steps.c.is_seen)
    assert world.session.scalars(seen).all() == [T0 + LONG]


def test_late_news_of_a_job_leaves_the_hours_alone_whose_minutes_are_gone(
    database: Database,
) -> None:
    monday = datetime(2026, 3, 16, tzinfo=UTC)  # when the next partition of minutes begins
    start = monday - timedelta(hours=1)
    with database.session() as session:
        world = World(session)
        node = world.node()
        [gpu] = world.gpus(node, 1)
        world.hold(world.run(), node, gpu, start=start)
        world.minutes(gpu, start, "A" * 60)
        world.count_use(monday + timedelta(minutes=1))
        partitions.ensure_days(session, [monday.date()])
    partitions.drop(database, partitions.MINUTES.partition_of(start.date()))
    with database.session() as session:
        world.session = session
        session.execute(update(Allocation).values(valid_from=start - timedelta(minutes=5)))
        world.count_use(monday + timedelta(minutes=30))
        active = select(allocation_hours.c.active_seconds)
        assert session.scalars(active).all() == [3600]


def test_figures_of_runs_are_written_in_the_order_of_runs_by_whoever_writes_them(
    world: World,
) -> None:
    """Two who take the same locks in one order never wait for each other in a circle."""
    node = world.node()
    held = [world.hold(world.run(number), node, None) for number in range(50)]
    runs = sorted(allocation.run_id for allocation in held)
    in_order_of_writing = select(run_figures.c.run_id).order_by(text("ctid"))
    world.session.execute(text("SET LOCAL enable_sort = off"))  # groups come in any order then
    hours.make_run_figures(world.session, {allocation.id for allocation in held})
    assert world.session.scalars(in_order_of_writing).all() == runs
    world.session.execute(text("TRUNCATE run_figures"))
    hours.keep_mfus(world.session, dict.fromkeys(reversed(runs), 0.5))
    assert world.session.scalars(in_order_of_writing).all() == runs


def test_the_mfus_of_any_number_of_runs_are_kept(world: World) -> None:
    number = 40_000  # twice as many are more than the parameters of one statement
    known = world.run()
    columns = ", ".join(column.name for column in Run.__table__.columns if column.name != "id")
    others = columns.replace("raw_job_id", "raw_job_id + number")
    world.session.execute(
        text(f"INSERT INTO runs ({columns}) SELECT {others} "
             f"FROM runs, generate_series(1, {number}) AS number")
    )  # fmt: skip
    runs = world.session.scalars(select(Run.id).where(Run.id != known.id)).all()
    hours.keep_mfus(world.session, dict.fromkeys(runs, 0.25) | {known.id: None})
    kept = select(run_figures.c.mfu, func.count()).group_by(run_figures.c.mfu).order_by("mfu")
    assert [tuple(row) for row in world.session.execute(kept)] == [(0.25, number), (None, 1)]


class Move:
    """A GPU that is taken from granite to basalt after half an hour, and reports all the time."""

    def __init__(self, world: World) -> None:
        self.old = world.cluster
        self.new = world.add(Cluster(name="basalt", simulated=False, created_at=T0))
        self.gpu = world.gpu(world.node("g1", scheduler_state="IDLE"), 0)
        away = world.add(Node(cluster_id=self.new.id, name="b1"))
        world.add(NodeState(node_id=away.id, valid_from=T0, service="serving"))
        world.session.execute(update(Placement).values(valid_to=at(30)))
        world.session.execute(
            insert(Placement).values(device_id=self.gpu.id, valid_from=at(30), node_id=away.id)
        )


def test_a_gpu_that_moved_to_another_cluster_counts_in_one_at_a_time(world: World) -> None:
    move = Move(world)
    world.minutes(move.gpu, T0, "A" * 60, power_watts=500.0)
    world.count_use(at(61))
    columns = cluster_steps.c
    found = select(columns.cluster_id, columns.step, columns.free_seconds).where(columns.is_seen)
    in_old = {(move.old.id, at(start), 600.0) for start in (0, 10, 20)}
    in_new = {(move.new.id, at(start), 600.0) for start in (30, 40, 50)}
    assert {tuple(row) for row in world.session.execute(found)} == in_old | in_new


def test_the_newest_minute_of_a_cluster_is_not_that_of_a_gpu_which_has_left_it(
    world: World,
) -> None:
    move = Move(world)
    world.minutes(world.gpu(world.node("g2"), 0), T0, "A" * 5)
    world.minutes(move.gpu, T0, "A" * 60)
    ends = [newest_minute_end(world.session, of.id, at(61)) for of in (move.old, move.new)]
    assert ends == [at(5), at(60)]
