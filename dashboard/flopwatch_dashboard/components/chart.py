"""Charts: a figure as a plain dict with token names in place of colours.

The browser writes the colours (assets/js/paint.js), so that another scheme needs no request, and
takes live points in (assets/js/receive.js), so that a figure is never replaced under the reader.
"""

from datetime import datetime
from typing import Any

from dash import ClientsideFunction, Dash, Input, Output, dcc, html
from dash.development.base_component import Component

Figure = dict[str, Any]
Message = dict[str, Any]
"""New points for a figure on the screen; what they may be is said in assets/js/receive.js."""

_CONFIG = {
    "displayModeBar": False,
    "responsive": True,
    "doubleClick": "reset",
    "showAxisDragHandles": False,
}


def chart(name: str, figure: Figure, label: str, read_at: datetime) -> Component:
    """A chart, and the figure that the browser paints into it.

    `read_at` is when its page was read: points that come later must meet this figure, no other.
    """
    layout = figure["layout"]
    height = layout["height"]
    layout["meta"] = {**layout.get("meta", {}), "read_at": read_at.timestamp()}
    return html.Div(
        [
            dcc.Store(id=f"{name}-figure", data=figure),
            dcc.Graph(id=name, config=_CONFIG, style={"height": f"{height}px"}),
        ],
        role="img",
        className="chart",
        style={"minHeight": f"{height}px"},
        **{"aria-label": label},
    )


def connect_chart(app: Dash, name: str) -> None:
    """Let the browser paint the chart `name`."""
    app.clientside_callback(
        ClientsideFunction("flopwatch", "paint"),
        Output(name, "figure"),
        Input(f"{name}-figure", "data"),
    )
