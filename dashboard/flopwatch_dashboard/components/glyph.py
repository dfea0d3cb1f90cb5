"""The glyph of a state: a letter and a fill, so that colour never stands alone."""

from dash import html
from dash.development.base_component import Component

_LETTERS = {
    "active": "A",
    "low": "L",
    "idle": "I",
    "free": "F",
    "shared": "",
    "unknown": "?",
    "down": "D",
    "pending": "P",
    "ended": "E",
}


def glyph(state: str) -> Component:
    """The glyph of a state of a GPU or a job."""
    return html.Span(_LETTERS[state], className=f"glyph {state}", title=state)


def state_word(state: str, word: str) -> Component:
    """A glyph with the word that it stands for."""
    return html.Span([glyph(state), word], className="state")
