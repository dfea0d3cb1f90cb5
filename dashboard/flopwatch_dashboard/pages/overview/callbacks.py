"""What the browser does by itself on the overview."""

from dash import Dash

from flopwatch_dashboard.components.chart import connect_chart


def connect(app: Dash) -> None:
    """Register the callbacks of the overview."""
    connect_chart(app, "overview-states")
