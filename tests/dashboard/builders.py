"""Facts of one job as the services tell them, with what a test does not care about filled in."""

from datetime import UTC, datetime, timedelta
from typing import Any

from flopwatch_server.efficiency.schemas import (
    DeviceSeries,
    Efficiency,
    GpuCounts,
    Mfu,
    RunSeries,
    StateSeconds,
)
from flopwatch_server.jobs.schemas import AllocationView, RunView

NOW = datetime(2026, 3, 12, 15, 22, tzinfo=UTC)


def run(**facts: Any) -> RunView:
    """A job of 8 GPUs that has run for 6 h 12 min."""
    known: dict[str, Any] = {
        "id": 1, "cluster": "granite", "simulated": False, "job_id": "481340",
        "raw_job_id": 481340, "name": "llama3-8b-sft", "user": "mchen", "account": "nlp",
        "partition": "h100", "qos": "normal", "state": "RUNNING", "reason": "None",
        "submitted_at": NOW - timedelta(hours=7),
        "started_at": NOW - timedelta(hours=6, minutes=12), "ended_at": None,
        "elapsed_seconds": 22320.0, "time_limit_seconds": 86400, "restarts": 0,
        "exit_code": None, "gpus": 8, "gpu_model": "NVIDIA H100 80GB HBM3", "nodes": ["g014"],
    }  # fmt: skip
    return RunView(**known | facts)


def efficiency(
    *, active: float = 0, low: float = 0, idle: float = 0, unknown: float = 0,
    gpus_now: GpuCounts | None = None, coverage: float | None = 0.97,
    **means: float | None,
) -> Efficiency:  # fmt: skip
    """States in GPU-hours, means by metric."""
    seconds = StateSeconds(
        active=active * 3600, low=low * 3600, idle=idle * 3600, unknown=unknown * 3600
    )
    return Efficiency(
        state_seconds=seconds, gpus_now=gpus_now or GpuCounts(), coverage=coverage,
        means=means, maxima={}, energy_joules=None,
    )  # fmt: skip


def idle_gpus(number: int, since: datetime) -> list[AllocationView]:
    """So many GPUs of the job, idle since then."""
    return [
        AllocationView(
            id=ordinal, cluster="granite", job_id="481340", user="mchen", account="nlp",
            node="g014", gres_ordinal=ordinal, device_uuid=f"GPU-{ordinal}", model=None,
            state="idle", since=since, allocated_from=since, source="slurm", confidence="likely",
        )
        for ordinal in range(number)
    ]  # fmt: skip


def mfu(train_mfu: float | None, job_mfu: float | None = None) -> Mfu:
    """A report with this MFU."""
    return Mfu(
        train_mfu=train_mfu, job_mfu=job_mfu, train_share=None, reason=None, note=None,
        convention="palm", ranks=8, steps=100, step_seconds=1.08, flops_per_second=None,
        peak_flops=None, dtype=None, device_name=None, reported_at=NOW,
    )  # fmt: skip


def series(times: list[int], step: int, gpus: dict[str, dict[str, list[float | None]]],
           states: dict[str, list[str | None]] | None = None) -> RunSeries:  # fmt: skip
    """A series of all four metrics; a metric that a GPU does not name is unknown."""
    metrics = ("tensor_active", "dram_active", "sm_active", "power_watts")
    nothing: list[float | None] = [None] * len(times)
    devices = [
        DeviceSeries(
            place=place,
            values={metric: values.get(metric, nothing) for metric in metrics},
            states=(states or {}).get(place, ["active"] * len(times)),
        )
        for place, values in gpus.items()
    ]
    return RunSeries(
        start=times[0] - step, end=times[-1], step_seconds=step, times=times, devices=devices,
        gaps=[],
    )  # fmt: skip
