"""A value that is not there: a dash, with the reason on hover, focus and tap."""

from dash import html
from dash.development.base_component import Component

from flopwatch_dashboard.format import DASH


def or_dash(text: str, reason: str) -> Component | str:
    """`text`, or a dash that tells `reason` when the text is a dash."""
    if text != DASH:
        return text
    return html.Span(DASH, tabIndex="0", **{"data-tip": reason})
