"""The course of one association: its usage against its share, and a user's factor."""

from collections.abc import Callable
from datetime import datetime
from typing import Any

from flopwatch_dashboard.components.chart import Figure
from flopwatch_dashboard.format import axis_time
from flopwatch_dashboard.live.reading import Whole
from flopwatch_dashboard.pages.fair_share.data import FairShareData
from flopwatch_dashboard.theme import CHART_FONT, HOVER_LABEL, TICK_FORMATS
from flopwatch_server.people.schemas import SharePoint

CHART = "fair-share-course"
_HEIGHT = 210
_HEIGHT_WITH_FACTOR = 320
_TOPS = (5.0, 10.0, 20.0, 50.0, 100.0)
_SHORTEST_SECONDS = 60
_HV = {"type": "scatter", "mode": "lines"}


def course_figure(data: FairShareData, window: str) -> Figure:
    """Figures hold from when they were told until others are; so lines are steps."""
    with_factor = has_factor(data)
    usage, share, *factor = _points(data)
    solid = {"color": "--accent", "width": 1.5, "shape": "hv"}
    dashed = {"color": "--mark", "width": 1.25, "shape": "hv", "dash": "dash"}
    traces = [
        {**_HV, **usage, "line": solid, "hovertemplate": "Usage <b>%{y:.1f} %</b><extra></extra>"},
        {**_HV, **share, "line": dashed, "hovertemplate": "Share <b>%{y:.1f} %</b><extra></extra>"},
    ]
    traces += [
        {**_HV, **each, "line": solid, "yaxis": "y2",
         "hovertemplate": "Factor <b>%{y:.3f}</b><extra></extra>"}
        for each in factor
    ]  # fmt: skip
    common = {"side": "right", "fixedrange": True, "zeroline": False, "gridcolor": "--grid",
              "ticklabeloverflow": "allow"}  # fmt: skip
    rows: dict[str, Any] = {"yaxis": {**common, **_scale(data)}}
    if with_factor:
        rows["yaxis"]["domain"] = [0.48, 0.94]
        rows["yaxis2"] = {**common, "domain": [0, 0.34], "range": [0, 1.03], "tickvals": [0.5, 1],
                          "ticktext": ["0.5", "1"]}  # fmt: skip
    return {
        "data": traces,
        "layout": {
            "height": _HEIGHT_WITH_FACTOR if with_factor else _HEIGHT,
            "margin": {"l": 16, "r": 48, "t": 8, "b": 28},
            "paper_bgcolor": "rgba(0,0,0,0)", "plot_bgcolor": "rgba(0,0,0,0)",
            "font": CHART_FONT, "showlegend": False, "hovermode": "x unified",
            "hoversubplots": "axis", "hoverlabel": HOVER_LABEL, "dragmode": "zoom",
            "annotations": [_row_title("Fair-share factor", 0.34)] if with_factor else [],
            "xaxis": {"type": "date", "range": _range(data), "showgrid": False, "zeroline": False,
                      "linecolor": "--line2", "ticks": "outside", "tickcolor": "--line2",
                      "ticklen": 4, "nticks": 6, "tickangle": 0, "tickformatstops": TICK_FORMATS,
                      "hoverformat": "%d %b %H:%M", "anchor": "y2" if with_factor else "y"},
            **rows,
            "meta": {"window": window},
        },
    }  # fmt: skip


def course_points(data: FairShareData, window: str) -> Whole:
    """The same points for a figure that is on the screen already."""
    return Whole(_points(data), _range(data), window, _scale(data))


def _points(data: FairShareData) -> list[dict[str, Any]]:
    of: list[Callable[[SharePoint], float | None]] = [
        lambda point: _percent(point.effective_usage),
        lambda point: _percent(point.norm_shares),
    ]
    if has_factor(data):
        of.append(lambda point: point.fair_share)
    points = _told(data)
    x = [axis_time(int(at.timestamp())) for at, _ in points]
    return [{"x": x, "y": [value(point) for _, point in points]} for value in of]


def _told(data: FairShareData) -> list[tuple[datetime, SharePoint]]:
    """Each figure at the time from which it held, and the last one also when it was known last."""
    assert data.course is not None
    points = [(max(point.at, data.since), point) for point in data.course.points]
    if not points:
        return []
    until = data.course.gone_at or data.told.told_at or data.now
    return [*points, (max(until, points[-1][0]), points[-1][1])]


def has_factor(data: FairShareData) -> bool:
    assert data.course is not None
    return any(point.fair_share is not None for point in data.course.points)


def _scale(data: FairShareData) -> dict[str, Any]:
    assert data.course is not None
    values = [value for point in data.course.points
              for value in (point.effective_usage, point.norm_shares)
              if value is not None]  # fmt: skip
    highest = 100 * max(values, default=0.0)
    top = next((top for top in _TOPS if highest <= top), _TOPS[-1])
    return {"range": [0, 1.03 * top], "tickvals": [top / 2, top],
            "ticktext": [f"{top / 2:g}", f"{top:g} %"]}  # fmt: skip


def _range(data: FairShareData) -> list[int]:
    """The window, or what there is of it if the first figures came later."""
    points = _told(data)
    first = points[0][0] if points else data.since
    end = int(data.now.timestamp())
    return [axis_time(min(int(first.timestamp()), end - _SHORTEST_SECONDS)), axis_time(end)]


def _row_title(text: str, top: float) -> dict[str, Any]:
    return {"xref": "paper", "x": 0, "yref": "paper", "y": top, "xanchor": "left",
            "yanchor": "bottom", "showarrow": False, "text": text,
            "font": {"color": "--text3"}}  # fmt: skip


def _percent(fraction: float | None) -> float | None:
    return None if fraction is None else round(100 * fraction, 2)
