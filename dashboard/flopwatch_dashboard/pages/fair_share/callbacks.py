"""What the browser does by itself on the fair-share page."""

from dash import Dash

from flopwatch_dashboard.components.chart import connect_chart
from flopwatch_dashboard.pages.fair_share.figures import CHART


def connect(app: Dash) -> None:
    """Register the callbacks of the page."""
    connect_chart(app, CHART)
