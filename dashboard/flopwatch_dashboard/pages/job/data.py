"""What the job page reads: facts of the run, its GPUs, their series, and MFU."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from flopwatch_dashboard.address import Place
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

OVERLAP_STEPS = 3
"""Points this near to the newest are sent again: late samples may have changed them."""


@dataclass(frozen=True)
class JobData:
    """Everything the page shows of one run at one time.

    `series` and `mfu_points` are None where the run holds no time yet: it waits.
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


def read(visit: Visit, place: Place, after: int | None = None) -> JobData:
    """The run that an address names; with `after`, only points later than that time.

    Raises NotFound.
    """
    run = _find(visit, place)
    session, now = visit.session, visit.now
    window = window_of(place)
    span = span_of(run, window, now)
    return JobData(
        run=run,
        now=now,
        window=window,
        efficiency=service.run_efficiency(session, run, now),
        devices=service.run_devices(session, run, now),
        quality=quality.run_quality(session, run, now),
        idle=_idle_now(visit, run),
        mfu=service.run_mfu(session, run, visit.peaks, now),
        series=service.run_series(session, run, METRICS, *span, now, after) if span else None,
        mfu_points=service.run_mfu_series(session, run, visit.peaks, *span) if span else [],
        cluster_sample_at=quality.newest_sample_at(session, run.cluster, now),
    )


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
