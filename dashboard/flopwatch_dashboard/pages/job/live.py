"""What moves on a job's page."""

from typing import Any

from flopwatch_dashboard.address import Place
from flopwatch_dashboard.freshness import freshness
from flopwatch_dashboard.live.reading import Ask, Chart, Reading, as_json
from flopwatch_dashboard.pages.job import gpus, layout, mfu_panel, tiles
from flopwatch_dashboard.pages.job.data import JobData, read, settled_of, shape_of
from flopwatch_dashboard.pages.job.instrument import Instrument
from flopwatch_dashboard.pages.job.quality import quality_card
from flopwatch_dashboard.services import Visit

INSTRUMENT = "job-instrument"


def live(visit: Visit, place: Place, ask: Ask) -> Reading:
    """The job now, with the points that those who follow it have not. Raises NotFound."""
    data = read(visit, place, ask)
    before = ask.before.charts.get(INSTRUMENT) if ask.before else None
    now = instrument(data)
    if now and isinstance(before, Instrument) and now.was_filled_since(before):
        data = read(visit, place, ask.of_everything())
    return Reading(
        shape_of(data),
        freshness(data.fresh_at, data.now, live=data.is_live),
        as_json({name: {"children": children} for name, children in _children(data).items()}),
        _charts(data),
        settled_of(data),
        data.covers,
    )


def instrument(data: JobData) -> Instrument | None:
    """The points of the instrument, where the page has one."""
    if data.series is None or not data.has_samples:
        return None
    return Instrument(data.series, data.power_limit_watts, data.window, data.covers)


def _charts(data: JobData) -> dict[str, Chart]:
    charts: dict[str, Chart] = {}
    points = instrument(data)
    if points is not None:
        charts[INSTRUMENT] = points
    if data.mfu is not None and data.series is not None:
        charts["job-mfu"] = mfu_panel.mfu_points(data)
    return charts


def _children(data: JobData) -> dict[str, Any]:
    parts: dict[str, Any] = {
        "job-state": layout.state(data),
        "job-facts": layout.head_facts(data.run),
        "job-verdict": layout.verdict_card(data),
    }
    if data.devices:
        parts["job-gpus"] = gpus.gpu_card(data)
    if data.series is not None and data.has_samples:
        parts |= {
            "job-tiles": tiles.job_tiles(data),
            "job-step": layout.step_note(data.series),
            "job-gaps": layout.gap_list(data),
            "job-quality": quality_card(data),
        }
    if data.mfu is not None:
        parts |= {
            "job-equation": mfu_panel.equation(data.mfu),
            "job-steps": mfu_panel.steps_line(data.mfu, data.run.gpus),
        }
    return parts
