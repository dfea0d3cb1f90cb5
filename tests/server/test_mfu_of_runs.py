"""MFU of a run from reports: values worked out by hand with peaks of 100 and 50 TFLOP/s."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from flopwatch.gpus import PeakTable
from flopwatch_server.database.engine import Database
from flopwatch_server.efficiency import service
from flopwatch_server.efficiency.schemas import Mfu
from flopwatch_server.jobs.models import Run
from tests.server.world import T0, World, at

GPU = "Test GPU"
BF16 = "bfloat16"
FP32 = "float32"
ZERO = int(T0.timestamp())


@pytest.fixture
def world(database: Database) -> Iterator[World]:
    with database.session() as session:
        yield World(session)


@pytest.fixture
def peaks(tmp_path: Path) -> PeakTable:
    site = tmp_path / "peaks.csv"
    site.write_text("name_pattern,tflops_bf16,tflops_fp32\n^Test GPU$,100,50\n^CPU$,,0.1\n")
    return PeakTable.load(site)


def mfu_of(world: World, run: Run, peaks: PeakTable, minutes: float = 10) -> Mfu:
    found = service.run_mfu(world.session, world.view(run, at(minutes)), peaks, at(minutes))
    assert found is not None
    return found


def test_a_run_without_reports_has_no_mfu(world: World, peaks: PeakTable) -> None:
    run = world.run()
    assert service.run_mfu(world.session, world.view(run, at(1)), peaks, at(1)) is None


def test_train_and_job_mfu_of_two_ranks(world: World, peaks: PeakTable) -> None:
    node = world.node()
    run = world.run(gpu_count=2)
    for rank, device in enumerate(world.gpus(node, 2)):
        world.hold(run, node, device, rank)
    # Ideal time: 9e15 / 100e12 = 90 s and 6e15 / 100e12 + 1.5e15 / 50e12 = 90 s.
    world.report(run, node, at(5), {BF16: 9e15}, 300.0, 0, device_name=GPU, world_size=2, steps=100)
    world.report(run, node, at(5), {BF16: 6e15, FP32: 1.5e15}, 150.0, 1, device_name=GPU,
                 world_size=2, steps=50)  # fmt: skip
    found = mfu_of(world, run, peaks)
    assert found.train_mfu == pytest.approx(180 / 450)
    assert found.job_mfu == pytest.approx(180 / (2 * 600))
    assert found.train_share == pytest.approx(450 / 1200)
    assert (found.ranks, found.steps, found.dtype, found.note, found.reason) == (
        2, 100, BF16, None, None,
    )  # fmt: skip
    assert found.step_seconds == pytest.approx(3.0)
    assert found.flops_per_second == pytest.approx(16.5e15 / 450)
    assert (found.peak_flops, found.reported_at) == (100e12, at(5))


def test_only_the_newest_report_of_a_process_counts(world: World, peaks: PeakTable) -> None:
    node = world.node()
    run = world.run()
    world.report(run, node, at(1), {BF16: 1e15}, 60.0, device_name=GPU)
    world.report(run, node, at(2), {BF16: 3e15}, 60.0, device_name=GPU)
    assert mfu_of(world, run, peaks).train_mfu == pytest.approx(30 / 60)


def test_a_training_that_was_started_again_adds_up(world: World, peaks: PeakTable) -> None:
    node = world.node()
    run = world.run()
    world.report(run, node, at(1), {BF16: 1e15}, 20.0, boot="one", device_name=GPU, steps=10)
    world.report(run, node, at(4), {BF16: 5e15}, 100.0, boot="two", device_name=GPU, steps=40)
    found = mfu_of(world, run, peaks)
    assert found.train_mfu == pytest.approx((10 + 50) / 120)
    assert (found.ranks, found.steps) == (1, 50)


def test_reports_of_another_run_of_the_same_job_do_not_count(
    world: World, peaks: PeakTable
) -> None:
    node = world.node()
    first = world.run(ended_at=at(3), state="NODE_FAIL", display_id="first")
    second = world.run(submitted_at=at(3), start=at(4), display_id="second")
    world.report(first, node, at(2), {BF16: 1e15}, 100.0, boot="one", device_name=GPU)
    world.report(second, node, at(5), {BF16: 2e15}, 40.0, boot="two", device_name=GPU)
    assert mfu_of(world, first, peaks).train_mfu == pytest.approx(10 / 100)
    assert mfu_of(world, second, peaks).train_mfu == pytest.approx(20 / 40)


def test_a_device_without_a_known_peak_has_no_mfu(world: World, peaks: PeakTable) -> None:
    run, node = world.run(), world.node()
    world.report(run, node, at(1), {BF16: 1e15}, 60.0, device_name="Unheard GPU", steps=5)
    found = mfu_of(world, run, peaks)
    assert (found.train_mfu, found.job_mfu, found.train_share) == (None, None, None)
    assert found.reason == "peak of Unheard GPU for bfloat16 is not known"
    assert found.steps == 5


def test_a_dtype_without_a_known_peak_has_no_mfu_unless_it_did_no_work(
    world: World, peaks: PeakTable
) -> None:
    node = world.node()
    run, other = world.run(100), world.run(101)
    world.report(run, node, at(1), {BF16: 1e9, FP32: 1e12}, 60.0, device_name="CPU")
    world.report(other, node, at(1), {BF16: 0.0, FP32: 3e12}, 60.0, boot="c", device_name="CPU")
    assert mfu_of(world, run, peaks).reason == "peak of CPU for bfloat16 is not known"
    # 3e12 / 0.1e12 = 30 s of 60.
    assert mfu_of(world, other, peaks).train_mfu == pytest.approx(0.5)


def test_the_reason_of_a_report_is_told(world: World, peaks: PeakTable) -> None:
    run, node = world.run(), world.node()
    world.report(run, node, at(1), {}, 60.0, device_name=GPU, reason="no formula for aten::lstm")
    found = mfu_of(world, run, peaks)
    assert (found.train_mfu, found.reason) == (None, "no formula for aten::lstm")


def test_before_the_first_step_there_is_no_mfu(world: World, peaks: PeakTable) -> None:
    run, node = world.run(), world.node()
    world.report(run, node, at(1), {BF16: 1e12}, 0.0, device_name=GPU, steps=0)
    found = mfu_of(world, run, peaks)
    assert (found.train_mfu, found.step_seconds) == (None, None)
    assert found.reason == "no optimizer step reported yet"


def test_missing_ranks_are_noted(world: World, peaks: PeakTable) -> None:
    run, node = world.run(), world.node()
    for rank in range(3):
        world.report(run, node, at(1), {BF16: 1e15}, 20.0, rank, device_name=GPU, world_size=8)
    found = mfu_of(world, run, peaks)
    assert (found.train_mfu, found.note) == (pytest.approx(0.5), "3 of 8 ranks report")


def test_a_value_above_one_is_flagged(world: World, peaks: PeakTable) -> None:
    run, node = world.run(), world.node()
    world.report(run, node, at(1), {BF16: 8e15}, 60.0, device_name=GPU)
    found = mfu_of(world, run, peaks)
    assert found.train_mfu == pytest.approx(80 / 60)
    assert found.note == "a train MFU of 133% is implausible: check the peak of Test GPU"


def test_without_known_gpu_time_there_is_no_job_mfu(world: World, peaks: PeakTable) -> None:
    run, node = world.run(gpu_count=None), world.node()
    world.report(run, node, at(1), {BF16: 1e15}, 20.0, device_name=GPU)
    found = mfu_of(world, run, peaks)
    assert (found.train_mfu, found.job_mfu, found.train_share) == (pytest.approx(0.5), None, None)


def test_each_minute_shows_what_was_done_in_it(world: World, peaks: PeakTable) -> None:
    run, node = world.run(), world.node()
    for second, ideal, trained in ((30, 5, 10), (55, 10, 25), (85, 15, 45), (110, 28, 77)):
        world.report(run, node, at(0, second), {BF16: ideal * 1e14}, trained, device_name=GPU,
                     elapsed_seconds=second)  # fmt: skip
    found = service.run_mfu_series(world.session, world.view(run, at(5)), peaks, T0, at(5))
    # Minute 1: 10 s of ideal time in 25 s; minute 2: 28 − 10 in 77 − 25.
    assert [(point.time - ZERO, point.train_mfu) for point in found] == [
        (60, pytest.approx(10 / 25)), (120, pytest.approx(18 / 52)),
    ]  # fmt: skip


def test_a_minute_sums_over_ranks_and_boots(world: World, peaks: PeakTable) -> None:
    run, node = world.run(), world.node()
    for boot, rank, ideal, trained in (("a", 0, 10, 20), ("a", 1, 10, 40), ("z", 0, 1, 10)):
        world.report(run, node, at(0, 50), {BF16: ideal * 1e14}, trained, rank, boot,
                     device_name=GPU)  # fmt: skip
    [point] = service.run_mfu_series(world.session, world.view(run, at(5)), peaks, T0, at(5))
    assert point.train_mfu == pytest.approx(21 / 70)


def test_a_minute_without_a_step_or_with_an_unknown_peak_has_no_value(
    world: World, peaks: PeakTable
) -> None:
    run, node = world.run(), world.node()
    world.report(run, node, at(0, 50), {BF16: 1e15}, 20.0, device_name=GPU)
    world.report(run, node, at(1, 50), {BF16: 1e15}, 20.0, device_name=GPU)
    world.report(run, node, at(2, 50), {BF16: 2e15}, 40.0, device_name=GPU)
    world.report(run, node, at(2, 50), {BF16: 1.0}, 1.0, 1, "c", device_name="Unheard GPU")
    found = service.run_mfu_series(world.session, world.view(run, at(5)), peaks, T0, at(5))
    assert [point.train_mfu for point in found] == [pytest.approx(0.5), None, None]


def test_a_window_in_the_middle_does_not_count_what_went_before_it(
    world: World, peaks: PeakTable
) -> None:
    run, node = world.run(), world.node()
    for minute in range(1, 30):
        world.report(run, node, at(minute), {BF16: minute * 3e15}, minute * 60.0, device_name=GPU)
    view = world.view(run, at(30))
    found = service.run_mfu_series(world.session, view, peaks, at(10), at(12))
    assert [(point.time - ZERO, point.train_mfu) for point in found] == [
        (660, pytest.approx(0.5)), (720, pytest.approx(0.5)),
    ]  # fmt: skip


def test_a_process_that_was_long_silent_does_not_start_from_zero(
    world: World, peaks: PeakTable
) -> None:
    run, node = world.run(), world.node()
    world.report(run, node, at(1), {BF16: 3e15}, 60.0, device_name=GPU, elapsed_seconds=60)
    world.report(run, node, at(50), {BF16: 150e15}, 3000.0, device_name=GPU, elapsed_seconds=3000)
    world.report(run, node, at(51), {BF16: 156e15}, 3060.0, device_name=GPU, elapsed_seconds=3060)
    view = world.view(run, at(60))
    found = service.run_mfu_series(world.session, view, peaks, at(49), at(60))
    assert [(point.time - ZERO, point.train_mfu) for point in found] == [
        (51 * 60, pytest.approx(1.0))
    ]


def test_a_process_that_claims_to_be_older_than_all_dates_is_only_old(
    world: World, peaks: PeakTable
) -> None:
    run, node = world.run(), world.node()
    for minute in (1, 2):
        world.report(run, node, at(minute), {BF16: minute * 6e15}, 60.0 * minute, device_name=GPU,
                     elapsed_seconds=1e20)  # fmt: skip
    points = service.run_mfu_series(world.session, world.view(run, at(3)), peaks, T0, at(3))
    assert [point.train_mfu for point in points] == [pytest.approx(1.0)]
