"""The six tiles of the overview: figures of the cluster now, with their course over the window."""

from dash.development.base_component import Component

from flopwatch_dashboard.components import Tile, tiles
from flopwatch_dashboard.format import DASH, count, kilowatts, percent, plural
from flopwatch_dashboard.pages.overview import words
from flopwatch_server.efficiency.schemas import Overview

MFU_LABEL = "MFU while training"


def tile_strip(found: Overview) -> Component:
    """The six figures of the cluster, with their course over the window."""
    if found.allocated is None:
        return tiles([*_untold_tiles(), _power_tile(found)])
    return tiles([*job_tiles(found, found.allocated), _power_tile(found)])


def _untold_tiles() -> list[Tile]:
    labels = ("Allocated", "Active", "Idle-allocated", "Tensor active", MFU_LABEL)
    return [Tile(label, DASH, "no scheduler yet") for label in labels]


def job_tiles(found: Overview, allocated: int) -> list[Tile]:
    """The tiles about what jobs do with the GPUs that are `allocated`."""
    now = found.gpus_now
    jobs = words.idle_jobs(found)
    return [
        Tile("Allocated", count(allocated), unit=f"of {count(found.gpus)} GPUs",
             note=f"{_share(allocated, found.gpus)}, {plural(found.pending_jobs, 'job')} queued",
             history=_course(found, "active", "low", "idle")),
        Tile("Active", count(now.active), unit="GPUs", state="active",
             note=f"{_share(now.active, allocated)} of allocated",
             history=_course(found, "active")),
        Tile("Idle-allocated", count(now.idle), unit="GPUs", state="idle",
             note=f"{_share(now.idle, allocated)} of allocated"
                  + (f", {plural(jobs, 'job')}" if jobs else ""),
             history=_course(found, "idle"), tone="idle"),
        Tile("Tensor active", percent(found.tensor_active),
             note="mean of allocated GPUs" if found.tensor_active is not None else "no counters",
             history=found.history_tensor),
        Tile(MFU_LABEL, percent(found.mfu), note=_who_reports(found)),
    ]  # fmt: skip


def _power_tile(found: Overview) -> Tile:
    limit = found.power_limit_watts
    note = f"of {kilowatts(limit)} GPU limit" if limit else "limit unknown"
    return Tile("Power", kilowatts(found.power_watts), note, history=found.history_power_watts)


def _who_reports(found: Overview) -> str:
    """Over which jobs the service takes the plain mean."""
    running = plural(found.running_jobs, "job")
    if not found.reporting_jobs:
        return "no job reports"
    return f"mean of {count(found.reporting_jobs)} of {running}"


def _course(found: Overview, *states: str) -> list[float | None]:
    """GPUs in any of the states over the window; None while nobody watched."""
    return [
        sum(getattr(point, state) for state in states) if point.watched else None
        for point in found.history
    ]


def _share(part: float, whole: float) -> str:
    return percent(part / whole) if whole else DASH
