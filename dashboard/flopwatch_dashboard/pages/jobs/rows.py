"""A row of the jobs grid: texts made here, so that the browser only draws."""

from datetime import datetime
from typing import Any

from flopwatch_dashboard.address import Place, job_path
from flopwatch_dashboard.format import (
    DASH,
    count,
    gpu_hours,
    percent,
    short_model,
    slurm_elapsed,
    watts,
)
from flopwatch_dashboard.pages.jobs.query import job_query
from flopwatch_dashboard.services import Visit
from flopwatch_server.efficiency import listing
from flopwatch_server.efficiency.schemas import JobRow

SPARK_TOP = 0.72
"""Sparklines of all rows share the scale from 0 to 72 %."""
_WARM_GPU_HOURS = 10.0


def read_rows(
    visit: Visit, place: Place, start: int, end: int, **order: str
) -> tuple[list[dict[str, Any]], int]:
    """The rows from `start` on, before `end`, and how many there are in all.

    `order` may hold a `sort` other than that of the address.
    """
    query = job_query(place, offset=start, limit=end - start, **order)
    page = listing.job_page(visit.session, visit.principal, query, visit.now)
    return [grid_row(row, visit.now) for row in page.rows], page.total


def grid_row(row: JobRow, now: datetime) -> dict[str, Any]:
    """What the cell renderers of assets/js/grid.js draw for one job."""
    why = _why_missing(row)
    return {
        "id": str(row.id),
        "href": job_path(row.cluster, row.job_id),
        "state_now": "ended" if row.ended_at else row.state_now,
        "job_id": row.job_id,
        "name": row.name or DASH,
        "user": row.user,
        "account": row.account,
        "partition": row.partition,
        "gpus": count(row.gpus),
        "model": short_model(row.gpu_model),
        "tensor_active": percent(row.tensor_active),
        "tensor_share": row.tensor_active,
        "spark": [_level(value) for value in row.spark],
        "sm_active": percent(row.sm_active),
        "dram_active": percent(row.dram_active),
        "mfu": percent(row.mfu),
        "mfu_why": "the job does not report its FLOPs" if row.started_at else why,
        "idle_gpu_hours": gpu_hours(row.idle_gpu_hours),
        "idle_warm": (row.idle_gpu_hours or 0) >= _WARM_GPU_HOURS,
        "power_watts": watts(row.power_watts),
        "elapsed": slurm_elapsed(row.elapsed_seconds) if row.started_at else DASH,
        "limit": slurm_elapsed(row.time_limit_seconds) if row.time_limit_seconds else "",
        "elapsed_share": _share(row.elapsed_seconds, row.time_limit_seconds),
        "reason": _reason(row),
        "why": why,
    }


def _why_missing(row: JobRow) -> str:
    if row.started_at is None:
        return "never started" if row.ended_at else "not started yet"
    return "no counters of its GPUs"


def _reason(row: JobRow) -> str:
    """Why a job waits, in Slurm's word; what became of one that has ended; nothing if it runs."""
    if row.started_at is None and row.ended_at is None:
        return f"waits: {row.reason}" if row.reason and row.reason != "None" else "waits"
    return "" if row.ended_at is None else row.state.replace("_", " ").lower()


def _level(value: float | None) -> float | None:
    return None if value is None else round(min(1.0, value / SPARK_TOP), 3)


def _share(elapsed: float | None, limit: int | None) -> float | None:
    if elapsed is None or not limit:
        return None
    return round(min(1.0, elapsed / limit), 3)
