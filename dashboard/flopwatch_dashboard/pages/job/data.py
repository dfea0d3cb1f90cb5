"""What the job page reads: facts of the run, its GPUs, their series, and MFU."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from flopwatch_dashboard.address import Place
from flopwatch_dashboard.live.reading import Ask
from flopwatch_dashboard.services import Visit
from flopwatch_server.efficiency import quality, service
from flopwatch_server.efficiency.schemas import (
    DeviceEfficiency,
    Efficiency,
    Mfu,
    MfuPoint,
    RunQuality,
    RunSeries,
)
from flopwatch_server.efficiency.series import Grid
from flopwatch_server.jobs.schemas import AllocationView, RunView
from flopwatch_server.jobs.service import find_run

METRICS = ("tensor_active", "dram_active", "sm_active", "power_watts")
"""The rows of the instrument; the first is also the strip."""

WHOLE = "job"
WINDOWS: dict[str, tuple[str, timedelta | None]] = {
    "live": ("Live", timedelta(minutes=15)),
    "1h": ("1 h", timedelta(hours=1)),
    "6h": ("6 h", timedelta(hours=6)),
    "24h": ("24 h", timedelta(hours=24)),
    WHOLE: ("Whole job", None),
}
"""Time ranges by their name in the address: label, and how long before the end they begin."""

LOOK_BACK_STEPS = 90
"""So many of the newest points are read at every tick: late samples may have changed them."""

SETTLED_STEPS = 30
"""A browser that comes back gets this many of the points that it has once more."""


@dataclass(frozen=True)
class JobData:
    """Everything the page shows of one run at one time.

    `series` and `mfu_points` are None where the run holds no time yet: it waits. The series holds
    the points later than `covers`, in seconds since 1970: 0 is all of the window.
    """

    run: RunView
    now: datetime
    window: str
    efficiency: Efficiency
    devices: list[DeviceEfficiency]
    quality: RunQuality
    idle: list[AllocationView]
    mfu: Mfu | None
    series: RunSeries | None
    mfu_points: list[MfuPoint]
    cluster_sample_at: datetime | None
    covers: int = 0

    @property
    def newest_sample_at(self) -> datetime | None:
        """When the newest sample of any of its GPUs was taken."""
        return max((d.latest_at for d in self.devices if d.latest_at), default=None)

    @property
    def fresh_at(self) -> datetime | None:
        """How new the page is: a job without samples of its own is as new as its cluster."""
        return self.newest_sample_at or self.cluster_sample_at

    @property
    def power_limit_watts(self) -> float | None:
        """The power limit of its GPUs, where it is known and the same for all."""
        limits = {d.power_limit_watts for d in self.devices if d.power_limit_watts is not None}
        return limits.pop() if len(limits) == 1 else None

    @property
    def has_samples(self) -> bool:
        """Whether anything at all was measured of its GPUs."""
        known = any(mean is not None for mean in self.efficiency.means.values())
        return self.series is not None and (known or self.newest_sample_at is not None)

    @property
    def is_live(self) -> bool:
        """Whether anything can still change."""
        return self.run.ended_at is None


def check(visit: Visit, place: Place) -> None:
    """Raise NotFound for a job that does not exist or may not be seen."""
    _find(visit, place)


def read(visit: Visit, place: Place, ask: Ask | None = None) -> JobData:
    """The run that an address names; `ask` may leave out points that nobody needs.

    Raises NotFound.
    """
    run = _find(visit, place)
    session, now = visit.session, visit.now
    window = window_of(place)
    span = span_of(run, window, now)
    covers = covers_of(ask, Grid.over(*span)) if ask and span else 0
    return JobData(
        run=run,
        now=now,
        window=window,
        efficiency=service.run_efficiency(session, run, now),
        devices=service.run_devices(session, run, now),
        quality=quality.run_quality(session, run, now),
        idle=_idle_now(visit, run),
        mfu=service.run_mfu(session, run, visit.peaks, now),
        series=service.run_series(session, run, METRICS, *span, now, covers) if span else None,
        mfu_points=service.run_mfu_series(session, run, visit.peaks, *span) if span else [],
        cluster_sample_at=quality.newest_sample_at(session, run.cluster, now),
        covers=covers,
    )


def covers_of(ask: Ask, grid: Grid) -> int:
    """From when on points are read: the newest, all that a newcomer lacks, or 0 for everything."""
    lacking = list(ask.newcomers)
    if ask.before is not None:
        lacking.append(ask.before.cursor)
    last = [grid.end - LOOK_BACK_STEPS * grid.step]
    for cursor in lacking:
        if cursor is None or cursor.step != grid.step:
            return 0
        last.append(cursor.last)
    return max(0, min(last))


def window_of(place: Place) -> str:
    """The name of the time range that the address asks for."""
    name = place.address.query.get("range", WHOLE)
    return name if name in WINDOWS else WHOLE


def span_of(run: RunView, window: str, now: datetime) -> tuple[datetime, datetime] | None:
    """The time that the charts show; None for a run that has not started."""
    if run.started_at is None:
        return None
    end = run.ended_at or now
    length = WINDOWS[window][1]
    start = run.started_at if length is None else max(run.started_at, end - length)
    return (start, end) if start < end else None


def shape_of(data: JobData) -> dict[str, Any]:
    """What the page is made of: while it stays the same, only the parts that move are sent."""
    found: dict[str, Any] = {
        "is_live": data.is_live,
        "state": data.run.state,
        "has_mfu": data.mfu is not None,
        "knows_mfu": data.mfu is not None and data.mfu.train_mfu is not None,
    }
    if data.series is None or not data.has_samples:
        return found | {"waits": data.run.started_at is None}
    return found | {"places": [device.place for device in data.series.devices]}


def settled_of(data: JobData) -> tuple[int, int]:
    """Step of the points of the instrument, and up to when late samples will hardly change them."""
    if data.series is None or not data.has_samples:
        return 0, 0
    step = data.series.step_seconds
    return step, data.series.end - SETTLED_STEPS * step


def _find(visit: Visit, place: Place) -> RunView:
    return find_run(
        visit.session, visit.principal, place.parts["cluster"], place.parts["job_id"], visit.now
    )


def _idle_now(visit: Visit, run: RunView) -> list[AllocationView]:
    """The GPUs of the run that stand idle now, those longest idle first."""
    if run.started_at is None or run.ended_at is not None:
        return []
    found = service.allocations(visit.session, visit.principal, run.cluster, "idle", visit.now)
    return [held for held in found if held.job_id == run.job_id]
