"""Series of a run: one grid, nothing bridged, gaps with their cause."""

from collections.abc import Iterator
from datetime import datetime, timedelta

import pytest

from flopwatch_server.database.engine import Database
from flopwatch_server.efficiency import service
from flopwatch_server.efficiency.schemas import RunSeries, SeriesGap
from flopwatch_server.efficiency.series import Grid
from flopwatch_server.fleet.models import AgentEpoch, Device, Node
from flopwatch_server.jobs.models import Run
from flopwatch_server.telemetry.models import Gap
from tests.server.world import T0, World, at

ZERO = int(T0.timestamp())


@pytest.fixture
def world(database: Database) -> Iterator[World]:
    with database.session() as session:
        yield World(session)


def one_gpu(world: World, start: datetime = T0, end: datetime | None = None) -> tuple[Run, Device]:
    node = world.node()
    device = world.gpu(node, 0)
    run = world.run(start=start, ended_at=end)
    world.hold(run, node, device, end=end)
    return run, device


def series(
    world: World, run: Run, metrics: list[str], start: datetime, end: datetime,
    now: datetime | None = None, after: int | None = None,
) -> RunSeries:  # fmt: skip
    now = now or end
    view = world.view(run, now)
    return service.run_series(world.session, view, metrics, start, end, now, after)


@pytest.mark.parametrize(
    ("hours", "step", "points"),
    [
        (2, 10, 720),
        (2.01, 60, 120),
        (24, 60, 1440),
        (25, 120, 750),
        (24 * 14, 14 * 60, 1440),
        (24 * 14 + 1, 3600, 24 * 14 + 1),
        (24 * 60, 3600, 1440),
        (24 * 97, 7200, 1164),
    ],
)
def test_the_step_grows_with_the_window(hours: float, step: int, points: int) -> None:
    grid = Grid.over(T0, T0 + timedelta(hours=hours))
    assert (grid.step, len(grid.times)) == (step, points)


def test_all_gpus_are_on_one_grid_with_none_where_nothing_is_known(world: World) -> None:
    node = world.node()
    first, second = world.gpus(node, 2)
    run = world.run(gpu_count=2)
    world.hold(run, node, first, 0)
    world.hold(run, node, second, 1)
    world.samples(first, [at(0, 10), at(0, 20)], sm_active=0.5, power_watts=400.0)
    world.samples(second, [at(0, 20)], sm_active=0.25)
    found = series(world, run, ["sm_active", "power_watts"], T0, at(0, 30))
    assert found.step_seconds == 10
    assert found.times == [ZERO + 10, ZERO + 20, ZERO + 30]
    assert [device.place for device in found.devices] == ["g1:0", "g1:1"]
    assert found.devices[0].values == {
        "sm_active": [0.5, 0.5, None], "power_watts": [400.0, 400.0, None],
    }  # fmt: skip
    assert found.devices[1].values == {
        "sm_active": [None, 0.25, None], "power_watts": [None, None, None],
    }  # fmt: skip


def test_samples_that_straddle_a_hand_over_belong_to_nobody(world: World) -> None:
    run, device = one_gpu(world, start=at(0, 15), end=at(0, 45))
    world.samples(device, [at(0, 10 * n) for n in range(1, 7)], sm_active=0.5)
    [found] = series(world, run, ["sm_active"], T0, at(1)).devices
    # The sample at 20 s covers 10 to 20 s, of which 5 were somebody else's; so does that at 50 s.
    assert found.values["sm_active"] == [None, None, 0.5, 0.5, None, None]
    assert found.states == [None, None, "unknown", "unknown", None, None]


def test_a_sample_has_the_state_of_its_minute(world: World) -> None:
    run, device = one_gpu(world)
    world.minutes(device, T0, "IA")
    [found] = series(world, run, ["sm_active"], at(0, 40), at(2, 20)).devices
    assert found.states == ["idle"] * 2 + ["active"] * 6 + ["unknown"] * 2


def test_a_shared_gpu_has_no_state_of_its_own(world: World) -> None:
    node = world.node()
    device = world.gpu(node, 0)
    run = world.run()
    world.hold(run, node, device, shared=True)
    world.minutes(device, T0, "A")
    [found] = series(world, run, ["sm_active"], T0, at(1)).devices
    assert found.states == ["unknown"] * 6


def test_of_two_epochs_with_the_same_time_the_newer_one_stays(world: World) -> None:
    run, device = one_gpu(world)
    node = world.session.query(Node).one()
    newer = world.add(
        AgentEpoch(node_id=node.id, boot_id="g1", number=2, started_at=T0, agent_version="0.1.0")
    )
    world.samples(device, [at(0, 10)], newer.id, sm_active=0.75)
    world.samples(device, [at(0, 10)], sm_active=0.25)
    [found] = series(world, run, ["sm_active"], T0, at(0, 10)).devices
    assert found.values["sm_active"] == [0.75]


def test_longer_windows_are_made_of_minutes(world: World) -> None:
    run, device = one_gpu(world)
    world.minutes(device, at(1), "A", sm_active=0.5, energy_joules=100.0)
    found = series(world, run, ["sm_active", "energy_joules", "source_period"], T0, at(121))
    assert found.step_seconds == 60
    values = found.devices[0].values
    assert values["sm_active"][:3] == [None, 0.5, None]
    assert values["energy_joules"][1] == 100.0
    assert values["source_period"][1] is None
    assert found.devices[0].states[:3] == ["unknown", "active", "unknown"]


def test_steps_of_several_minutes_keep_sums_extremes_and_the_commonest_state(world: World) -> None:
    run, device = one_gpu(world)
    world.minute(device, at(1), "idle", sm_active=0.0, energy_joules=60.0, sm_min=0.0, sm_max=0.0)
    for minute, activity in ((2, 0.5), (3, 1.0)):
        world.minute(device, at(minute), "active", sm_active=activity, energy_joules=600.0,
                     sm_min=0.25, sm_max=activity)  # fmt: skip
    # 4 days in 1,440 points: 4 minutes a step.
    found = series(
        world, run, ["sm_active", "energy_joules", "sm_min", "sm_max"], T0, T0 + timedelta(days=4)
    )
    assert found.step_seconds == 240
    assert {name: values[0] for name, values in found.devices[0].values.items()} == {
        "sm_active": 0.5, "energy_joules": 1260.0, "sm_min": 0.0, "sm_max": 1.0,
    }  # fmt: skip
    assert found.devices[0].states[:2] == ["active", "unknown"]


def test_after_gives_only_later_points(world: World) -> None:
    run, device = one_gpu(world)
    world.samples(device, [at(0, 10 * n) for n in range(1, 7)], sm_active=0.5)
    found = series(world, run, ["sm_active"], T0, at(1), after=ZERO + 40)
    assert found.times == [ZERO + 50, ZERO + 60]
    assert found.devices[0].values["sm_active"] == [0.5, 0.5]
    assert series(world, run, ["sm_active"], T0, at(1), after=ZERO + 60).times == []


def test_no_point_lies_in_the_future(world: World) -> None:
    run, _ = one_gpu(world)
    assert series(world, run, ["sm_active"], T0, at(5), now=at(0, 25)).times[-1] == ZERO + 20
    assert series(world, run, ["sm_active"], at(5), at(6), now=at(1)).times == []


def test_more_than_two_steps_without_a_point_are_a_gap(world: World) -> None:
    node = world.node()
    first, second = world.gpus(node, 2)
    run = world.run(gpu_count=2)
    world.hold(run, node, first, 0)
    world.hold(run, node, second, 1)
    present = [10, 20, 50, 60, 100, 110, 120]
    world.samples(first, [at(0, s) for s in present[:4]], sm_active=0.5)
    world.samples(second, [at(0, s) for s in present[4:]], sm_active=0.5)
    found = series(world, run, ["sm_active"], T0, at(2), now=at(2, 20))
    # 30 and 40 s are two steps and no gap; 70, 80 and 90 s are three.
    assert found.gaps == [SeriesGap(start=ZERO + 60, end=ZERO + 90, cause=None)]


def test_a_gap_tells_the_recorded_cause(world: World) -> None:
    run, device = one_gpu(world)
    world.samples(device, [at(0, 10), at(2)], sm_active=0.5)
    world.add(Gap(device_id=device.id, valid_from=at(0, 5), valid_to=at(0, 20), cause="spool full"))
    world.add(Gap(device_id=device.id, valid_from=at(0, 20), valid_to=at(1, 50), cause="no agent"))
    found = series(world, run, ["sm_active"], T0, at(2), now=at(2, 20))
    assert found.gaps == [SeriesGap(start=ZERO + 10, end=ZERO + 110, cause="no agent")]


def test_no_gap_is_seen_outside_the_allocation_or_while_samples_may_be_on_their_way(
    world: World,
) -> None:
    run, device = one_gpu(world, start=at(1))
    world.samples(device, [at(1, 10), at(1, 20)], sm_active=0.5)
    assert series(world, run, ["sm_active"], T0, at(1, 50), now=at(1, 50)).gaps == []


def test_live_points_still_tell_of_the_gap_before_them(world: World) -> None:
    run, device = one_gpu(world)
    world.samples(device, [at(0, 10), at(1)], sm_active=0.5)
    found = series(world, run, ["sm_active"], T0, at(1), now=at(1, 20), after=ZERO + 50)
    assert found.times == [ZERO + 60]
    assert found.gaps == [SeriesGap(start=ZERO + 10, end=ZERO + 50, cause=None)]


def test_minutes_without_a_sample_are_a_gap_in_a_long_window(world: World) -> None:
    run, device = one_gpu(world)
    world.minutes(device, T0, "A" * 60)
    world.minutes(device, at(63), "A" * 58)
    found = series(world, run, ["sm_active"], T0, at(121), now=at(122))
    assert found.gaps == [SeriesGap(start=ZERO + 3600, end=ZERO + 3780, cause=None)]


def test_an_unknown_metric_and_a_backward_window_are_refused(world: World) -> None:
    run, _ = one_gpu(world)
    with pytest.raises(ValueError, match="no such metric: sm_activ"):
        series(world, run, ["sm_activ"], T0, at(1))
    with pytest.raises(ValueError, match="ends before it starts"):
        series(world, run, ["sm_active"], at(1), T0)
