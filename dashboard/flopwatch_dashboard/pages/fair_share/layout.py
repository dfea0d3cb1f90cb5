"""The fair-share page: what waits, accounts at the left, what is chosen of them at the right."""

from datetime import datetime
from typing import Any

from dash import html
from dash.development.base_component import Component

from flopwatch_dashboard.address import Place
from flopwatch_dashboard.components import Tile, card, empty, tiles
from flopwatch_dashboard.components.chart import chart
from flopwatch_dashboard.format import DASH, percent, plural
from flopwatch_dashboard.freshness import Freshness, freshness
from flopwatch_dashboard.pages import Shown
from flopwatch_dashboard.pages.fair_share import figures, words
from flopwatch_dashboard.pages.fair_share.data import (
    DEFAULT_RANGE,
    RANGE_LABELS,
    FairShareData,
    path,
    range_of,
    read,
)
from flopwatch_dashboard.pages.fair_share.tables import accounts_card, members_card
from flopwatch_dashboard.pages.fair_share.waiting import demand_card, tile_strip
from flopwatch_dashboard.services import call, time_of
from flopwatch_server.people.schemas import SharesTold

NO_CLUSTER = "no cluster"
_PERIOD_SECONDS = 300


async def show(place: Place) -> Shown:
    """The whole page for an address."""
    if place.cluster is None:
        return Shown(_no_cluster(), freshness(None, await call(time_of)), shape=NO_CLUSTER)
    data = await call(read, place)
    made = {name: html.Div(children, id=name) for name, children in parts(data, place).items()}
    left, right = [made["fair-share-accounts"]], [made["fair-share-demand"], _words_card()]
    if data.chosen is not None:
        left += right
        figures_of_it = made["fair-share-figures"]
        right = [_course_card(data, place, figures_of_it), made["fair-share-users"]]
    head = html.Div([html.H1("Fair share", tabIndex="-1"), made["fair-share-lead"]])
    content = html.Div(
        [
            html.Div(head, className="page-head"),
            made["fair-share-stale"],
            made["fair-share-waiting"],
            html.Div(
                [html.Div(left, className="stack"), html.Div(right, className="stack")],
                className="columns even fair-share" + (" chosen" if data.chosen else ""),
            ),
        ]
    )
    ranges = tuple(RANGE_LABELS.items()) if data.chosen is not None else ()
    return Shown(
        content, fresh(data.told, data.now), ranges, DEFAULT_RANGE, shape=shape_of(data, place)
    )


def parts(data: FairShareData, place: Place) -> dict[str, Any]:
    """What each place of the page shows."""
    stale = words.stale(data)
    found = {
        "fair-share-lead": html.P(words.lead(data), className="lead"),
        "fair-share-stale": [html.Div(html.Span(stale), className="banner")] if stale else [],
        "fair-share-waiting": tile_strip(data),
        "fair-share-accounts": _accounts(data, place),
        "fair-share-demand": demand_card(data),
    }
    if data.chosen is not None:
        found["fair-share-figures"] = _figures(data)
        found["fair-share-users"] = members_card(data, place)
    return found


def fresh(told: SharesTold, now: datetime) -> Freshness:
    """How old the shares are; they are told every five minutes."""
    return freshness(told.told_at, now, period_seconds=_PERIOD_SECONDS)


def shape_of(data: FairShareData, place: Place) -> list[Any]:
    """What the page is made of: another choice has another chart, and so have other lines in it."""
    course = data.course
    lines = course and [bool(course.points), figures.has_factor(data), course.gone_at is not None]
    return [data.told.cluster, data.chosen, range_of(place), lines]


def _no_cluster() -> Component:
    start = html.A("Overview", href="/", className="button")
    why = "Connect the first node or scheduler as the overview says."
    return html.Div([html.H1("Fair share", tabIndex="-1"), empty("No cluster yet", why, start)])


def _accounts(data: FairShareData, place: Place) -> Component:
    if data.told.told_at is not None:
        return accounts_card(data, place)
    body = html.Div(words.why_unknown(data), className="card-body just")
    return card("No fair share is known", body, name="unknown-shares")


def _figures(data: FairShareData) -> Component:
    """The figures of what is chosen."""
    share = data.chosen_share
    if share is None:
        return tiles([Tile(label, DASH, "gone") for label in ("Share", "Usage", "LevelFS")],
                     small=True)  # fmt: skip
    own = share.raw_shares
    level, level_note = _level(share.level_fs)
    figures = [
        Tile("Share", percent(share.norm_shares),
             "none of its own" if own is None else f"of its level, {plural(own, 'share')}"),
        Tile("Usage", percent(share.effective_usage), "of its level"),
        Tile("LevelFS", level, level_note),
    ]  # fmt: skip
    if share.fair_share is not None or share.user is not None:
        text = DASH if share.fair_share is None else f"{share.fair_share:.3f}"
        figures.append(Tile("Factor", text, "of 1 at most" if text != DASH else "not told"))
    return tiles(figures, small=True)


def _level(level_fs: float | None) -> tuple[str, str]:
    if level_fs is None:
        return DASH, "not told of it"
    if level_fs == float("inf"):
        return DASH, words.NOTHING_USED
    return words.level_text(level_fs), "over its share" if level_fs < 1 else "within its share"


def _course_card(data: FairShareData, place: Place, figures_of_it: Component) -> Component:
    assert data.chosen is not None
    assert data.course is not None
    back = html.A("All accounts", href=path(place, None))
    title = words.title(data.chosen)
    if not data.course.points:
        nothing = html.P("Nothing was told of it yet.", className="card-body")
        return card(title, figures_of_it, nothing, aside=back)
    legend = html.Span(
        [html.Span([html.I(className="solid"), "usage"]),
         html.Span([html.I(className="dashed"), "share"])],
        className="lines",
    )  # fmt: skip
    note = "as told last; it is gone" if data.course.gone_at else legend
    figure = figures.course_figure(data, range_of(place))
    label = f"Usage and share of {title} over time"
    body = html.Div(chart(figures.CHART, figure, label, data.now), className="course")
    return card(title, figures_of_it, body, note=note, aside=back)


def _words_card() -> Component:
    sentences = (
        "Share: its part of the shares on its level of the tree. Usage: its part of what was used "
        "there; it decays with time.",
        "LevelFS: share over usage. Below 1 it has used more than its share.",
        "Factor: from 0 to 1, the fair-share part of the priority of a user's jobs.",
    )
    body = [html.P(sentence) for sentence in sentences]
    return card("How to read this", html.Div(body, className="card-body just"))
