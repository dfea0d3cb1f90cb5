"""Series from samples, minutes or hours: what fits the window and is still kept, without a seam."""

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta

import pytest
from sqlalchemy import text

from flopwatch_server.database.engine import Database
from flopwatch_server.database.partitions import ensure_days
from flopwatch_server.efficiency import service
from flopwatch_server.efficiency.schemas import RunSeries, SeriesGap
from flopwatch_server.fleet.models import Device
from flopwatch_server.jobs.models import Run
from flopwatch_server.settings import Thresholds
from flopwatch_server.telemetry.models import Gap
from flopwatch_server.telemetry.repository.hours import HOURS
from flopwatch_server.telemetry.repository.rollups import recompute
from tests.server.world import T0, World, at

# One transaction, which is READ COMMITTED already, holds a whole test here.
pytestmark = pytest.mark.filterwarnings("ignore:Connection is already established")
ZERO = int(T0.timestamp())
HOUR = timedelta(hours=1)
DAYS_20 = T0 + timedelta(days=20)
METRICS = ["sm_active", "energy_joules", "sm_min", "sm_max"]
OLD_WEEK = "device_minutes_20260309"  # T0 is a Thursday, 12 March 2026, 09:00


@pytest.fixture
def world(database: Database) -> Iterator[World]:
    with database.session() as session:
        session.connection(execution_options={"isolation_level": "READ COMMITTED"})
        yield World(session)


def hold(
    world: World, device: Device, start: datetime, end: datetime | None, number: int = 100
) -> Run:
    run = world.run(number, start=start, ended_at=end)
    node = world.session.execute(text("SELECT min(id) FROM nodes")).scalar_one()
    known = {"node_id": node, "place": 0, "shared": False, "source": "slurm",
             "confidence": "likely", "gres_ordinal": 0}  # fmt: skip
    world.session.execute(
        text(
            "INSERT INTO allocations (run_id, device_id, valid_from, valid_to, "
            f"{', '.join(known)}) VALUES (:run_id, :device_id, :start, :end, "
            f"{', '.join(f':{name}' for name in known)})"
        ),
        {"run_id": run.id, "device_id": device.id, "start": start, "end": end, **known},
    )
    return run


def fill(world: World, device: Device, start: datetime, end: datetime) -> None:
    """Active minutes of [start, end): SM activity 0.25 in even and 0.75 in odd ones, 60 J each."""
    days = (end - start).days + 1
    ensure_days(world.session, [(start + timedelta(n)).date() for n in range(days + 1)])
    world.session.execute(
        text(
            "INSERT INTO device_minutes (device_id, minute, state, samples_received, "
            "samples_expected, samples_suspect, sm_active, energy_joules, sm_min, sm_max) "
            "SELECT :device, minute, 3, 6, 6, 0, 0.25 + 0.5 * mod(n - 1, 2), 60, 0.125, 0.875 "
            "FROM generate_series(CAST(:start AS timestamptz), :last, '1 minute') "
            "WITH ORDINALITY AS series (minute, n)"
        ),
        {"device": device.id, "start": start, "last": end - timedelta(minutes=1)},
    )


def make_hours(world: World, now: datetime) -> None:
    world.session.execute(
        text(
            "INSERT INTO dirty_hours (device_id, hour) "
            "SELECT DISTINCT device_id, date_trunc('hour', minute) FROM device_minutes"
        )
    )
    recompute(world.session, HOURS, Thresholds(), now)


def drop(world: World, table: str) -> None:
    world.session.execute(text(f"DROP TABLE {table}"))


def series(
    world: World, run: Run, start: datetime, end: datetime, now: datetime | None = None,
    metrics: Sequence[str] = METRICS,
) -> RunSeries:  # fmt: skip
    now = now or end
    return service.run_series(world.session, world.view(run, now), metrics, start, end, now)


def known(found: RunSeries, metric: str) -> dict[int, float]:
    """Values by hours after time zero, of the only device, where there are any."""
    [device] = found.devices
    pairs = zip(found.times, device.values[metric], strict=True)
    return {(time - ZERO) // 3600: value for time, value in pairs if value is not None}


def test_a_short_window_is_read_from_the_finest_tier_that_is_kept(world: World) -> None:
    device = world.gpu(world.node(), 0)
    run = hold(world, device, T0, None)
    world.samples(device, [at(n) for n in range(1, 61)], sm_active=0.5)
    fill(world, device, T0, at(60))
    make_hours(world, at(120))
    window = (T0, at(60), at(120))
    assert series(world, run, *window).step_seconds == 10
    drop(world, "samples_20260312")
    minutes = series(world, run, *window)
    assert minutes.step_seconds == 60
    assert minutes.devices[0].values["sm_active"] == [0.25, 0.75] * 30
    drop(world, OLD_WEEK)
    hours = series(world, run, *window)
    assert (hours.step_seconds, hours.times) == (3600, [ZERO + 3600])
    assert {name: values for name, values in hours.devices[0].values.items()} == {
        "sm_active": [0.5], "energy_joules": [3600.0], "sm_min": [0.125], "sm_max": [0.875],
    }  # fmt: skip
    assert hours.devices[0].states == ["active"]


def test_samples_that_never_were_coarsen_nothing(world: World) -> None:
    device = world.gpu(world.node(), 0)
    run = hold(world, device, T0, None)
    drop(world, "samples_20260312")  # nothing was made of it
    assert series(world, run, T0, at(60)).step_seconds == 10


def test_a_window_that_starts_where_samples_are_dropped_is_read_from_minutes_as_a_whole(
    world: World,
) -> None:
    midnight = datetime(2026, 3, 13, tzinfo=T0.tzinfo)
    device = world.gpu(world.node(), 0)
    run = hold(world, device, T0, None)
    fill(world, device, midnight - HOUR, midnight + HOUR)
    world.samples(device, [midnight + timedelta(seconds=10)], sm_active=0.5)
    drop(world, "samples_20260312")
    found = series(world, run, midnight - HOUR, midnight + HOUR)
    assert found.step_seconds == 60
    assert found.devices[0].values["sm_active"] == [0.25, 0.75] * 60
    later = series(world, run, midnight, midnight + HOUR)
    assert later.step_seconds == 10
    assert later.devices[0].values["sm_active"][:2] == [0.5, None]


def test_every_minute_counts_once_where_an_allocation_begins_and_ends_within_an_hour(
    world: World,
) -> None:
    device = world.gpu(world.node(), 0)
    first = hold(world, device, at(17), at(200), 100)
    second = hold(world, device, at(200), at(250, 30), 101)
    fill(world, device, T0, at(300))
    make_hours(world, DAYS_20)
    energy = known(series(world, first, T0, DAYS_20), "energy_joules")
    # 09:17 to 12:20: 43, 60, 60 and 20 minutes of 60 J.
    assert energy == {1: 43 * 60, 2: 3600, 3: 3600, 4: 20 * 60}
    assert known(series(world, first, T0, DAYS_20), "sm_active") == {
        1: pytest.approx((21 * 0.25 + 22 * 0.75) / 43), 2: 0.5, 3: 0.5, 4: 0.5,
    }  # fmt: skip
    # 12:20 to 13:10: 40 minutes and 10; the minute of the end belongs to nobody.
    assert known(series(world, second, T0, DAYS_20), "energy_joules") == {4: 2400, 5: 600}
    drop(world, OLD_WEEK)
    assert known(series(world, first, T0, DAYS_20), "energy_joules") == {2: 3600, 3: 3600}
    assert known(series(world, second, T0, DAYS_20), "energy_joules") == {}


def test_where_minutes_end_and_hours_begin_no_step_is_lost_or_counted_twice(world: World) -> None:
    device = world.gpu(world.node(), 0)
    run = hold(world, device, T0, None)
    now = DAYS_20 + timedelta(minutes=5)
    fill(world, device, T0, DAYS_20)
    make_hours(world, now)
    kept = series(world, run, T0, DAYS_20, now)
    drop(world, OLD_WEEK)  # until 16 March
    found = series(world, run, T0, DAYS_20, now)
    assert found == kept
    assert found.step_seconds == 3600
    assert known(found, "energy_joules") == dict.fromkeys(range(1, 481), 3600.0)
    assert known(found, "sm_active") == dict.fromkeys(range(1, 481), 0.5)
    assert found.devices[0].states == ["active"] * 480
    assert found.gaps == []


def test_what_is_too_young_for_hours_comes_from_minutes(world: World) -> None:
    device = world.gpu(world.node(), 0)
    run = hold(world, device, T0, None)
    fill(world, device, T0, at(180))
    make_hours(world, at(120))  # the third hour is not over
    world.session.execute(text("TRUNCATE dirty_hours"))
    start, now = T0 - timedelta(days=15), at(185)
    assert known(series(world, run, start, at(180), now), "energy_joules") == dict.fromkeys(
        (1, 2, 3), 3600.0
    )


def test_steps_of_several_hours_weigh_hours_by_their_minutes(world: World) -> None:
    device = world.gpu(world.node(), 0)
    run = hold(world, device, T0, None)
    fill(world, device, at(60), at(120))
    world.minute(device, at(120), "idle", sm_active=0.0, energy_joules=6.0)
    now = T0 + timedelta(days=80)
    make_hours(world, now)
    found = series(world, run, T0, now)
    assert found.step_seconds == 7200
    # On a grid of even hours the second step is 10:00 to 12:00.
    [values] = [device.values for device in found.devices]
    assert values["energy_joules"][:3] == [None, 3606.0, None]
    assert values["sm_active"][1] == pytest.approx(60 * 0.5 / 61)
    assert found.devices[0].states[1] == "active"


def test_a_gap_stays_a_gap_in_every_tier(world: World) -> None:
    device = world.gpu(world.node(), 0)
    run = hold(world, device, T0, at(600))
    fill(world, device, T0, at(180))
    fill(world, device, at(420), at(600))
    world.add(Gap(device_id=device.id, valid_from=at(180), valid_to=at(420), cause="spool full"))
    gap = SeriesGap(start=ZERO + 10_800, end=ZERO + 25_200, cause="spool full")
    assert series(world, run, T0, at(600), DAYS_20).gaps == [gap]
    make_hours(world, DAYS_20)
    found = series(world, run, T0, DAYS_20)
    assert (found.step_seconds, found.gaps) == (3600, [gap])
    drop(world, OLD_WEEK)
    found = series(world, run, T0, at(600), DAYS_20)
    assert (found.step_seconds, found.gaps) == (3600, [gap])
    assert found.devices[0].states[3:7] == ["unknown"] * 4


def test_points_after_a_time_come_with_the_gaps_of_the_whole_window(world: World) -> None:
    device = world.gpu(world.node(), 0)
    run = hold(world, device, T0, at(600))
    fill(world, device, T0, at(60))
    fill(world, device, at(360), at(600))
    make_hours(world, DAYS_20)
    found = service.run_series(
        world.session, world.view(run, DAYS_20), METRICS, T0, DAYS_20, DAYS_20, ZERO + 8 * 3600
    )
    assert found.times[0] == ZERO + 9 * 3600
    assert found.gaps == [SeriesGap(start=ZERO + 3600, end=ZERO + 6 * 3600, cause=None)]
