"""What moves on the fair-share page."""

from flopwatch_dashboard.address import Place
from flopwatch_dashboard.freshness import freshness
from flopwatch_dashboard.live.reading import Ask, Reading, as_json
from flopwatch_dashboard.pages.fair_share import figures, layout
from flopwatch_dashboard.pages.fair_share.data import range_of, read
from flopwatch_dashboard.services import Visit


def live(visit: Visit, place: Place, ask: Ask) -> Reading:
    """The page now."""
    if place.cluster is None:
        return Reading(layout.NO_CLUSTER, freshness(None, visit.now), {})
    data = read(visit, place)
    parts = {name: {"children": children} for name, children in layout.parts(data, place).items()}
    has_chart = data.course is not None and data.course.points
    charts = {figures.CHART: figures.course_points(data, range_of(place))} if has_chart else {}
    return Reading(layout.shape_of(data, place), layout.fresh(data), as_json(parts), charts)
