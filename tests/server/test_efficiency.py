"""What a run got out of its GPUs: which minute counts for whom, and what is unknown."""

from collections.abc import Iterator
from datetime import datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flopwatch_server.access.principal import Principal
from flopwatch_server.database.engine import Database
from flopwatch_server.efficiency import service
from flopwatch_server.efficiency.schemas import Efficiency, GpuCounts, StateSeconds
from flopwatch_server.jobs.models import Run
from tests.server.world import ADMIN, T0, World, at


@pytest.fixture
def world(database: Database) -> Iterator[World]:
    with database.session() as session:
        yield World(session)


def efficiency(world: World, run: Run, now: datetime) -> Efficiency:
    return service.run_efficiency(world.session, world.view(run, now), now)


def test_minutes_of_each_state_add_up_to_the_allocated_time(world: World) -> None:
    node = world.node()
    first, second = world.gpus(node, 2)
    run = world.run()
    world.hold(run, node, first, 0)
    world.hold(run, node, second, 1)
    world.minutes(first, T0, "AALI")
    world.minutes(second, T0, "IIU ")
    found = efficiency(world, run, at(4, 30)).state_seconds
    # Two GPUs for 270 s; the minutes above, the missing one and twice 30 s of a minute under way.
    assert found == StateSeconds(active=120, low=60, idle=180, unknown=60 + 60 + 60)
    assert found.total == 2 * 270


def test_the_minute_of_a_hand_over_belongs_to_nobody(world: World) -> None:
    node = world.node()
    device = world.gpu(node, 0)
    before = world.run(100, ended_at=at(2, 30), state="COMPLETED")
    after = world.run(101, start=at(2, 30))
    world.hold(before, node, device, end=at(2, 30))
    world.hold(after, node, device)
    world.minutes(device, T0, "AAIII")
    assert efficiency(world, before, at(5, 20)).state_seconds == StateSeconds(
        active=120, unknown=30
    )
    # The unknown 50 s: 30 of the hand-over, 20 of the minute that is under way.
    assert efficiency(world, after, at(5, 20)).state_seconds == StateSeconds(idle=120, unknown=50)


def test_time_on_a_shared_gpu_is_shared_and_gives_no_mean(world: World) -> None:
    node = world.node()
    device = world.gpu(node, 0)
    run = world.run()
    world.hold(run, node, device, shared=True)
    world.minutes(device, T0, "AA", tensor_active=0.5)
    found = efficiency(world, run, at(2))
    assert found.state_seconds == StateSeconds(shared=120)
    assert (found.means["tensor_active"], found.coverage) == (None, None)
    assert found.gpus_now == GpuCounts(shared=1)


def test_a_run_whose_allocations_nobody_told_is_unknown_not_zero(world: World) -> None:
    run = world.run(gpu_count=4)
    found = efficiency(world, run, at(10))
    assert found.state_seconds == StateSeconds(unknown=4 * 600)
    assert found.gpus_now == GpuCounts(unknown=4)
    assert found.coverage is None
    assert set(found.means.values()) == {None}
    assert found.energy_joules is None


def test_an_allocation_of_an_unknown_device_is_unknown(world: World) -> None:
    run = world.run()
    world.hold(run, world.node(), None, ordinal=None)
    found = efficiency(world, run, at(10))
    assert found.state_seconds == StateSeconds(unknown=600)
    assert found.gpus_now == GpuCounts(unknown=1)
    # Nine of the ten minutes are complete, and none of them is known.
    assert found.coverage == 0.0


def test_a_minute_that_is_known_before_its_time_does_not_push_coverage_over_one(
    world: World,
) -> None:
    node = world.node()
    (device,) = world.gpus(node, 1)
    run = world.run()
    world.hold(run, node, device, 0)
    world.minutes(device, T0, "AAA")
    found = efficiency(world, run, at(3, 5))  # minute 2 ended 5 s ago and is here already
    assert found.coverage == 1.0
    assert found.state_seconds.active == 120
    assert found.state_seconds.total == 185


def test_coverage_compares_known_minutes_with_the_complete_ones(world: World) -> None:
    node = world.node()
    device = world.gpu(node, 0)
    run = world.run(start=at(0, 30))
    world.hold(run, node, device)
    world.minutes(device, at(1), "AI U")
    # Whole minutes 1 to 4 are complete by 5:20; minute 0 was a hand-over, minute 5 is under way.
    assert efficiency(world, run, at(5, 20)).coverage == pytest.approx(2 / 4)


def test_means_and_maxima_are_over_all_minutes_of_all_gpus(world: World) -> None:
    node = world.node()
    first, second = world.gpus(node, 2)
    run = world.run()
    world.hold(run, node, first, 0)
    world.hold(run, node, second, 1)
    world.minutes(first, T0, "AAA", tensor_active=0.5, tensor_active_max=0.625, energy_joules=100.0)
    world.minutes(second, T0, "A", tensor_active=0.25, tensor_active_max=0.75, energy_joules=50.0)
    found = efficiency(world, run, at(3, 20))
    assert found.means["tensor_active"] == pytest.approx((3 * 0.5 + 0.25) / 4)
    assert found.maxima["tensor_active"] == 0.75
    assert found.energy_joules == 350.0
    assert found.means["dram_active"] is None
    assert found.maxima["power_watts"] is None


def test_a_minute_whose_counters_contradict_each_other_counts_for_no_mean_or_maximum(
    world: World,
) -> None:
    node = world.node()
    device = world.gpu(node, 0)
    run = world.run()
    world.hold(run, node, device)
    world.minute(device, T0, "active", sm_active=0.5, power_watts_max=400.0)
    world.minute(device, at(1), "unknown", sm_active=0.0, power_watts_max=690.0, samples_suspect=2)
    found = efficiency(world, run, at(2, 20))
    assert (found.means["sm_active"], found.maxima["power_watts"]) == (0.5, 400.0)


@pytest.mark.parametrize(
    ("seconds_after_minute_two", "state"),
    [(19, "active"), (20, "idle")],
    ids=["its last samples may be on their way", "all its samples had time to arrive"],
)
def test_the_newest_minute_counts_twenty_seconds_after_its_end(
    world: World, seconds_after_minute_two: int, state: str
) -> None:
    node = world.node()
    device = world.gpu(node, 0)
    run = world.run()
    world.hold(run, node, device)
    world.minutes(device, T0, "AAI")
    found = service.allocations(
        world.session, ADMIN, "granite", None, at(3, seconds_after_minute_two)
    )
    assert [row.state for row in found] == [state]


@pytest.mark.parametrize(
    ("minute", "state"), [(5, "idle"), (6, "unknown")], ids=["3 minutes late", "4 minutes late"]
)
def test_a_late_minute_is_waited_for_three_minutes(world: World, minute: int, state: str) -> None:
    node = world.node()
    device = world.gpu(node, 0)
    run = world.run()
    world.hold(run, node, device)
    world.minutes(device, T0, "AI")
    # At 5:20 the newest complete minute is 4, and minute 1 is three older.
    assert service.allocations(world.session, ADMIN, None, state, at(minute, 20)) != []


def test_a_new_holder_does_not_inherit_the_state_of_the_last(world: World) -> None:
    node = world.node()
    device = world.gpu(node, 0)
    run = world.run(start=at(1, 10))
    world.hold(run, node, device)
    world.minutes(device, T0, "II")
    assert service.allocations(world.session, ADMIN, None, "idle", at(2, 30)) == []
    assert len(service.allocations(world.session, ADMIN, None, "unknown", at(2, 30))) == 1


def test_four_gpus_without_a_process_are_idle_after_their_first_full_minute(world: World) -> None:
    node = world.node()
    devices = world.gpus(node, 4)
    run = world.run(start=at(0, 30), gpu_count=4)
    for ordinal, device in enumerate(devices):
        world.hold(run, node, device, ordinal)
        world.minutes(device, at(1), "I")
    found = service.allocations(world.session, ADMIN, "granite", "idle", at(2, 20))
    assert [(row.gres_ordinal, row.since, row.job_id) for row in found] == [
        (ordinal, at(1), "100") for ordinal in range(4)
    ]
    assert efficiency(world, run, at(2, 20)).gpus_now == GpuCounts(idle=4)


@pytest.mark.parametrize(
    ("states", "since"),
    [
        ("AAIII", at(2)),
        ("IIAII", at(3)),
        ("II II", at(3)),
        ("IIUII", at(3)),
        ("IIIII", at(0)),
    ],
    ids=["after another state", "newest stretch only", "a missing minute breaks it",
         "an unknown minute breaks it", "since the allocation began"],
)  # fmt: skip
def test_since_is_the_start_of_the_unbroken_run_of_minutes(
    world: World, states: str, since: datetime
) -> None:
    node = world.node()
    device = world.gpu(node, 0)
    world.hold(world.run(), node, device)
    world.minutes(device, at(-1), "I" + states)
    [found] = service.allocations(world.session, ADMIN, None, "idle", at(5, 30))
    assert found.since == since


def test_since_looks_back_seven_days_at_most(world: World) -> None:
    node = world.node()
    device = world.gpu(node, 0)
    start = T0 - timedelta(days=8)
    world.hold(world.run(start=start, submitted_at=start), node, device)
    world.minutes(device, start, "I" * (8 * 1440))
    [found] = service.allocations(world.session, ADMIN, None, "idle", at(0, 20))
    assert found.since == at(-1) - timedelta(days=7)


def test_an_ended_run_holds_nothing_now(world: World) -> None:
    node = world.node()
    device = world.gpu(node, 0)
    run = world.run(ended_at=at(3), state="COMPLETED")
    world.hold(run, node, device, end=at(3))
    world.minutes(device, T0, "IIIIII")
    assert service.allocations(world.session, ADMIN, None, None, at(6)) == []
    assert efficiency(world, run, at(6)).gpus_now == GpuCounts()
    [only] = service.run_devices(world.session, world.view(run, at(6)), at(6))
    assert only.state_now == "ended"


def test_a_researcher_sees_their_own_allocations_and_a_manager_those_of_an_account(
    world: World,
) -> None:
    node = world.node()
    for number, (user, account) in enumerate([("mchen", "nlp"), ("bo", "nlp"), ("cy", "bio")]):
        run = world.run(100 + number, user_name=user, account=account)
        world.hold(run, node, world.gpu(node, number), number)

    def seen(principal: Principal) -> set[str]:
        rows = service.allocations(world.session, principal, "granite", None, at(5))
        return {row.user for row in rows}

    assert seen(Principal("mchen", "researcher")) == {"mchen"}
    assert seen(Principal("bo", "manager", frozenset({"nlp"}))) == {"mchen", "bo"}
    assert seen(ADMIN) == {"mchen", "bo", "cy"}
    assert service.allocations(world.session, ADMIN, "basalt", None, at(5)) == []


def test_a_device_shows_its_newest_sample_and_the_rank_that_computes_on_it(world: World) -> None:
    node = world.node()
    first, second = world.gpus(node, 2)
    run = world.run(gpu_count=2)
    world.hold(run, node, first, 0)
    world.hold(run, node, second, None, place=1)
    world.minutes(first, T0, "A", sm_active=0.75)
    world.samples(first, [at(0, 50), at(1)], power_watts=300.0)
    world.samples(first, [at(1, 10)], power_watts=650.0)
    world.report(run, node, at(1), {}, 1.0, rank=5, device_uuid=first.uuid)
    one, other = service.run_devices(world.session, world.view(run, at(1, 30)), at(1, 30))
    assert (one.place, one.rank, one.latest["power_watts"], one.latest_at) == (
        "g1:0", 5, 650.0, at(1, 10),
    )  # fmt: skip
    assert one.means["sm_active"] == 0.75
    assert (other.place, other.rank, other.latest_at, other.state_now) == (
        "g1:#1", None, None, "unknown",
    )  # fmt: skip


def test_a_sample_that_straddles_the_start_is_not_the_runs_latest(world: World) -> None:
    node = world.node()
    device = world.gpu(node, 0)
    run = world.run(start=at(0, 5))
    world.hold(run, node, device)
    world.samples(device, [at(0, 10)], power_watts=300.0)
    [found] = service.run_devices(world.session, world.view(run, at(0, 15)), at(0, 15))
    assert found.latest_at is None


@settings(max_examples=settings().max_examples // 4)
@given(
    holds=st.lists(
        st.tuples(
            st.integers(0, 900), st.integers(1, 900), st.booleans(), st.text("ALIU ", max_size=20)
        ),
        min_size=1,
        max_size=4,
    ),
    now=st.integers(0, 1500),
)
def test_state_seconds_always_add_up_to_the_allocated_seconds(
    world: World, holds: list[tuple[int, int, bool, str]], now: int
) -> None:
    with world.session.begin_nested() as example:
        node = world.node()
        run = world.run(gpu_count=len(holds))
        for ordinal, (start, length, shared, states) in enumerate(holds):
            device = world.gpu(node, ordinal)
            world.hold(
                run, node, device, ordinal, at(0, start), at(0, start + length), shared=shared
            )
            world.minutes(device, T0, states)
        found = efficiency(world, run, at(0, now)).state_seconds
        example.rollback()
    allocated = sum(max(0, min(start + length, now) - start) for start, length, _, _ in holds)
    assert found.total == pytest.approx(allocated)
    assert min(found.model_dump().values()) >= 0
