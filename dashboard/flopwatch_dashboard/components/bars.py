"""Bars: shares of a whole, and a value beside its number."""

from dash import html
from dash.development.base_component import Component

from flopwatch_dashboard.components.glyph import glyph
from flopwatch_dashboard.format import percent


def state_bar(amounts: dict[str, float]) -> list[Component]:
    """A bar of amounts by state, and its legend in percent; states without any are left out."""
    total = sum(amounts.values())
    shares = {state: amount / total for state, amount in amounts.items() if total and amount > 0}
    legend = [
        html.Span([glyph(state), html.B(percent(share)), state]) for state, share in shares.items()
    ]
    return [_bar("state-bar", shares), html.Div(legend, className="legend")]


def mix_bar(amounts: dict[str, float], whole: float) -> Component:
    """A bar of amounts by state whose full width stands for `whole`."""
    shares = {state: amount / whole for state, amount in amounts.items() if whole and amount > 0}
    return _bar("mix-bar", shares)


def inline_bar(fraction: float | None, top: float = 1.0) -> Component:
    """A small bar to stand after its number; empty when the value is unknown."""
    width = 100 * min(1.0, (fraction or 0.0) / top)
    return html.Span(html.I(style={"width": f"{width:.1f}%"}), className="inline-bar")


def _bar(name: str, shares: dict[str, float]) -> Component:
    parts = [
        html.I(className=f"fill-{state}", style={"width": f"{100 * share:.2f}%"})
        for state, share in shares.items()
    ]
    text = ", ".join(f"{percent(share)} {state}" for state, share in shares.items())
    return html.Div(parts, className=name, role="img", **{"aria-label": text})
