"""The jobs list: facets at the left, chips and the grid at the right."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from dash import dcc, html
from dash.development.base_component import Component

from flopwatch_dashboard.address import Place
from flopwatch_dashboard.components import empty, icon
from flopwatch_dashboard.format import count, gpu_hours, plural
from flopwatch_dashboard.freshness import freshness
from flopwatch_dashboard.pages import Shown
from flopwatch_dashboard.pages.jobs.grid import grid
from flopwatch_dashboard.pages.jobs.query import (
    ANY,
    STATE_LABELS,
    job_query,
    sort_of,
    states_of,
    text_of,
    wants_gpus,
)
from flopwatch_dashboard.services import Visit, call, time_of
from flopwatch_dashboard.words import NOT_TOLD
from flopwatch_server.efficiency import listing, quality
from flopwatch_server.efficiency.schemas import JobFacets, JobPage

SHAPE = "jobs"
NO_CLUSTER = "no cluster"
_FACET_VALUES = 8
_TOP_ROWS = 3


@dataclass(frozen=True)
class JobsData:
    """The first rows of what matches, and how many jobs carry each value."""

    page: JobPage
    facets: JobFacets
    newest_sample_at: datetime | None
    now: datetime


def read(visit: Visit, place: Place) -> JobsData:
    """Totals, the rows that lose most, and the facets."""
    query = job_query(place, sort="-idle_gpu_hours", offset=0, limit=_TOP_ROWS)
    page = listing.job_page(visit.session, visit.principal, query, visit.now)
    facets = listing.job_facets(visit.session, visit.principal, query.cluster, visit.now)
    assert query.cluster is not None
    newest = quality.newest_sample_at(visit.session, query.cluster, visit.now)
    return JobsData(page, facets, newest, visit.now)


async def show(place: Place) -> Shown:
    """The whole page for an address."""
    if place.cluster is None:
        return Shown(_no_cluster(), freshness(None, await call(time_of)), shape=NO_CLUSTER)
    data = await call(read, place)
    content = html.Div(
        [
            html.Div(
                html.Div([html.H1("Jobs", tabIndex="-1"),
                          html.P(lead(data), id="jobs-lead", className="lead")]),
                className="page-head",
            ),
            html.Div(
                [
                    html.Aside(facets(place, data.facets), id="jobs-facets", className="facets",
                               **{"aria-label": "Filters"}),
                    html.Section(
                        [
                            html.Div(chips(place, data.page), id="jobs-chips", className="filters"),
                            html.Div(grid(sort_of(place)), id="jobs-frame", className="jobs-frame",
                                     style=frame_style(data.page.total)),
                            html.Div(nothing(data.page, data.facets), id="jobs-empty"),
                        ],
                        className="card grid-card",
                    ),
                ],
                className="jobs",
            ),
            dcc.Store(id="jobs-ready"),
        ]
    )  # fmt: skip
    return Shown(content, freshness(data.newest_sample_at, data.now), shape=SHAPE)


def _no_cluster() -> Component:
    return html.Div([html.H1("Jobs", tabIndex="-1"),
                     empty(NOT_TOLD, "Connect the first node on the overview.",
                           html.A("Overview", href="/", className="button"))])  # fmt: skip


def lead(data: JobsData) -> str:
    """How many run and wait, and which few account for the idle time."""
    states = data.facets.state
    if not states:
        return NOT_TOLD
    running, pending = (count(states.get(state, 0)) for state in ("RUNNING", "PENDING"))
    text = f"{running} running and {pending} pending in all, with GPUs or without."
    idle = [row.idle_gpu_hours or 0.0 for row in data.page.rows]
    if idle and idle[0] >= 1:
        first = data.page.rows[0]
        text += f" {first.name} has lost most: {gpu_hours(idle[0])} idle GPU-h."
    return text


def frame_style(total: int) -> dict[str, str]:
    """As high as its rows, at most what the window leaves; the variable counts rows for CSS."""
    return {"--rows": str(max(1, total)), "display": "none" if total == 0 else "block"}


def facets(place: Place, found: JobFacets) -> list[Component]:
    """Check boxes with counts. A value that is chosen is listed even where no job carries it."""
    states = {state: found.state.get(state, 0) for state in STATE_LABELS}
    others = {state: number for state, number in found.state.items() if state not in states}
    shown = {state: number for state, number in states.items() if number or state in
             ("RUNNING", "PENDING")}  # fmt: skip
    chosen = set(states_of(place))
    sections = [
        html.P("Numbers: all jobs, whatever is chosen.", className="note"),
        _facet_section("State", "state", {**shown, **others}, chosen, STATE_LABELS),
    ]
    for title, key, values in (
        ("Partition", "partition", found.partition),
        ("Account", "account", found.account),
        ("User", "user", found.user),
    ):
        sections.append(_facet_section(title, key, values, set(place.address.words(key)), {}))
    return sections


def _facet_section(
    title: str, key: str, values: Mapping[str, int], chosen: set[str], labels: Mapping[str, str]
) -> Component:
    listed = list(values.items())[:_FACET_VALUES]
    listed += [(value, values.get(value, 0)) for value in sorted(chosen - dict(listed).keys())]
    head: list[str | Component] = [title]
    if len(values) > len(listed):
        head.append(html.Span(f"of {len(values)}", className="note"))
    boxes = [
        html.Button(
            [icon("check tick"), html.Span(labels.get(value, value) or "none", className="label"),
             html.Span(count(number), className="count")],
            className="facet", type="button", role="checkbox",
            **{"aria-checked": str(value in chosen).lower(), "data-toggle": key,
               "data-value": value, "data-chosen": ",".join(sorted(chosen))},
        )
        for value, number in listed
    ]  # fmt: skip
    return html.Section([html.H2(head), *boxes])


def chips(place: Place, page: JobPage) -> list[Component]:
    """The filters that act, each with a way out, and what they leave."""
    parts: list[Component] = [
        html.Button([icon("funnel"), "Filters"], className="button filters-button", type="button",
                    **{"data-action": "facets"})
    ]  # fmt: skip
    states = states_of(place)
    if states:
        words = ", ".join(STATE_LABELS.get(state, state) for state in states)
        parts.append(_chip("State", words, "state", ANY))
    if wants_gpus(place):
        parts.append(_chip("GPUs", "1 or more", "gpus", ANY))
    for title, key in (("Partition", "partition"), ("Account", "account"), ("User", "user")):
        if place.address.words(key):
            parts.append(_chip(title, ", ".join(place.address.words(key)), key, ""))
    if text_of(place):
        parts.append(_chip("Search", text_of(place), "q", ""))
    if set(place.address.query) - {"cluster", "sort"}:
        parts.append(html.Button("Clear", className="button plain", type="button",
                                 **{"data-action": "clear-filters"}))  # fmt: skip
    parts.append(
        html.Span(f"{plural(page.total, 'job')}, {plural(page.gpus, 'GPU')}", className="note push")
    )
    return parts


def _chip(title: str, words: str, key: str, without: str) -> Component:
    return html.Button(
        [title, html.B(words), icon("x")], className="chip", type="button",
        **{"aria-label": f"Remove filter {title} {words}", "data-set": key, "data-value": without},
    )  # fmt: skip


def nothing(page: JobPage, found: JobFacets) -> list[Component]:
    """What stands in place of the grid when no job matches."""
    if page.total:
        return []
    if not found.state:
        return [empty(NOT_TOLD, "Connect Slurm or another scheduler, as the overview says.")]
    clear = html.Button("Clear filters", className="button", type="button",
                        **{"data-action": "clear-filters"})  # fmt: skip
    return [empty("No job matches these filters.", "Take one away, or clear them all.", clear)]
