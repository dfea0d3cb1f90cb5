"""What a page shows at one time, and what of it is new to a browser."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol, Self

import msgspec
from plotly.io.json import to_json_plotly

from flopwatch_dashboard.components.chart import Message
from flopwatch_dashboard.freshness import Freshness


class Cursor(NamedTuple):
    """What a browser has: all that was read at `now`, with points of `step` seconds.

    Those up to `last` are settled; later ones may still change. Both times are in seconds since
    1970. A page without points has the step 0.
    """

    now: float
    step: int = 0
    last: int = 0


class Chart(Protocol):
    """The points of a chart at one time."""

    def message(self, before: Self | None) -> Message | None:
        """What a chart that shows `before`, or anything older if None, lacks; None: nothing."""
        ...


@dataclass(frozen=True)
class Whole:
    """The few points of a chart: they come whole, but only when one has changed.

    `scale` is what follows from them for the vertical axis.
    """

    traces: list[dict[str, Any]]
    range: list[int] | None
    window: str
    scale: dict[str, Any]

    def message(self, before: Self | None) -> Message | None:
        if before == self:
            return None
        same = before is not None and before.traces == self.traces
        return {
            "kind": "replace",
            "traces": [] if same else self.traces,
            "range": self.range,
            "window": self.window,
            "scale": self.scale,
        }


@dataclass(frozen=True)
class Reading:
    """What a page shows. `parts` are properties by element, as JSON from `as_json`.

    A browser whose page has another `shape` lacks places for what came and asks for the page anew.
    Where charts have points, `points` is their step and the time up to which they are settled, and
    all later than `covers` were read: 0 is all of the window. A page that costs much to read keeps
    in `made_of` what it depends on, so that the next reading can be the same again.
    """

    shape: Any
    freshness: Freshness
    parts: Mapping[str, msgspec.Raw]
    charts: Mapping[str, Chart] = field(default_factory=dict)
    points: tuple[int, int] = (0, 0)
    covers: int = 0
    rows: Mapping[str, Any] | None = None
    made_of: Any = None

    @property
    def cursor(self) -> Cursor:
        """What a browser has that has got this."""
        return Cursor(self.freshness["now"], *self.points)

    @property
    def is_final(self) -> bool:
        """Whether nothing will change any more."""
        return not self.freshness["live"]

    def follows(self, cursor: Cursor | None) -> bool:
        """Whether it holds all that a browser with `cursor` lacks."""
        if self.covers == 0:
            return True
        return cursor is not None and cursor.step == self.points[0] and cursor.last >= self.covers

    def message(self, before: Self | None) -> dict[str, Any]:
        """What brings a browser from `before` to this; None: from anything that this follows."""
        parts, charts = self.parts, self.charts
        old_parts = before.parts if before else {}
        old_charts = before.charts if before else {}
        messages = {name: chart.message(old_charts.get(name)) for name, chart in charts.items()}
        return {
            "shape": self.shape,
            "freshness": self.freshness,
            "cursor": self.cursor,
            "parts": {name: part for name, part in parts.items() if old_parts.get(name) != part},
            "charts": {name: message for name, message in messages.items() if message is not None},
            "rows": self.rows,
        }


@dataclass(frozen=True)
class Ask:
    """What a reading is for: those who have got `before`, and newcomers, each with its cursor.

    `rows` are those of a long list that are on a screen, as (first, end).
    """

    before: Reading | None
    newcomers: Collection[Cursor | None]
    rows: tuple[int, int] | None = None

    def of_everything(self) -> "Ask":
        """The same for a newcomer who has nothing."""
        return replace(self, newcomers=[None])


def as_json(properties: Mapping[str, Mapping[str, Any]]) -> dict[str, msgspec.Raw]:
    """Properties by element as they are sent; components can't be compared in any other form."""
    return {name: msgspec.Raw(to_json_plotly(value)) for name, value in properties.items()}
