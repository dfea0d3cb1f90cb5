"""A whole cluster: GPUs by state, free and down, history, accounts, partitions, what needs care."""

from collections.abc import Iterator
from datetime import datetime, timedelta

import pytest
from sqlalchemy import delete, select

from flopwatch_server.access.principal import Principal
from flopwatch_server.database.engine import Database
from flopwatch_server.efficiency import cluster_now, models
from flopwatch_server.efficiency.overview import overview
from flopwatch_server.efficiency.schemas import (
    AccountHours,
    GpuCounts,
    Overview,
    PartitionNow,
    SilentNode,
    SourceStatus,
    StateCounts,
)
from flopwatch_server.fleet.models import Cluster, Node, Placement
from flopwatch_server.house import NotFound
from flopwatch_server.scheduler.models import SchedulerSource
from tests.server.world import ADMIN, T0, World, at

ZERO = int(T0.timestamp())


@pytest.fixture
def untold(database: Database) -> Iterator[World]:
    """A cluster of which no scheduler has told anything yet."""
    with database.session() as session:
        yield World(session)


@pytest.fixture
def world(untold: World) -> World:
    """A cluster whose scheduler has answered."""
    cluster_id = untold.cluster.id
    untold.add(SchedulerSource(cluster_id=cluster_id, kind="feed", last_success_at=at(120)))
    return untold


def seen(
    world: World, now: datetime, principal: Principal = ADMIN, window_hours: int = 1
) -> Overview:
    """The overview as it is found, which is what is kept of it for the next who looks."""
    world.count_use(now)
    found = overview(world.session, principal, "granite", now, window_hours)
    cluster_now.keep(world.session, world.cluster.id, now)
    assert overview(world.session, principal, "granite", now, window_hours) == found
    world.session.execute(delete(models.cluster_now))
    return found


def test_an_unknown_cluster_is_not_found(world: World) -> None:
    with pytest.raises(NotFound):
        overview(world.session, ADMIN, "basalt", T0)


def test_no_gpu_is_called_free_before_a_scheduler_has_told_who_holds_what(untold: World) -> None:
    device = untold.gpu(untold.node(), 0)
    untold.minutes(device, T0, "A" * 10, power_watts=500.0)
    found = seen(untold, at(10, 20))
    assert (found.gpus, found.allocated, found.free) == (1, None, None)
    assert found.history[-1] == StateCounts(time=ZERO + 600, unknown=1)


def test_an_empty_cluster_has_no_figure_rather_than_zero(world: World) -> None:
    found = seen(world, at(10))
    assert (found.gpus, found.allocated, found.free, found.down) == (0, 0, 0, 0)
    assert (found.tensor_active, found.mfu, found.power_watts, found.power_limit_watts) == (
        None, None, None, None,
    )  # fmt: skip
    assert found.newest_sample_at is None
    assert set(found.history_tensor) == set(found.history_power_watts) == {None}
    assert [*found.attention, *found.accounts, *found.partitions] == []


def test_gpus_are_allocated_free_or_down(world: World) -> None:
    busy = world.node("g1", scheduler_state="MIXED")
    draining = world.node("g2", scheduler_state="MIXED+DRAIN")
    world.node("g3", scheduler_state="DOWN*", gpu_count=4)
    world.node("g4", scheduler_state="IDLE", gpu_count=2)
    first, *_ = world.gpus(busy, 4)
    held_there, *_ = world.gpus(draining, 4)
    run = world.run(gpu_count=2)
    world.hold(run, busy, first, 0)
    world.hold(run, draining, held_there, 0)
    found = seen(world, at(10))
    # g1: 1 held, 3 free; g2: 1 held, 3 drained; g3: 4 down, no agent; g4: 2 free, no agent.
    assert (found.gpus, found.allocated, found.free, found.down) == (14, 2, 5, 7)


def test_what_a_node_is_there_for_is_not_known_is_not_free(world: World) -> None:
    world.node("g1", scheduler_state="UNKNOWN", gpu_count=4)
    world.node("g2", scheduler_state="IDLE+RESERVED", gpu_count=2)
    world.node("g3", scheduler_state="IDLE", gpu_count=1)
    # As an older version left it: its state is a word, and not known over time.
    world.add(Node(cluster_id=world.cluster.id, name="g4", scheduler_state="DOWN", gpu_count=8))
    found = seen(world, at(1))
    assert (found.gpus, found.free, found.reserved, found.down) == (15, 1, 2, 0)


def test_gpus_now_count_every_held_gpu_once(world: World) -> None:
    node = world.node()
    devices = world.gpus(node, 5)
    run, other = world.run(100, gpu_count=5), world.run(101)
    for ordinal, device in enumerate(devices):
        shared = ordinal == 4
        world.hold(run, node, device, ordinal, shared=shared)
        world.minutes(device, T0, "AALIU"[ordinal] * 10, tensor_active=[0.8, 0.4, 0, 0, 0][ordinal])
    world.hold(other, node, devices[4], 4, shared=True)
    world.hold(other, node, None, None, place=7)
    found = seen(world, at(10, 20))
    assert found.gpus_now == GpuCounts(active=2, low=1, idle=1, shared=1, unknown=1)
    assert found.allocated == 6
    assert found.tensor_active == pytest.approx(1.2 / 4)


def test_a_gpu_whose_counters_contradict_each_other_has_no_tensor_activity_now(
    world: World,
) -> None:
    node = world.node()
    run = world.run()
    for ordinal, device in enumerate(world.gpus(node, 2)):
        world.hold(run, node, device, ordinal)
        world.minute(device, T0, "unknown" if ordinal else "active", samples_suspect=ordinal,
                     tensor_active=0.0 if ordinal else 0.6)  # fmt: skip
    assert seen(world, at(1, 20)).tensor_active == pytest.approx(0.6)


def test_power_is_the_sum_over_the_newest_minute_of_each_gpu_beside_what_boards_may_draw(
    world: World,
) -> None:
    first, late, silent, mute = world.gpus(world.node(), 4)
    world.minutes(first, at(8), "A", power_watts=300.0)
    world.minutes(first, at(9), "A", power_watts=650.0)
    world.minutes(late, at(8), "A", power_watts=100.0)
    world.minutes(silent, at(5), "A", power_watts=700.0)
    world.minutes(mute, at(9), "A")
    found = seen(world, at(10, 20))
    assert (found.power_watts, found.power_limit_watts) == (750.0, 1400.0)


def test_the_limit_of_all_boards_is_unknown_where_that_of_one_is(world: World) -> None:
    first, second = world.gpus(world.node(), 2)
    second.power_limit_watts = None
    for device in (first, second):
        world.minutes(device, T0, "A", power_watts=300.0)
    found = seen(world, at(1, 20))
    assert (found.power_watts, found.power_limit_watts) == (600.0, None)


def test_power_leaves_out_the_minute_under_way_and_gpus_that_left(world: World) -> None:
    there, left = world.gpus(world.node(), 2)
    world.minutes(there, at(9), "A", power_watts=300.0)
    world.minutes(there, at(10), "A", power_watts=650.0)
    world.minutes(left, at(9), "A", power_watts=100.0)
    sat = select(Placement).where(Placement.device_id == left.id)
    world.session.scalars(sat).one().valid_to = at(10)
    world.session.flush()
    assert seen(world, at(10, 30)).power_watts == 300.0


def test_the_newest_sample_is_not_one_of_the_future(world: World) -> None:
    device = world.gpu(world.node(), 0)
    world.samples(device, [at(10), at(12)])  # its agent's clock is ahead
    assert seen(world, at(10, 5)).newest_sample_at == at(10)


def test_the_newest_sample_is_looked_for_on_the_nodes_heard_from_last(world: World) -> None:
    for number in range(12):
        node = world.node(f"g{number}", last_batch_at=at(9, number))
        world.samples(world.gpu(node, 0), [at(9, 10 * (number % 3))])
    assert seen(world, at(10)).newest_sample_at == at(9, 20)


def test_after_a_silence_the_newest_sample_is_as_old_as_the_newest_minute(world: World) -> None:
    device = world.gpu(world.node(), 0)
    world.minutes(device, T0, "AAA")
    found = seen(world, at(60))
    assert (found.power_watts, found.newest_sample_at) == (None, at(3))


def test_history_is_gpus_by_state_on_average_over_ten_minutes(world: World) -> None:
    node = world.node(gpu_count=5, scheduler_state="MIXED")
    first, second, spare = world.gpus(node, 3)
    run = world.run(gpu_count=2)
    world.hold(run, node, first, 0)
    world.hold(run, node, second, 1, start=at(5), end=at(15))
    world.minutes(first, T0, "AAAAALLLLLIIIIIUUUUU", tensor_active=0.5, power_watts=400.0)
    world.minutes(second, T0, "I" * 20, tensor_active=0.0, power_watts=100.0)
    world.minutes(spare, T0, "I" * 10, tensor_active=0.25, power_watts=50.0)
    found = seen(world, at(20, 20))
    assert [counts.time for counts in found.history] == [ZERO + 600 * n for n in range(-3, 3)]
    # Of 5 GPUs two never report. Minutes 5 to 15 of the second are held, the rest of it is free,
    # as is the spare one by the scheduler's word, whether or not it reports.
    assert found.history[-2] == StateCounts(
        time=ZERO + 600, active=0.5, low=0.5, idle=0.5, free=0.5 + 1, unknown=2
    )
    assert found.history[-1] == StateCounts(
        time=ZERO + 1200, active=0, low=0, idle=0.5 + 0.5, free=0.5 + 1, unknown=0.5 + 2
    )
    # Nobody watched yet: no GPU is called unknown.
    assert found.history[0] == StateCounts(time=ZERO - 1800, watched=False)
    assert found.history_tensor == [
        None, None, None, None, pytest.approx(5 / 15), pytest.approx(5 / 15),
    ]  # fmt: skip
    assert found.history_power_watts == [None, None, None, None, 550.0, 500.0]


def test_history_ends_with_the_last_complete_ten_minutes(world: World) -> None:
    assert seen(world, at(20, 19)).history[-1].time == ZERO + 600
    assert seen(world, at(20, 20)).history[-1].time == ZERO + 1200


def test_a_gpu_that_jobs_share_is_held_once_in_the_history(world: World) -> None:
    node = world.node(scheduler_state="MIXED")
    device, spare = world.gpus(node, 2)
    for number in range(3):
        world.hold(world.run(100 + number), node, device, 0, shared=True)
    world.minutes(device, T0, "A" * 10)
    world.minutes(spare, T0, "I" * 10)
    found = seen(world, at(10, 20))
    assert found.history[-1] == StateCounts(time=ZERO + 600, free=1, unknown=1)


def test_a_gpu_held_by_a_run_is_not_free_though_nobody_knows_which_one_it_is(
    world: World,
) -> None:
    node = world.node(scheduler_state="MIXED")
    for device in world.gpus(node, 2):
        world.minutes(device, T0, "I" * 10)
    world.hold(world.run(), node, None, None)
    assert seen(world, at(10, 20)).history[-1] == StateCounts(time=ZERO + 600, free=1, unknown=1)


def test_accounts_have_gpu_hours_by_state_most_first(world: World) -> None:
    node = world.node()
    first, second = world.gpus(node, 2)
    mine, theirs = world.run(100), world.run(101, account="bio")
    world.hold(mine, node, first, 0, start=at(0), end=at(30))
    world.hold(theirs, node, second, 1, start=at(-60))
    world.minutes(first, T0, "A" * 15 + "I" * 45)
    world.minutes(second, at(-60), "L" * 120)
    found = seen(world, at(60, 20))
    assert found.accounts == [
        AccountHours(account="bio", allocated=1.0, active=0, low=1.0, idle=0),
        AccountHours(account="nlp", allocated=0.5, active=0.25, low=0, idle=0.25),
    ]


def test_partitions_tell_gpus_held_idle_free_and_queued(world: World) -> None:
    node = world.node("g1", partitions=["gpu", "all"], scheduler_state="MIXED")
    world.node("g2", partitions=["all"], gpu_count=4, scheduler_state="DOWN")
    first, second, _ = world.gpus(node, 3)
    run = world.run(gpu_count=2)
    world.hold(run, node, first, 0)
    world.hold(run, node, second, 1)
    world.minutes(first, T0, "A" * 10, tensor_active=0.5)
    world.minutes(second, T0, "I" * 10, tensor_active=0.0)
    world.run(101, start=None, partition="gpu,all")
    world.run(102, start=None, partition="gpu")
    world.run(103, start=None, partition="gpu", gpu_count=0)
    found = seen(world, at(10, 20))
    assert found.partitions == [
        PartitionNow(partition="all", gpus=7, allocated=0, idle=0, free=1, queued=1,
                     tensor_active=None),
        PartitionNow(partition="gpu", gpus=3, allocated=2, idle=1, free=1, queued=2,
                     tensor_active=0.25),
    ]  # fmt: skip
    assert (found.running_jobs, found.pending_jobs) == (1, 2)


def test_without_a_scheduler_that_tells_partitions_their_gpus_are_unknown(world: World) -> None:
    node = world.node()
    world.hold(world.run(), node, world.gpu(node, 0))
    [only] = seen(world, at(10)).partitions
    assert (only.partition, only.gpus, only.free, only.allocated) == ("gpu", None, None, 1)


def test_mfu_is_the_mean_over_running_jobs_that_report_one(world: World) -> None:
    node = world.node()
    for number, ideal in ((100, 10.0), (101, 30.0)):
        run = world.run(number)
        world.report(run, node, at(5), {"bfloat16": 989.5e12 * ideal}, 100.0, boot=str(number))
    unknown = world.run(102)
    world.report(unknown, node, at(5), {"bfloat16": 1.0}, 1.0, boot="x", device_name="Unheard")
    ended = world.run(103, ended_at=at(6), state="COMPLETED")
    world.report(ended, node, at(5), {"bfloat16": 989.5e12 * 90}, 100.0, boot="y")
    found = seen(world, at(10))
    assert (found.mfu, found.reporting_jobs, found.running_jobs) == (pytest.approx(0.2), 2, 3)


def test_jobs_with_idle_or_low_gpus_need_attention_most_idle_hours_first(world: World) -> None:
    node = world.node()
    for number, letters in enumerate(["I" * 5 + "A" * 15, "L" * 20, "I" * 20, "A" * 10 + "I" * 10]):
        run = world.run(100 + number, user_name="bo" if number == 2 else "mchen")
        device = world.gpu(node, number)
        world.hold(run, node, device, number)
        world.minutes(device, T0, letters)
    found = seen(world, at(20, 20))
    assert [row.job_id for row in found.attention] == ["102", "103", "101"]
    theirs = seen(world, at(20, 20), Principal("mchen", "researcher"))
    assert [row.job_id for row in theirs.attention] == ["103", "101"]
    # What concerns the cluster as a whole is the same for everybody.
    assert theirs.gpus_now == found.gpus_now == GpuCounts(active=1, low=1, idle=2)


def test_ten_rows_of_attention_at_most_of_those_that_may_be_seen(world: World) -> None:
    node = world.node()
    for number in range(12):
        device = world.gpu(node, number)
        run = world.run(100 + number, user_name="mchen" if number == 0 else "bo")
        world.hold(run, node, device, number)
        world.minutes(device, T0, "A" * 9 + "I" if number == 0 else "I" * 10)
    assert len(seen(world, at(10, 20)).attention) == 10
    # Twelve wait, this one last; its owner sees it all the same.
    theirs = seen(world, at(10, 20), Principal("mchen", "researcher"))
    assert [row.job_id for row in theirs.attention] == ["100"]


def test_an_agent_is_silent_after_three_periods(world: World) -> None:
    world.node("g1", last_batch_at=at(9, 30))
    world.node("g2", last_batch_at=at(9, 29))
    world.node("g3")
    found = seen(world, at(10))
    assert found.agents_reporting == 1
    assert found.agents_silent == [SilentNode(node="g2", since=at(9, 29))]


def test_sources_tell_how_the_scheduler_answers(untold: World) -> None:
    untold.add(SchedulerSource(cluster_id=untold.cluster.id, kind="slurm", last_success_at=at(5),
                              error="squeue timed out", error_since=at(6)))  # fmt: skip
    assert seen(untold, at(10)).sources == [
        SourceStatus(kind="slurm", last_success_at=at(5), error="squeue timed out",
                     error_since=at(6))
    ]  # fmt: skip


def test_other_clusters_do_not_leak_in(world: World) -> None:
    mine = world.cluster
    world.cluster = world.add(Cluster(name="basalt", simulated=True, created_at=T0))
    node = world.node("b1", gpu_count=8, last_batch_at=at(10))
    device = world.gpu(node, 0)
    world.hold(world.run(), node, device)
    world.minutes(device, T0, "I" * 10, power_watts=100.0)
    world.samples(device, [at(10)], power_watts=300.0)
    world.cluster = mine
    found = seen(world, at(10, 20))
    assert (found.gpus, found.allocated, found.running_jobs, found.agents_reporting) == (0, 0, 0, 0)
    assert (found.power_watts, found.newest_sample_at) == (None, None)
    assert [*found.accounts, *found.attention] == []
    assert set(found.history_power_watts) == {None}


def test_what_was_found_last_is_shown_for_a_while_and_then_not_believed(world: World) -> None:
    node = world.node("g1", gpu_count=4)
    cluster_now.keep(world.session, world.cluster.id, at(10))
    node.gpu_count = 8
    world.session.flush()
    last = at(10) + cluster_now.KEPT
    shown = [
        overview(world.session, ADMIN, "granite", now).gpus
        for now in (at(10), last, last + timedelta(seconds=1))
    ]
    assert shown == [4, 4, 8]


def test_a_researcher_is_shown_none_of_what_was_kept_for_staff(world: World) -> None:
    device = world.gpu(world.node(), 0)
    world.hold(world.run(100, user_name="mchen"), world.node("g2"), device)
    world.minutes(device, T0, "I" * 10)
    cluster_now.keep(world.session, world.cluster.id, at(10, 20))
    rows = {
        name: overview(world.session, Principal(name, role), "granite", at(10, 20)).attention
        for name, role in (("mchen", "researcher"), ("eve", "researcher"), ("sam", "support"))
    }
    assert {name: len(found) for name, found in rows.items()} == {"mchen": 1, "eve": 0, "sam": 1}
    assert rows["mchen"] == rows["sam"]
