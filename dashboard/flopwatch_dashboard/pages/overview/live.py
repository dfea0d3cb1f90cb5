"""What moves on the overview."""

from flopwatch_dashboard.address import Place
from flopwatch_dashboard.freshness import freshness
from flopwatch_dashboard.live.reading import Ask, Reading, as_json
from flopwatch_dashboard.pages.overview import figures, layout, words
from flopwatch_dashboard.pages.overview.accounts import accounts_card
from flopwatch_dashboard.pages.overview.attention import attention_card
from flopwatch_dashboard.pages.overview.data import OverviewData, read, shape_of, window_of
from flopwatch_dashboard.pages.overview.side import side
from flopwatch_dashboard.pages.overview.states import state_labels, window_note
from flopwatch_dashboard.pages.overview.tiles import tile_strip
from flopwatch_dashboard.services import Visit


def live(visit: Visit, place: Place, ask: Ask) -> Reading:
    """The overview now; before the first sample only whether it has come."""
    if place.cluster is None:
        return Reading(shape_of(None), freshness(None, visit.now), {})
    data = read(visit, place.cluster.name, window_of(place))
    found = data.overview
    if found.newest_sample_at is None:
        return Reading(shape_of(data), freshness(None, data.now), {})
    return Reading(
        shape_of(data),
        freshness(found.newest_sample_at, data.now),
        as_json({name: {"children": children} for name, children in _children(data).items()}),
        {"overview-states": figures.states_points(found, data.window)},
    )


def _children(data: OverviewData) -> dict[str, object]:
    found = data.overview
    return {
        "overview-lead": words.lead(found),
        "overview-banners": layout.banners(data),
        "overview-tiles": tile_strip(found),
        "overview-window": window_note(data),
        "overview-labels": state_labels(found),
        "overview-accounts": accounts_card(data),
        "overview-attention": attention_card(data),
        "overview-side": side(data),
    }
