"""What moves on the fair-share page."""

from dataclasses import replace

from flopwatch_dashboard.address import Place
from flopwatch_dashboard.freshness import freshness
from flopwatch_dashboard.live.reading import Ask, Reading, as_json
from flopwatch_dashboard.pages.fair_share import figures, layout
from flopwatch_dashboard.pages.fair_share.data import made_of, range_of, read
from flopwatch_dashboard.services import Visit


def live(visit: Visit, place: Place, ask: Ask) -> Reading:
    """The page now: the same again, unless anything was told or what waits has changed."""
    if place.cluster is None:
        return Reading(layout.NO_CLUSTER, freshness(None, visit.now), {})
    basis = made_of(visit, place)
    if ask.before is not None and ask.before.made_of == basis:
        return replace(ask.before, freshness=layout.fresh(basis.told, visit.now))
    data = read(visit, place)
    parts = {name: {"children": children} for name, children in layout.parts(data, place).items()}
    has_chart = data.course is not None and data.course.points
    charts = {figures.CHART: figures.course_points(data, range_of(place))} if has_chart else {}
    return Reading(
        layout.shape_of(data, place),
        layout.fresh(basis.told, visit.now),
        as_json(parts),
        charts,
        made_of=basis,
    )
