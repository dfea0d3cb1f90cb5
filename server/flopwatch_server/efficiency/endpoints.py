"""Jobs, allocations and the overview over HTTP."""

from datetime import UTC, datetime, timedelta
from typing import Annotated, Literal

from annotated_types import Ge, Le
from fastapi import APIRouter, Path, Query
from fastapi.exceptions import RequestValidationError
from pydantic import AwareDatetime

from flopwatch.metrics import BY_NAME
from flopwatch_server.database.text import Word
from flopwatch_server.efficiency import gpu_time as gpu_times
from flopwatch_server.efficiency import listing, quality, service
from flopwatch_server.efficiency import overview as overviews
from flopwatch_server.efficiency.schemas import (
    GpuTime,
    JobDetail,
    JobMfu,
    JobPage,
    JobQuery,
    Overview,
    RunSeries,
)
from flopwatch_server.house import HouseDep, PrincipalDep, SessionDep
from flopwatch_server.jobs.local.service import UNKNOWN
from flopwatch_server.jobs.schemas import AllocationView, RunView
from flopwatch_server.jobs.service import find_run
from flopwatch_server.scheduler.records import END_STATES, PENDING_STATES, RUNNING_STATES

router = APIRouter()

JOB_STATES = PENDING_STATES | RUNNING_STATES | END_STATES | {UNKNOWN}

# Wide enough for every job there is, narrow enough for the arithmetic of steps.
_Time = Annotated[
    AwareDatetime, Ge(datetime(2000, 1, 1, tzinfo=UTC)), Le(datetime(2200, 1, 1, tzinfo=UTC))
]
_From = Annotated[_Time | None, Query(alias="from", description="Start; the run's, if not given.")]
_To = Annotated[_Time | None, Query(alias="to", description="End; the run's or now, if not given.")]
_LONGEST_WINDOW = timedelta(days=31)
_Cluster = Annotated[Word, Path()]
_JobId = Annotated[Word, Path(description="The id its owner knows (123_4, 10+1) or the raw id.")]
_State = Literal["active", "low", "idle", "shared", "unknown"]


@router.get("/jobs")
def jobs(
    query: Annotated[JobQuery, Query()], session: SessionDep, principal: PrincipalDep,
    house: HouseDep,
) -> JobPage:  # fmt: skip
    """One block of the jobs list."""
    for state in query.states:
        if state not in JOB_STATES:
            words = ", ".join(sorted(JOB_STATES))
            raise _refused("states", f"no such state: {state}; there are {words}", state)
    return listing.job_page(session, principal, query, house.clock())


@router.get("/jobs/{cluster}/{job_id}")
def job(
    cluster: _Cluster, job_id: _JobId, session: SessionDep, principal: PrincipalDep,
    house: HouseDep,
) -> JobDetail:  # fmt: skip
    """The newest run of a job, with what it got out of its GPUs."""
    now = house.clock()
    run = find_run(session, principal, cluster, job_id, now)
    return JobDetail(
        run=run,
        efficiency=service.run_efficiency(session, run, now),
        mfu=service.run_mfu(session, run, house.peaks, now),
        devices=service.run_devices(session, run, now),
        quality=quality.run_quality(session, run, now),
    )


@router.get("/jobs/{cluster}/{job_id}/series")
def series(
    cluster: _Cluster, job_id: _JobId, session: SessionDep, principal: PrincipalDep,
    house: HouseDep,
    metrics: Annotated[str, Query(max_length=1000, description="Names, comma-separated.")],
    start: _From = None, end: _To = None,
) -> RunSeries:  # fmt: skip
    """Metrics of all GPUs of a run over time."""
    now = house.clock()
    names = list(dict.fromkeys(metrics.split(",")))
    for name in names:
        if name not in BY_NAME:
            raise _refused("metrics", f"no such metric: {name}", metrics)
    run = find_run(session, principal, cluster, job_id, now)
    window = _window(run, start, end, now)
    return service.run_series(session, run, names, *window, now)


@router.get("/jobs/{cluster}/{job_id}/mfu")
def mfu(
    cluster: _Cluster, job_id: _JobId, session: SessionDep, principal: PrincipalDep,
    house: HouseDep, start: _From = None, end: _To = None,
) -> JobMfu:  # fmt: skip
    """Model FLOPs Utilization of a run, over its life and by minute."""
    now = house.clock()
    run = find_run(session, principal, cluster, job_id, now)
    window = _window(run, start, end, now)
    return JobMfu(
        mfu=service.run_mfu(session, run, house.peaks, now),
        series=service.run_mfu_series(session, run, house.peaks, *window),
    )


@router.get("/allocations")
def allocations(
    session: SessionDep, principal: PrincipalDep, house: HouseDep,
    cluster: Word | None = None, state: _State | None = None,
) -> list[AllocationView]:  # fmt: skip
    """GPUs that are held now, those longest in their state first."""
    return service.allocations(session, principal, cluster, state, house.clock())


@router.get("/overview")
def overview(
    session: SessionDep, principal: PrincipalDep, house: HouseDep, cluster: Word,
    window_hours: Annotated[int, Query(ge=1, le=168)] = 24,
) -> Overview:  # fmt: skip
    """How well a cluster is being used, now and over the last hours."""
    return overviews.overview(session, principal, cluster, house.clock(), window_hours)


@router.get("/gpu-time")
def gpu_time(
    session: SessionDep, _: PrincipalDep, house: HouseDep, cluster: Word,
    start: Annotated[_Time, Query(alias="from")], end: Annotated[_Time, Query(alias="to")],
) -> GpuTime:  # fmt: skip
    """What became of the time of a cluster's GPUs, 31 days at most: whole, and by node."""
    if not timedelta() < end - start <= _LONGEST_WINDOW:
        days = _LONGEST_WINDOW.days
        raise _refused("to", f"not within {days} days after the start", end.isoformat())
    return gpu_times.gpu_time(session, cluster, start, end, house.clock())


def _window(
    run: RunView, start: datetime | None, end: datetime | None, now: datetime
) -> tuple[datetime, datetime]:
    first = start or run.started_at or run.submitted_at
    last = end or max(run.ended_at or now, first)
    if first > last:
        raise _refused("to", "the window ends before it starts", last.isoformat())
    return first, last


def _refused(parameter: str, message: str, value: str) -> RequestValidationError:
    """The same 422 that FastAPI gives for a value of a wrong type."""
    error = {"type": "value_error", "loc": ("query", parameter), "msg": message, "input": value}
    return RequestValidationError([error])
