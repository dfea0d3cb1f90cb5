"""The overview before the first sample: how to connect a node and a scheduler."""

from datetime import datetime

from dash import html
from dash.development.base_component import Component

from flopwatch_dashboard.components import Tile, card, code, facts, tiles
from flopwatch_dashboard.format import DASH, count, plural
from flopwatch_dashboard.freshness import freshness
from flopwatch_dashboard.pages import Shown
from flopwatch_dashboard.pages.overview.data import OverviewData, shape_of
from flopwatch_dashboard.services import Visit, call, server_address
from flopwatch_dashboard.words import source_name, source_state
from flopwatch_server.efficiency.schemas import Overview

_SIGN_IN = {"demo": "none, this machine only", "local": "local account"}


async def show(data: OverviewData | None) -> Shown:
    """The steps; `data` None while there is not even a cluster."""
    now, sign_in = await call(_facts)
    found = data.overview if data else None
    head = html.Div(
        [
            html.H1("Overview", tabIndex="-1"),
            html.P(
                "No agent has reported yet. The first GPU appears here about 20 s after its agent "
                "starts.",
                className="lead",
            ),
        ]
    )
    steps = _steps(found.cluster if found else "granite", server_address())
    side = html.Div([_simulated_card(), _checks_card(found, sign_in, now)], className="stack")
    content = html.Div(
        [
            html.Div(head, className="page-head"),
            _tiles(found),
            html.Div(
                [
                    card(
                        "Connect the first node",
                        steps,
                        aside=html.Span("waiting for the first sample", className="waiting"),
                    ),
                    side,
                ],
                className="columns",
            ),
        ],
        id="overview-first-run",
    )
    return Shown(content, freshness(None, now), shape=shape_of(data))


def _facts(visit: Visit) -> tuple[datetime, str]:
    return visit.now, _SIGN_IN[visit.settings.sign_in]


def _tiles(found: Overview | None) -> Component:
    allocated = Tile("Allocated", DASH, "no scheduler yet")
    if found is not None and found.allocated is not None:
        queued = plural(found.pending_jobs, "job")
        allocated = Tile("Allocated", count(found.allocated), f"{queued} queued", unit="GPUs")
    waiting = ("Active", "Idle-allocated", "Tensor active")
    return tiles(
        [
            allocated,
            *(Tile(label, DASH, "no agent yet") for label in waiting),
            Tile("MFU while training", DASH, "no job reports"),
            Tile("Power", DASH, "no agent yet"),
        ]
    )


def _steps(cluster: str, address: str) -> Component:
    steps = (
        (
            "Make a token",
            "On this server. One token for each node or one for all; the file is for your eyes "
            "only (mode 0600). Copy it to /etc/flopwatch/token on each node.",
            f"flopwatch token node --cluster {cluster} --output token",
        ),
        (
            "Start the agent on a GPU node",
            "As root or as a user who may read GPU counters. It reads only, and opens no port.",
            f"pip install '.[agent]'   # in a checkout\n"
            f"flopwatch agent --server {address} --token-file /etc/flopwatch/token",
        ),
        (
            "Connect Slurm",
            "Add this to the server's settings and start it again. It calls squeue every 30 s, and "
            "sacct for what has ended. Without it GPUs are shown, jobs are not.",
            f"export FLOPWATCH_SLURM_CLUSTER={cluster}",
        ),
    )
    return html.Ol(
        [html.Li(html.Div([html.H2(title), html.P(text), code(command)]))
         for title, text, command in steps],
        className="steps",
    )  # fmt: skip


def _simulated_card() -> Component:
    text = html.P(
        "On a machine without a GPU this brings up a simulated cluster. It enters by the same "
        "doors as a real one and is labelled on every page."
    )
    return card(
        "Just looking?", html.Div([text, code("flopwatch run")], className="card-body just")
    )


def _checks_card(found: Overview | None, sign_in: str, now: datetime) -> Component:
    sources = found.sources if found else []
    checks = [
        ("Database", "ready"),
        ("Ingest", "listening, 0 samples"),
        *((source_name(source), source_state(source, now)) for source in sources),
        ("Sign-in", sign_in),
    ]  # fmt: skip
    if not sources:
        checks.insert(2, ("Scheduler", "not connected"))
    return card("Checks", html.Div(facts(checks), className="card-body"))
