"""What the overview reads."""

from dataclasses import dataclass
from datetime import datetime

from flopwatch_dashboard.address import Place
from flopwatch_dashboard.services import Visit
from flopwatch_server.efficiency import overview
from flopwatch_server.efficiency.schemas import Overview
from flopwatch_server.settings import Thresholds

WINDOWS = {"6h": 6, "24h": 24, "7d": 168}
"""Time ranges by their name in the address, in hours."""

WINDOW_LABELS = {"6h": "6 h", "24h": "24 h", "7d": "7 d"}
DEFAULT_WINDOW = "24h"


@dataclass(frozen=True)
class OverviewData:
    """The answer of the service, when it was given, and for which window; how people sign in, and
    what counts as idle and low."""

    overview: Overview
    now: datetime
    window: str
    sign_in: str
    thresholds: Thresholds


def window_of(place: Place) -> str:
    """The name of the window that the address asks for."""
    name = place.address.query.get("range", DEFAULT_WINDOW)
    return name if name in WINDOWS else DEFAULT_WINDOW


def read(visit: Visit, cluster: str, window: str) -> OverviewData:
    """The overview of one cluster over a window."""
    found = overview.overview(visit.session, visit.principal, cluster, visit.now, WINDOWS[window])
    settings = visit.settings
    return OverviewData(found, visit.now, window, settings.sign_in, settings.thresholds)


def shape_of(data: OverviewData | None) -> str:
    """What the page is made of: while it stays the same, only the parts that move are sent."""
    if data is None:
        return "no cluster"
    kind = "first run" if data.overview.newest_sample_at is None else "measured"
    return f"{kind} {data.overview.cluster}"
