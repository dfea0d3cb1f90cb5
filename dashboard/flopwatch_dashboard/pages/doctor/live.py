"""What moves on the doctor's page: all of it, so that what was mended goes away by itself."""

from flopwatch_dashboard.address import Place
from flopwatch_dashboard.freshness import freshness
from flopwatch_dashboard.live.reading import Ask, Reading, as_json
from flopwatch_dashboard.pages.doctor import layout
from flopwatch_dashboard.services import Visit


def live(visit: Visit, place: Place, ask: Ask) -> Reading:
    """The diagnosis now."""
    if place.cluster is None:
        return Reading(layout.NO_CLUSTER, freshness(None, visit.now), {})
    found = layout.read(visit, place.cluster.name)
    parts = {name: {"children": children} for name, children in layout.parts(found).items()}
    return Reading(found.cluster, freshness(found.examined_at, visit.now), as_json(parts))
