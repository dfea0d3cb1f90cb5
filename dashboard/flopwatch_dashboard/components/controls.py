"""Small controls. They act by `data-` attributes that assets/js/address.js and frame.js read."""

from collections.abc import Sequence

from dash import html
from dash.development.base_component import Component


def icon(name: str) -> Component:
    """An icon of assets/css/icons.css in the colour of the text around it."""
    return html.Span(className=f"icon icon-{name}", **{"aria-hidden": "true"})


def segment(
    label: str, key: str, options: Sequence[tuple[str, str]], chosen: str, default: str
) -> Component:
    """One choice of few, kept in the address as `key`; the default leaves the address clean."""
    if chosen not in dict(options):
        chosen = default
    buttons = [
        html.Button(
            text, type="button",
            **{"data-set": key, "data-value": "" if name == default else name,
               "aria-pressed": str(name == chosen).lower()},
        )
        for name, text in options
    ]  # fmt: skip
    return html.Div(buttons, className="segment", role="group", **{"aria-label": label})
