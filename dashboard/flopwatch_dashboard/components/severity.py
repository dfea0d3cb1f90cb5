"""How much a finding matters, by shape: solid triangle, hollow triangle, ring."""

from typing import Literal

from dash import html
from dash.development.base_component import Component

Severity = Literal["flag", "warning", "watch"]


def severity(kind: Severity, word: str) -> Component:
    """The sign of `kind`, read out as `word`."""
    return html.Span(className=f"severity {kind}", role="img", title=word, **{"aria-label": word})
