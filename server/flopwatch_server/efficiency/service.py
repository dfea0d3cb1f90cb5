"""What a run gets out of its GPUs: efficiency, devices, series, MFU; and who holds which GPU now.

A `RunView` comes from `jobs.service.find_run`, which has checked that the person may see it.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import pairwise

from sqlalchemy.orm import Session

from flopwatch.gpus import PeakTable
from flopwatch.metrics import BY_NAME, COLUMNS
from flopwatch_server.access.principal import Principal
from flopwatch_server.efficiency import mfu, series
from flopwatch_server.efficiency.models import KNOWN_STATES
from flopwatch_server.efficiency.repository import figures, present
from flopwatch_server.efficiency.schemas import (
    DeviceEfficiency,
    Efficiency,
    GpuCounts,
    Mfu,
    MfuPoint,
    RunSeries,
    StateSeconds,
)
from flopwatch_server.jobs.schemas import AllocationView, RunView
from flopwatch_server.telemetry import repository as telemetry
from flopwatch_server.telemetry.models import MAX_COLUMNS, MEAN_COLUMNS, HookCounter
from flopwatch_server.telemetry.repository import AnyRow, reports

LATEST_LOOK_BACK = timedelta(minutes=10)
"""A sample older than this, seen from now or from the end of the run, is not called the latest."""

_MFU_LOOK_BACK_STEPS = 5
_ATTENTION = ("idle", "low", "active", "shared", "unknown")


def allocations(
    session: Session, principal: Principal, cluster: str | None, state: str | None, now: datetime
) -> list[AllocationView]:
    """GPUs that visible runs hold now, those longest in their state first."""
    return [
        AllocationView(
            id=row.id, cluster=row.cluster, job_id=row.display_id, user=row.user_name,
            account=row.account, node=row.node, gres_ordinal=row.gres_ordinal,
            device_uuid=row.uuid, model=row.model, state=row.state, since=row.since,
            allocated_from=row.valid_from, source=row.source, confidence=row.confidence,
        )
        for row in present.open_allocations(session, principal, cluster, state, now)
    ]  # fmt: skip


def run_efficiency(session: Session, run: RunView, now: datetime) -> Efficiency:
    """A run so far: allocated GPU-seconds by state, GPUs now, means and maxima over its minutes."""
    row = figures.run_figures(session, run.id, now)
    states = [held.state for held in present.states_of(session, [run.id], now)]
    return Efficiency(
        state_seconds=state_seconds(row, run),
        gpus_now=gpus_now(run, states),
        coverage=_coverage(row),
        means=_means(row),
        maxima=_maxima(row),
        energy_joules=row.energy_joules if row else None,
    )


def state_seconds(row: AnyRow | None, run: RunView) -> StateSeconds:
    """Allocated GPU-seconds by state, from a row of run figures.

    What is neither known nor shared is unknown: hand-overs, lost samples, minutes on their way. A
    run whose allocations nobody told held its GPUs all the same: all of its time is unknown.
    """
    if row is None:
        return StateSeconds(unknown=(run.gpus or 0) * (run.elapsed_seconds or 0.0))
    known = {state: 60.0 * (getattr(row, state) or 0) for state in KNOWN_STATES}
    unknown = row.seconds - row.shared - sum(known.values())
    return StateSeconds(**known, shared=row.shared, unknown=unknown)


def state_of_run(run: RunView, gpus_now: GpuCounts) -> str:
    """ "pending", "ended", or what most calls for attention among the GPUs of a running run."""
    if run.ended_at is not None:
        return "ended"
    if run.started_at is None:
        return "pending"
    return next((state for state in _ATTENTION if getattr(gpus_now, state)), "unknown")


def gpus_now(run: RunView, states: Iterable[str]) -> GpuCounts:
    """GPUs of a running run by state, from those of its open allocations.

    A run whose allocations nobody told holds its GPUs all the same, in a state unknown.
    """
    if run.started_at is None or run.ended_at is not None:
        return GpuCounts()
    return GpuCounts(**(Counter(states) or Counter(unknown=run.gpus or 0)))


def allocated_seconds(row: AnyRow | None, run: RunView) -> float | None:
    """All GPU time that the run was given so far; None while no GPU of it is known."""
    return state_seconds(row, run).total or None


def run_devices(session: Session, run: RunView, now: datetime) -> list[DeviceEfficiency]:
    """The GPUs of a run, one entry an allocation, in the order of node and place."""
    by_allocation = figures.allocation_figures(session, run.id, now)
    states = {row.id: row.state for row in present.states_of(session, [run.id], now)}
    not_before = (run.ended_at or now) - LATEST_LOOK_BACK
    latest = {row.id: row for row in telemetry.newest_of_run(session, run.id, not_before, now)}
    ranks = _ranks(reports.newest_reports(session, [run.id], now).get(run.id, []))
    return [
        DeviceEfficiency(
            place=series.place_of(held), node=held.node, device_uuid=held.uuid, model=held.model,
            memory_mib=held.memory_mib, power_limit_watts=held.power_limit_watts,
            rank=ranks.get(held.uuid), state_now=states.get(held.id, "ended"),
            source=held.source, confidence=held.confidence,
            means=_means(by_allocation.get(held.id)), maxima=_maxima(by_allocation.get(held.id)),
            latest=_latest(latest.get(held.id)),
            latest_at=latest[held.id].ts if held.id in latest else None,
        )
        for held in telemetry.allocations_of(session, run.id, now)
    ]  # fmt: skip


def run_series(
    session: Session, run: RunView, metrics: Sequence[str], start: datetime, end: datetime,
    now: datetime, after: int | None = None,
) -> RunSeries:  # fmt: skip
    """Metrics of all GPUs of a run over (start, end], not later than `now`, on one grid.

    The step is 10 s for windows up to 2 hours, 60 s up to a day, longer beyond; longer too where
    samples or minutes have been dropped. With `after` only points later than that time are given,
    gaps still of the whole window. Raises ValueError for a name that is no metric, or a window
    that ends before it starts.
    """
    unknown = [name for name in metrics if name not in BY_NAME]
    if unknown:
        raise ValueError(f"no such metric: {', '.join(unknown)}")
    if start > end:
        raise ValueError("the window ends before it starts")
    grid = _grid(session, run, start, max(start, min(end, now)), now)
    times = grid.times if after is None else grid.after(after)
    held = telemetry.allocations_of(session, run.id, now)
    places: dict[str, list[AnyRow]] = {}
    for row in held:
        places.setdefault(series.place_of(row), []).append(row)
    points, states = _points(session, run, metrics, grid, times, now)
    earlier = range(grid.times.start, times.start, grid.step)
    before, _ = _points(session, run, (), grid, earlier, now)
    there = {time for some in (*before.values(), *points.values()) for time in some.times.tolist()}
    recorded = telemetry.gaps_of(session, _window(run, grid.start, grid.end, now))
    return RunSeries(
        start=grid.start,
        end=grid.end,
        step_seconds=grid.step,
        times=list(times),
        devices=[
            series.device_series(place, rows, points, states, metrics, times)
            for place, rows in places.items()
        ],
        gaps=series.find_gaps(grid, now - figures.GRACE, there, held, recorded),
    )


def run_mfu(session: Session, run: RunView, peaks: PeakTable, now: datetime) -> Mfu | None:
    """MFU of a run; None if no training process has reported."""
    newest = reports.newest_reports(session, [run.id], now).get(run.id)
    if not newest:
        return None
    row = figures.run_figures(session, run.id, now)
    return mfu.of_run(newest, allocated_seconds(row, run), peaks)


def run_mfu_series(
    session: Session, run: RunView, peaks: PeakTable, start: datetime, end: datetime
) -> list[MfuPoint]:
    """Train MFU of each step in (start, end] in which a training process reported.

    A step is a minute, or longer in windows of more than a day.
    """
    grid = series.Grid.over(start, end, at_least=telemetry.MINUTE)
    step = timedelta(seconds=grid.step)
    read_from = series.instant_of(grid.start) - _MFU_LOOK_BACK_STEPS * step
    rows = reports.reports_by_step(session, run.id, step, read_from, series.instant_of(grid.end))
    return mfu.by_step([(time, report) for time, report in rows], read_from, start, peaks)


def _coverage(row: AnyRow | None) -> float | None:
    if row is None or not row.whole_minutes:
        return None
    return sum(getattr(row, state) or 0 for state in KNOWN_STATES) / float(row.whole_minutes)


def _means(row: AnyRow | None) -> dict[str, float | None]:
    return {name: getattr(row, name, None) for name in MEAN_COLUMNS}


def _maxima(row: AnyRow | None) -> dict[str, float | None]:
    return {name: getattr(row, f"{name}_max", None) for name in MAX_COLUMNS}


def _latest(row: AnyRow | None) -> dict[str, float | None]:
    return {name: getattr(row, name, None) for name in COLUMNS}


def _ranks(newest: Iterable[HookCounter]) -> dict[str | None, int]:
    """Rank by GPU, by the newest report of each."""
    by_age = sorted(newest, key=lambda report: report.received_at)
    return {report.device_uuid: report.rank for report in by_age if report.device_uuid}


def _grid(
    session: Session, run: RunView, start: datetime, end: datetime, now: datetime
) -> series.Grid:
    """The grid of a window, coarser than would suit it where what suits has been dropped."""
    grid = series.Grid.over(start, end)
    for finer, coarser in pairwise((telemetry.SAMPLE, telemetry.MINUTE, telemetry.HOUR)):
        if grid.unit == finer and telemetry.is_dropped(session, run.id, finer, start, now):
            grid = series.Grid.over(start, end, at_least=coarser)
    return grid


def _points(
    session: Session, run: RunView, metrics: Sequence[str], grid: series.Grid, times: range,
    now: datetime,
) -> tuple[Mapping[int, telemetry.Points], Mapping[int, telemetry.Points]]:  # fmt: skip
    """Points with the values and with the states of these times of the grid, by allocation id."""
    if not times:
        return {}, {}
    first, last = times.start - grid.step, times[-1]
    window = _window(run, first, last, now)
    if grid.unit == telemetry.SAMPLE:
        whole_minutes = _window(run, first // 60 * 60, -(-last // 60) * 60, now)
        minutes = telemetry.minute_points(session, whole_minutes, (), 60)
        states = {held: series.states_of_samples(some, times) for held, some in minutes.items()}
        return telemetry.sample_points(session, window, metrics), states
    read = telemetry.hour_points if grid.unit == telemetry.HOUR else telemetry.minute_points
    points = read(session, window, metrics, grid.step)
    return points, points


def _window(run: RunView, start: int, end: int, now: datetime) -> telemetry.Window:
    return telemetry.Window(run.id, series.instant_of(start), series.instant_of(end), now)
