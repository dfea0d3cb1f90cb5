"""What the browser does by itself on a job's page."""

from dash import Dash

from flopwatch_dashboard.components.chart import connect_chart


def connect(app: Dash) -> None:
    """Register the callbacks of a job's page."""
    connect_chart(app, "job-instrument")
    connect_chart(app, "job-mfu")
