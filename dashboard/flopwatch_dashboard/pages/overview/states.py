"""GPUs by state over time: the card, and the labels at the right edge of its chart."""

from dash import html
from dash.development.base_component import Component

from flopwatch_dashboard.components import card
from flopwatch_dashboard.components.chart import chart
from flopwatch_dashboard.format import count
from flopwatch_dashboard.pages.overview import figures
from flopwatch_dashboard.pages.overview.data import WINDOW_LABELS, OverviewData
from flopwatch_server.efficiency.schemas import Overview


def states_card(data: OverviewData) -> Component:
    """The chart with its labels."""
    figure = figures.states_figure(data.overview, data.window)
    return card(
        "GPUs by state",
        html.Div(
            [
                chart("overview-states", figure, "GPUs by state over time, stacked", data.now),
                html.Div(state_labels(data.overview), id="overview-labels",
                         className="state-labels"),
            ],
            className="state-chart",
        ),
        note=html.Span(window_note(data), id="overview-window"),
    )  # fmt: skip


def window_note(data: OverviewData) -> str:
    """What the chart shows."""
    return f"last {WINDOW_LABELS[data.window]}, 10 min means"


def state_labels(found: Overview) -> list[Component]:
    """What each band is and how many GPUs it has now, at its right edge."""
    now = found.gpus_now
    said = (now.active, now.low, now.idle, found.free or 0, found.reserved, found.down)
    rest = max(found.gpus - sum(said), now.shared + now.unknown)
    labelled = (
        (now.idle, "Idle"),
        (now.low, "Low"),
        (now.active, "Active"),
        (rest, "Shared, no data" if now.shared else "No data"),
        (found.free or 0, "Free"),
        (found.reserved, "Reserved"),
        (found.down, "Down"),
    )
    positions = figures.label_positions([amount for amount, _ in labelled], figures.top(found))
    return [
        html.Span([html.B(count(amount)), word], style={"top": f"{position:.0f}px"})
        for (amount, word), position in zip(labelled, positions, strict=True)
        if amount
    ]
