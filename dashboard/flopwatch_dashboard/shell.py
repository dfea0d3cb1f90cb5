"""The frame around every page: document, rail, top bar, and the page for what does not exist."""

from collections.abc import Sequence
from urllib.parse import urlencode

from dash import dcc, html
from dash.development.base_component import Component

from flopwatch_dashboard.address import Place
from flopwatch_dashboard.components import icon
from flopwatch_dashboard.documents import NONCE_PLACEHOLDER
from flopwatch_dashboard.pages import Page
from flopwatch_dashboard.static import FONT_URL, OurFiles
from flopwatch_server.access.principal import Principal
from flopwatch_server.access.visibility import is_staff

_SCOPES = {
    "admin": "you see all jobs",
    "support": "you see all jobs",
    "manager": "you see your jobs and those of your accounts",
    "researcher": "you see your jobs",
}


def index_string(ours: OurFiles) -> str:
    """The document. The head script comes first: it sets the scheme before anything is painted."""
    return f"""<!DOCTYPE html>
<html lang="en" data-mantine-color-scheme="light">
<head>
{{%metas%}}
<meta name="description" content="What every batch job really gets out of its GPUs.">
<meta name="style-nonce" content="{NONCE_PLACEHOLDER}">
<title>{{%title%}}</title>
<link rel="icon" type="image/svg+xml" href="{ours.icon}">
<script src="{ours.head}"></script>
<link rel="preload" as="font" type="font/woff2" href="{FONT_URL}" crossorigin>
<link rel="stylesheet" href="{ours.css}">
{{%css%}}
</head>
<body>
{{%app_entry%}}
{{%config%}}
{{%scripts%}}
<script src="{ours.js}"></script>
{{%renderer%}}
</body>
</html>"""


def layout(pages: Sequence[Page]) -> Component:
    """The frame with empty places that the router fills."""
    return html.Div(
        [
            dcc.Location(id="url", refresh="callback-nav"),
            dcc.Store(id="on-screen"),
            dcc.Store(id="again"),  # a page sets it when it no longer fits what it shows
            html.A("Skip to the page", href="#main", className="skip"),
            _rail(pages),
            html.Div(className="scrim", **{"data-action": "drawer"}),
            _topbar(),
            html.Main(
                html.Div(className="skeleton", style={"height": "320px"}), id="main",
                className="main", tabIndex="-1",
            ),
        ]
    )  # fmt: skip


def context(place: Place) -> list[Component]:
    """Which cluster is shown, and whether it is real."""
    if place.cluster is None:
        return []
    says_it_itself = place.cluster.name == "simulated" and len(place.clusters) == 1
    parts: list[Component] = [] if says_it_itself else [_picker(place)]
    if place.cluster.simulated:
        parts.append(
            html.Span(
                "simulated", className="chip simulated", tabIndex="0",
                **{"data-cluster": place.cluster.name,
                   "data-tip": "Nothing here is real: a simulated cluster enters by the same doors "
                               "as a real one."},
            )
        )  # fmt: skip
    return parts


def visitor(principal: Principal, sign_in: str) -> list[Component]:
    """Who is signed in, what they see, and the way out where there is one."""
    letters = "".join(part[0] for part in principal.name.split()[:2]) or "?"
    initials = (letters if len(letters) > 1 else principal.name[:2]).upper()
    who = f"{principal.name}, {principal.role}: {_SCOPES[principal.role]}."
    if sign_in != "local":
        return [html.Span(initials, className="user", tabIndex="0", **{"data-tip": who})]
    way_out = html.Form(
        html.Button("Sign out", className="button", type="submit"),
        action="/sign-out", method="POST",
    )  # fmt: skip
    return [
        html.Details(
            [
                html.Summary(initials, className="user", **{"aria-label": "Who is signed in"}),
                html.Div([html.P(who), way_out], className="menu"),
            ],
            className="picker visitor",
        )
    ]


def staff_links(pages: Sequence[Page], principal: Principal) -> list[Component]:
    """The rest of the rail: links to the pages that only the staff have."""
    return _links([page for page in pages if page.for_staff]) if is_staff(principal) else []


def not_found() -> Component:
    """The same page for what does not exist and for what may not be seen."""
    return html.Div(
        [
            html.H1("Not found", tabIndex="-1"),
            html.P("There is no such page or job, or it is not yours to see."),
            html.A("Go to the overview", href="/", className="button"),
        ],
        className="empty",
    )


def unreadable() -> Component:
    """What stands in place of a page while the database does not answer."""
    return html.Div(
        [
            html.H1("Could not load", tabIndex="-1"),
            html.P("The database does not answer. What the agents measure is kept on their nodes."),
            html.Button("Try again", className="button", type="button", **{"data-action": "again"}),
        ],
        className="empty",
    )


def _rail(pages: Sequence[Page]) -> Component:
    logo = html.A(
        [html.I(), html.I(), html.I(), html.I(), html.Span("Flopwatch", className="hidden-text")],
        href="/",
        className="logo",
    )
    for_all = [page for page in pages if not page.for_staff]
    return html.Nav(
        [logo, *_links(for_all), html.Div(id="staff-pages")],
        className="rail",
        **{"aria-label": "Pages"},
    )


def _links(pages: Sequence[Page]) -> list[Component]:
    return [
        html.A([icon(page.icon), page.name], href=page.path, **{"data-nav": page.path})
        for page in pages
        if page.icon is not None
    ]


def _topbar() -> Component:
    return html.Header(
        [
            html.Button(
                icon("menu"), className="tool menu-button",
                **{"aria-label": "Menu", "data-action": "drawer"},
            ),
            html.Div(id="context", className="context"),
            html.Div(
                [
                    icon("search"),
                    dcc.Input(
                        id="search", type="text", placeholder="Search jobs, users, names",
                        autoComplete="off", maxLength=128,
                    ),
                    html.Kbd("/"),
                ],
                className="search",
            ),
            html.Span(className="grow"),
            html.Div(id="ranges", className="ranges"),
            html.Span("", id="age", className="freshness", **{"data-level": "none"}),
            html.Button(
                icon("pause"), id="pause", className="tool",
                **{"aria-label": "Pause live updates", "aria-pressed": "false",
                   "data-action": "pause"},
            ),
            html.Button(
                icon("sun-moon"), id="scheme", className="tool",
                **{"aria-label": "Colour scheme: system", "data-action": "scheme"},
            ),
            html.Button(
                icon("search"), type="button", className="tool search-button",
                **{"aria-label": "Search", "data-action": "search"},
            ),
            html.Span(id="visitor"),
        ],
        className="topbar",
    )  # fmt: skip


def _picker(place: Place) -> Component:
    assert place.cluster is not None
    if len(place.clusters) == 1:
        name = place.cluster.name
        return html.Span(name, className="cluster", **{"data-cluster": name})
    links = [
        html.A(
            cluster.name,
            href="/?" + urlencode({"cluster": cluster.name}),
            **({"aria-current": "true"} if cluster == place.cluster else {}),
        )
        for cluster in place.clusters
    ]
    return html.Details(
        [
            html.Summary([place.cluster.name, icon("chevron-down")]),
            html.Div(links, className="menu"),
        ],
        className="picker",
        **{"data-cluster": place.cluster.name},
    )
