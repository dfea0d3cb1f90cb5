"""GPUs by state over time: a stack with idle on the base line."""

from collections.abc import Sequence
from typing import Any

from flopwatch_dashboard.components.chart import Figure
from flopwatch_dashboard.format import axis_time
from flopwatch_dashboard.live.reading import Whole
from flopwatch_dashboard.pages.overview.data import WINDOWS
from flopwatch_dashboard.theme import CHART_FONT, HOVER_LABEL, STATE_TOKENS, TICK_FORMATS
from flopwatch_server.efficiency.schemas import Overview, StateCounts

HEIGHT = 330
MARGIN_TOP = 10
MARGIN_BOTTOM = 28
PLOT_HEIGHT = HEIGHT - MARGIN_TOP - MARGIN_BOTTOM
STEP_SECONDS = 600
STACK = ("idle", "low", "active", "unknown", "free", "reserved", "down")
_LABEL_DISTANCE = 17.0


def states_figure(found: Overview, window: str) -> Figure:
    """The stack. Each step is the mean of 10 minutes."""
    traces = [
        {
            "type": "scatter", "mode": "lines", "stackgroup": "gpus", "name": state,
            "line": {"shape": "hv", "width": 1, "color": "--surface"},
            "fillcolor": STATE_TOKENS[state],
            "hovertemplate": "%{y:.0f} " + state + "<extra></extra>",
            **points,
        }
        for state, points in zip(STACK, _points(found.history), strict=True)
    ]  # fmt: skip
    return {
        "data": traces,
        "layout": {
            "height": HEIGHT, "margin": {"l": 44, "r": 2, "t": MARGIN_TOP, "b": MARGIN_BOTTOM},
            "paper_bgcolor": "rgba(0,0,0,0)", "plot_bgcolor": "rgba(0,0,0,0)",
            "font": CHART_FONT, "showlegend": False, "hovermode": "x unified",
            "hoverlabel": HOVER_LABEL,
            "dragmode": "zoom",
            "xaxis": {"type": "date", "range": _range(found, window), "showgrid": False,
                      "linecolor": "--line2", "ticks": "outside", "tickcolor": "--line2",
                      "ticklen": 4, "nticks": 7, "tickangle": 0, "tickformatstops": TICK_FORMATS,
                      "hoverformat": "%d %b %H:%M"},
            "yaxis": {"fixedrange": True, "gridcolor": "--grid", "zeroline": False,
                      "tickformat": ",d", **_scale(found)},
        },
    }  # fmt: skip


def states_points(found: Overview, window: str) -> Whole:
    """The same points for a figure that is on the screen already."""
    return Whole(_points(found.history), _range(found, window), window, _scale(found))


def top(found: Overview) -> float:
    """The top of the scale: all GPUs, or what was counted when there were more."""
    counted = [sum(getattr(point, state) for state in STACK) for point in found.history]
    return float(max([found.gpus, *counted, 1]))


def label_positions(amounts: Sequence[float], scale: float) -> list[float]:
    """Where labels stand, in pixels from the top, for amounts stacked from the base line up.

    Each is at the middle of its band, moved as little as keeps them a line apart.
    """
    centres = []
    base = 0.0
    for amount in amounts:
        centres.append(MARGIN_TOP + PLOT_HEIGHT * (1 - (base + amount / 2) / scale))
        base += amount
    placed: list[float] = []
    for centre in centres:  # from the bottom up
        limit = placed[-1] - _LABEL_DISTANCE if placed else MARGIN_TOP + PLOT_HEIGHT - 6
        placed.append(min(centre, limit))
    return placed


def _scale(found: Overview) -> dict[str, Any]:
    """The range, with ticks at whole GPUs only."""
    scale = top(found)
    return {"range": [0, scale], "dtick": 1 if scale < 5 else None, "nticks": 5}


def _points(history: Sequence[StateCounts]) -> list[dict[str, Any]]:
    """Steps begin where their 10 minutes begin; the last one is closed by a point at its end."""
    x: list[float] = [axis_time(point.time - STEP_SECONDS) for point in history]
    rows = list(history)
    if history:
        x.append(axis_time(history[-1].time))
        rows.append(history[-1])
    return [{"x": x, "y": [round(getattr(row, state), 2) for row in rows]} for state in STACK]


def _range(found: Overview, window: str) -> list[int] | None:
    if not found.history:
        return None
    end = found.history[-1].time
    return [axis_time(end - WINDOWS[window] * 3600), axis_time(end)]
