"""What the browser does by itself on the doctor's page."""

from dash import Dash


def connect(app: Dash) -> None:
    """Nothing: findings come by the live path."""
