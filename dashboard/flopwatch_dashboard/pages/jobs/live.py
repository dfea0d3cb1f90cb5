"""What moves in the jobs list: the sentence, the filters' numbers, and the rows on the screen."""

from typing import Any

from flopwatch_dashboard.address import Place
from flopwatch_dashboard.freshness import freshness
from flopwatch_dashboard.live.reading import Ask, Reading, as_json
from flopwatch_dashboard.pages.jobs import layout
from flopwatch_dashboard.pages.jobs.grid import BLOCK_ROWS
from flopwatch_dashboard.pages.jobs.rows import read_rows
from flopwatch_dashboard.services import Visit

_MOST_BLOCKS = 3
"""A screen shows rows of at most so many blocks."""


def live(visit: Visit, place: Place, ask: Ask) -> Reading:
    """The jobs list now, with the rows that the browser tells to be on its screen."""
    if place.cluster is None:
        return Reading(layout.NO_CLUSTER, freshness(None, visit.now), {})
    data = layout.read(visit, place)
    parts: dict[str, dict[str, Any]] = {
        "jobs-lead": {"children": layout.lead(data)},
        "jobs-facets": {"children": layout.facets(place, data.facets)},
        "jobs-chips": {"children": layout.chips(place, data.page)},
        "jobs-frame": {"style": layout.frame_style(data.page.total)},
        "jobs-empty": {"children": layout.nothing(data.page, data.facets)},
    }
    return Reading(
        layout.SHAPE,
        freshness(data.newest_sample_at, data.now),
        as_json(parts),
        rows=_rows(visit, place, *ask.rows) if ask.rows else None,
    )


def _rows(visit: Visit, place: Place, start: int, end: int) -> dict[str, Any]:
    start = max(0, start)
    end = min(max(start, end), start + _MOST_BLOCKS * BLOCK_ROWS)
    rows, total = read_rows(visit, place, start, end)
    return {"start": start, "total": total, "rows": rows}
