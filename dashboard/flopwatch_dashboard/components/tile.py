"""Tiles: one figure each, joined in one card."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from dash import html
from dash.development.base_component import Component

from flopwatch_dashboard.components.glyph import glyph
from flopwatch_dashboard.components.sparkline import sparkline
from flopwatch_dashboard.format import DASH


@dataclass(frozen=True)
class Tile:
    """A figure with its unit ("33 %"), its label and a note; a dash keeps the tile's height.

    `note` tells why when the figure is a dash. `history` None leaves out the sparkline.
    """

    label: str
    figure: str
    note: str = ""
    state: str | None = None
    unit: str | None = None
    history: Sequence[float | None] | None = None
    tone: str = ""
    href: str | None = None
    attributes: dict[str, str] = field(default_factory=dict)

    def _figure(self) -> list[str | Component]:
        if self.figure == DASH:
            return [DASH]
        value, _, unit = self.figure.partition(" ")
        unit = unit if self.unit is None else self.unit
        return [value, html.Small(f" {unit}")] if unit else [value]

    def show(self) -> Component:
        label = [glyph(self.state), self.label] if self.state else [self.label]
        parts = [
            html.Div(label, className="tile-label"),
            html.Div(self._figure(), className="tile-figure", **self.attributes),
            html.Div(self.note, className="tile-note", title=self.note),
        ]
        if self.history is not None:
            parts.append(sparkline(self.history, self.tone))
        if self.href is None:
            return html.Div(parts, className="tile", **{"data-testid": "tile"})
        return html.A(parts, className="tile", href=self.href, **{"data-testid": "tile"})


def tiles(items: Sequence[Tile], *, small: bool = False) -> Component:
    """A strip of tiles in one card, hairlines between."""
    return html.Div([item.show() for item in items], className="tiles small" if small else "tiles")
