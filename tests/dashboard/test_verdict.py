"""The sentence that opens a job's page, for each kind of job; sentences are written by hand."""

from datetime import timedelta

from flopwatch_dashboard.pages.job.verdict import gap_text, outlier, verdict
from flopwatch_server.efficiency.schemas import GpuCounts, SeriesGap
from tests.dashboard.builders import NOW, efficiency, idle_gpus, mfu, run


def test_a_waiting_job_says_how_long_and_why() -> None:
    waiting = run(state="PENDING", started_at=None, reason="Resources",
                  submitted_at=NOW - timedelta(minutes=33))  # fmt: skip
    text = verdict(waiting, efficiency(coverage=None), [], None, NOW)
    assert text == "The job has waited for 8 GPUs for 33 min; the scheduler says Resources."


def test_a_job_cancelled_in_the_queue_never_started() -> None:
    cancelled = run(state="CANCELLED", started_at=None, ended_at=NOW,
                    submitted_at=NOW - timedelta(minutes=33))  # fmt: skip
    text = verdict(cancelled, efficiency(coverage=None), [], None, NOW + timedelta(hours=5))
    assert text == "The job never started: it waited 33 min in the queue and was cancelled."


def test_a_job_without_samples_asks_for_the_agent_and_does_not_call_it_idle() -> None:
    text = verdict(run(), efficiency(unknown=49.6, coverage=0.0), [], None, NOW)
    assert text == "No samples from g014 since the job started: is an agent running there?"


def test_a_job_whose_gpus_all_stand_idle_says_for_how_long_and_what_it_cost() -> None:
    figures = efficiency(active=9.4, idle=40.2, gpus_now=GpuCounts(idle=8), sm_active=0.1)
    idle = idle_gpus(8, NOW - timedelta(hours=5, minutes=2))
    assert verdict(run(), figures, idle, None, NOW) == (
        "All 8 GPUs have been idle for 5 h 02 min; the job has lost 40 GPU-h to idle GPUs so far."
    )


def test_a_few_idle_gpus_are_counted_out_of_those_held() -> None:
    figures = efficiency(active=40, gpus_now=GpuCounts(active=5, idle=3), sm_active=0.6)
    text = verdict(run(), figures, idle_gpus(3, NOW - timedelta(minutes=9)), None, NOW)
    assert text == "3 of 8 GPUs have been idle for 9 min."


def test_gpus_that_fell_idle_one_after_the_other_are_idle_as_long_as_the_last() -> None:
    figures = efficiency(active=40, gpus_now=GpuCounts(active=6, idle=2), sm_active=0.6)
    idle = idle_gpus(1, NOW - timedelta(hours=3)) + idle_gpus(1, NOW - timedelta(minutes=2))
    assert verdict(run(), figures, idle, None, NOW) == "2 of 8 GPUs have been idle for 2 min."


def test_what_has_ended_is_told_in_the_past() -> None:
    figures = efficiency(active=49, sm_active=0.94, tensor_active=0.54)
    ended = run(state="COMPLETED", ended_at=NOW)
    assert verdict(ended, figures, [], None, NOW) == (
        "The job used its GPUs well: SM active 94 %, tensor active 54 %."
    )


def test_idle_time_of_the_past_is_told_when_no_gpu_is_idle_now() -> None:
    figures = efficiency(active=36.8, idle=12.8, unknown=0.4, sm_active=0.6)
    text = verdict(run(), figures, [], None, NOW)
    assert text == "The GPUs stood idle for 26 % of the time so far: 13 of 50 GPU-h."


def test_unknown_time_does_not_count_as_idle() -> None:
    figures = efficiency(active=30, idle=2, unknown=20, sm_active=0.9, tensor_active=0.6)
    assert "idle" not in verdict(run(), figures, [], None, NOW)


def test_a_good_run_is_praised_with_its_numbers() -> None:
    figures = efficiency(active=49, sm_active=0.94, tensor_active=0.54)
    assert verdict(run(), figures, [], mfu(0.412), NOW) == (
        "The job uses its GPUs well: SM active 94 %, tensor active 54 %, MFU 41 % while training."
    )


def test_high_mfu_alone_makes_a_busy_run_a_good_one() -> None:
    figures = efficiency(active=49, sm_active=0.85, tensor_active=0.45)
    assert "well" in verdict(run(), figures, [], mfu(0.40), NOW)
    assert "part of what" in verdict(run(), figures, [], mfu(0.39), NOW)


def test_busy_gpus_with_unused_tensor_cores_are_told_apart() -> None:
    figures = efficiency(active=49, sm_active=0.91, tensor_active=0.011)
    text = verdict(run(), figures, [], None, NOW)
    assert text == (
        "The GPUs are busy, but their tensor cores are unused: SM active 91 %, tensor active 1.1 %."
    )


def test_a_single_gpu_is_spoken_of_as_one() -> None:
    figures = efficiency(active=6, sm_active=0.91, tensor_active=0.011)
    text = verdict(run(gpus=1), figures, [], None, NOW)
    assert text.startswith("The GPU is busy, but its tensor cores are unused: ")


def test_a_low_run_hardly_uses_its_gpus() -> None:
    figures = efficiency(low=49, sm_active=0.13, tensor_active=0.05)
    text = verdict(run(), figures, [], None, NOW)
    assert text == "The job hardly uses its GPUs: SM active 13 %, tensor active 5.0 %."


def test_an_unmeasured_sm_activity_is_called_unknown() -> None:
    figures = efficiency(unknown=1, active=10, coverage=0.9, power_watts=300.0)
    assert "unknown" in verdict(run(), figures, [], None, NOW)


def test_a_gpu_far_below_the_median_is_an_outlier() -> None:
    assert outlier([0.30, 0.29, 0.26, 0.30]) == 0.26
    assert outlier([0.30, 0.29, 0.28, 0.30]) is None
    assert outlier([0.30, None, 0.1]) is None  # two GPUs have no median to be far from


def test_a_gap_tells_when_why_and_how_long() -> None:
    start = int((NOW - timedelta(minutes=60)).timestamp())
    gap = SeriesGap(start=start, end=start + 540, cause="agent restart")
    first, to, last, rest = gap_text(gap)
    assert [first.dateTime, to, last.dateTime] == [
        "2026-03-12T14:22:00+00:00", " to ", "2026-03-12T14:31:00+00:00"
    ]  # fmt: skip
    assert rest == ": agent restart, 9 min without data"
