"""Cards and the plain things inside them."""

from collections.abc import Sequence
from typing import Any

from dash import html
from dash.development.base_component import Component

from flopwatch_dashboard.components.controls import icon

Children = Any
"""What Dash takes as children: components, texts, or a list of both."""


def card(
    title: str, *body: Children, note: Children = None, aside: Children = None, name: str = ""
) -> Component:
    """A card: title, a note after it, something at its right, and the body below."""
    head = [html.H2(title)]
    if note is not None:
        head.append(html.Span(note, className="note"))
    if aside is not None:
        head.append(html.Span(aside, className="note push"))
    return html.Section([html.Div(head, className="card-head"), *body], className=f"card {name}")


def facts(pairs: Sequence[tuple[str, Children]]) -> Component:
    """A list of names and values."""
    return html.Dl([html.Div([html.Dt(name), html.Dd(value)]) for name, value in pairs],
                   className="facts")  # fmt: skip


def code(text: str) -> Component:
    """Code with a button that copies it. It scrolls, it never wraps."""
    copy = html.Button(
        icon("copy"), className="tool copy", type="button",
        **{"data-copy": text, "aria-label": "Copy"},
    )  # fmt: skip
    return html.Div([html.Pre(text), copy], className="code")


def empty(title: str, why: str, *action: Component) -> Component:
    """A box for what is empty: one sentence why, and at most one action."""
    return html.Div([html.H2(title), html.P(why), *action], className="empty")
