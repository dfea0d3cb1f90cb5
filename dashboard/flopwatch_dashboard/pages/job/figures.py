"""The job's instrument: one figure with a heat strip and four rows on one time axis.

Geometry, points, gaps and the limit are made here. What follows from the points alone is made in
the browser, for the first figure and for live points alike: bands, scales and the numbers of the
gutter (assets/js/instrument.js).
"""

from typing import Any

from flopwatch.metrics import BY_NAME
from flopwatch_dashboard.components.chart import Figure
from flopwatch_dashboard.format import age, axis_time
from flopwatch_dashboard.pages.job.data import METRICS
from flopwatch_dashboard.pages.job.points import Points, points_of, scale_of
from flopwatch_dashboard.theme import CHART_FONT, HOVER_LABEL, RAMP, TICK_FORMATS
from flopwatch_server.efficiency.schemas import RunSeries, SeriesGap

STRIP_TOP = 6
ROW_GAP = 30
STRIP_GAP = 8
ROW_HEIGHT = 88
MARGIN_BOTTOM = 28
MARGIN_RIGHT = 46
_STRIP_ROW_PIXELS = ((8, 20), (16, 16), (32, 11))
_SMALL_STRIP_ROW_PIXELS = 9
_LABELLED_GAP_SHARE = 0.012


def strip_row_pixels(rows: int) -> int:
    """How high a row of the strip is: many GPUs get thin rows."""
    fitting = (pixels for most, pixels in _STRIP_ROW_PIXELS if rows <= most)
    return next(fitting, _SMALL_STRIP_ROW_PIXELS)


def row_tops(strip_rows: int) -> list[int]:
    """Where the block of each metric begins, in pixels from the top of the figure."""
    first = STRIP_TOP + strip_rows * strip_row_pixels(strip_rows) + STRIP_GAP
    return [first + position * (ROW_GAP + ROW_HEIGHT) for position in range(len(METRICS))]


def instrument(series: RunSeries, power_limit: float | None, window: str, *, live: bool) -> Figure:
    """The whole figure of a series; the gutter tells values of now only if it is `live`."""
    points = points_of(series, METRICS)
    rows = len(points.labels)
    tops = row_tops(rows)
    height = tops[-1] + ROW_GAP + ROW_HEIGHT + MARGIN_BOTTOM
    plot = height - MARGIN_BOTTOM
    axes: dict[str, Any] = {
        "yaxis": {"domain": _domain(STRIP_TOP, tops[0] - STRIP_GAP, plot),
                  "range": [rows - 0.5, -0.5],
                  "fixedrange": True, "visible": False},
        "xaxis": {"type": "date", "range": window_range(series), "anchor": f"y{len(METRICS) + 1}",
                  "showgrid": False, "zeroline": False, "linecolor": "--line2", "ticks": "outside",
                  "tickcolor": "--line2", "ticklen": 4, "nticks": 8, "tickangle": 0,
                  "tickformatstops": TICK_FORMATS, "hoverformat": "%d %b %H:%M:%S",
                  "showspikes": True, "spikemode": "across", "spikethickness": 1,
                  "spikedash": "solid", "spikecolor": "--mark", "spikesnap": "hovered data"},
    }  # fmt: skip
    for position, top in enumerate(tops, start=2):
        axes[f"yaxis{position}"] = {
            "domain": _domain(top + ROW_GAP, top + ROW_GAP + ROW_HEIGHT, plot), "side": "right",
            "rangemode": "tozero", "fixedrange": True, "gridcolor": "--grid", "zeroline": False,
            "ticklabeloverflow": "allow",
        }  # fmt: skip
    return {
        "data": [*_strip_traces(points), *_metric_traces(points)],
        "layout": {
            "height": height,
            "margin": {"l": 0, "r": MARGIN_RIGHT, "t": 0, "b": MARGIN_BOTTOM},
            "paper_bgcolor": "rgba(0,0,0,0)", "plot_bgcolor": "rgba(0,0,0,0)",
            "font": CHART_FONT, "showlegend": False, "dragmode": "zoom", "hoverlabel": HOVER_LABEL,
            "hovermode": "x unified", "hoversubplots": "axis",
            **axes,
            **marks(series, power_limit),
            "meta": {"kind": "instrument", "window": window, "units": _units(),
                     "limits": {"power_watts": power_limit}, "live": live},
        },
    }  # fmt: skip


def window_range(series: RunSeries) -> list[int]:
    """Both ends of the time axis."""
    return [axis_time(series.start), axis_time(series.end)]


def marks(series: RunSeries, power_limit: float | None) -> dict[str, list[dict[str, Any]]]:
    """Shapes and annotations: sunken columns where nothing was measured, the power limit."""
    shapes = [_gap_shape(gap) for gap in series.gaps]
    shortest = _LABELLED_GAP_SHARE * (series.end - series.start)
    annotations = [_gap_label(gap) for gap in series.gaps if gap.end - gap.start >= shortest]
    if power_limit is not None and "power_watts" in METRICS:
        axis = f"y{METRICS.index('power_watts') + 2}"
        shapes.append({"type": "line", "xref": "paper", "x0": 0, "x1": 1, "yref": axis,
                       "y0": power_limit, "y1": power_limit,
                       "line": {"color": "--mark", "width": 1, "dash": "dash"}})  # fmt: skip
        annotations.append({"xref": "paper", "x": 0.005, "yref": axis, "y": power_limit,
                            "yanchor": "bottom", "xanchor": "left", "showarrow": False,
                            "text": f"limit {power_limit:.0f} W",
                            "font": {"color": "--text3"}})  # fmt: skip
    return {"shapes": shapes, "annotations": annotations}


def _domain(top: float, bottom: float, plot: float) -> list[float]:
    return [max(0.0, 1 - bottom / plot), 1 - top / plot]


def _units() -> dict[str, list[str]]:
    """Axis and unit of each metric, for the browser."""
    return {metric: [f"yaxis{position}", scale_of(metric)[1]]
            for position, metric in enumerate(METRICS, start=2)}  # fmt: skip


def _strip_traces(points: Points) -> list[dict[str, Any]]:
    """The strip in the ramp's colours, and over it what was idle."""
    rows = list(range(len(points.labels)))
    common = {"type": "heatmap", "x": points.x, "y": rows, "hoverinfo": "skip", "ygap": 2,
              "showscale": False, "zmin": 0, "yaxis": "y"}  # fmt: skip
    return [
        {**common, "name": "strip", "z": points.strip, "colorscale": RAMP, "zmax": 100},
        {**common, "name": "idle", "z": points.idle, "zmax": 1,
         "colorscale": [[0, "--idle"], [1, "--idle"]]},
    ]  # fmt: skip


def _metric_traces(points: Points) -> list[dict[str, Any]]:
    """For each metric its band, of which the browser makes polygons, and the mean line."""
    traces: list[dict[str, Any]] = []
    for position, (metric, row) in enumerate(points.rows.items(), start=2):
        axis = {"type": "scatter", "mode": "lines", "yaxis": f"y{position}"}
        traces.append({**axis, "name": f"band {metric}", "x": [], "y": [], "hoverinfo": "skip",
                       "fill": "toself", "fillcolor": "--band", "line": {"width": 0},
                       "meta": {"low": row.low, "high": row.high}})  # fmt: skip
        traces.append({**axis, "name": metric, "x": points.x, "y": row.mean,
                       "customdata": row.text, "line": {"color": "--accent", "width": 1.5},
                       "connectgaps": False,
                       "hovertemplate": f"{BY_NAME[metric].label} <b>%{{customdata}}</b>"
                                        "<extra></extra>"})  # fmt: skip
    return traces


def _gap_shape(gap: SeriesGap) -> dict[str, Any]:
    return {"type": "rect", "xref": "x", "x0": axis_time(gap.start), "x1": axis_time(gap.end),
            "yref": "paper", "y0": 0, "y1": 1, "layer": "below", "line": {"width": 0},
            "fillcolor": "--sunken"}  # fmt: skip


def _gap_label(gap: SeriesGap) -> dict[str, Any]:
    middle = (axis_time(gap.start) + axis_time(gap.end)) // 2
    return {"xref": "x", "x": middle, "yref": "y domain", "y": 0.5, "textangle": -90,
            "showarrow": False, "text": f"no data {age(gap.end - gap.start)}",
            "font": {"color": "--text2"}}  # fmt: skip
