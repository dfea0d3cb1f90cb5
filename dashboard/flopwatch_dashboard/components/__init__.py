"""The parts that pages are made of: plain elements in the forms of the look."""

from flopwatch_dashboard.components.bars import inline_bar, mix_bar, state_bar
from flopwatch_dashboard.components.cards import card, code, empty, facts
from flopwatch_dashboard.components.controls import icon, segment
from flopwatch_dashboard.components.glyph import glyph, state_word
from flopwatch_dashboard.components.missing import or_dash
from flopwatch_dashboard.components.severity import severity
from flopwatch_dashboard.components.sparkline import sparkline
from flopwatch_dashboard.components.table import Column, table
from flopwatch_dashboard.components.tile import Tile, tiles
from flopwatch_dashboard.components.time import clock, full_time

__all__ = [
    "Column",
    "Tile",
    "card",
    "clock",
    "code",
    "empty",
    "facts",
    "full_time",
    "glyph",
    "icon",
    "inline_bar",
    "mix_bar",
    "or_dash",
    "segment",
    "severity",
    "sparkline",
    "state_bar",
    "state_word",
    "table",
    "tiles",
]
