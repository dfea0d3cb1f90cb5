"""The overview: a sentence, six tiles, the states over time, and who needs attention."""

from dash import html
from dash.development.base_component import Component

from flopwatch_dashboard.address import Place
from flopwatch_dashboard.format import plural
from flopwatch_dashboard.freshness import freshness
from flopwatch_dashboard.pages import Shown
from flopwatch_dashboard.pages.overview import first_run, words
from flopwatch_dashboard.pages.overview.accounts import accounts_card
from flopwatch_dashboard.pages.overview.attention import attention_card
from flopwatch_dashboard.pages.overview.data import (
    DEFAULT_WINDOW,
    WINDOW_LABELS,
    WINDOWS,
    OverviewData,
    read,
    shape_of,
    window_of,
)
from flopwatch_dashboard.pages.overview.side import side
from flopwatch_dashboard.pages.overview.states import states_card
from flopwatch_dashboard.pages.overview.tiles import tile_strip
from flopwatch_dashboard.services import call
from flopwatch_dashboard.words import silence, source_problem


async def show(place: Place) -> Shown:
    """The whole page for an address."""
    if place.cluster is None:
        return await first_run.show(None)
    data = await call(read, place.cluster.name, window_of(place))
    if data.overview.newest_sample_at is None:
        return await first_run.show(data)
    found = data.overview
    content = html.Div(
        [
            html.Div(
                html.Div([html.H1("Overview", tabIndex="-1"),
                          html.P(words.lead(found), id="overview-lead", className="lead")]),
                className="page-head",
            ),
            html.Div(banners(data), id="overview-banners"),
            html.Div(tile_strip(found), id="overview-tiles"),
            html.Div([states_card(data), html.Div(accounts_card(data), id="overview-accounts")],
                     className="columns stretch"),
            html.Div([html.Div(attention_card(data), id="overview-attention"),
                      html.Div(side(data), id="overview-side", className="stack")],
                     className="columns"),
        ]
    )  # fmt: skip
    return Shown(
        content,
        freshness(found.newest_sample_at, data.now),
        tuple((name, WINDOW_LABELS[name]) for name in WINDOWS),
        DEFAULT_WINDOW,
        shape=shape_of(data),
    )


def banners(data: OverviewData) -> list[Component]:
    """What makes the page less than whole: sources that don't answer, nodes that are silent."""
    sources = data.overview.sources
    problems = [source_problem(source, data.now) for source in sources]
    problems.append(silence(sources, data.now))
    silent = len(data.overview.agents_silent)
    if silent:
        all_nodes = silent + data.overview.agents_reporting
        problems.append(
            f"{silent} of {plural(all_nodes, 'node')} {'is' if silent == 1 else 'are'} silent; "
            f"{'its' if silent == 1 else 'their'} GPUs show no data."
        )
    return [html.Div(problem, className="banner") for problem in problems if problem]
