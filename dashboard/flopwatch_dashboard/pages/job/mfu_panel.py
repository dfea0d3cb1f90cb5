"""The panel of Model FLOPs Utilization: the equation and its course, or how to report it."""

from collections.abc import Sequence
from typing import Any

from dash import html
from dash.development.base_component import Component

from flopwatch_dashboard.components import card, code
from flopwatch_dashboard.components.chart import Figure, chart
from flopwatch_dashboard.format import (
    DASH,
    age,
    axis_time,
    count,
    percent,
    percent_fine,
    plural,
    teraflops,
)
from flopwatch_dashboard.live.reading import Whole
from flopwatch_dashboard.pages.job.data import JobData
from flopwatch_dashboard.theme import CHART_FONT, HOVER_LABEL, TICK_FORMATS
from flopwatch_server.efficiency.schemas import Mfu, MfuPoint

HEIGHT = 180
MINUTE_SECONDS = 60
_TOPS = (1.0, 2.0, 5.0, 10.0, 20.0, 40.0, 60.0, 80.0, 100.0)
_CODE = "import flopwatch\nflopwatch.watch(model)   # after the model is built"
_PROMISES = (
    "Works with PyTorch, Transformers and Lightning",
    "Never stops or slows the run; sends a few bytes a step",
    "The node's agent picks it up; no address or token to set",
)


def mfu_card(data: JobData) -> Component:
    """The card. Its moving parts have ids of their own."""
    if data.mfu is None:
        return _not_reported(data)
    mfu = data.mfu
    return card(
        "Model FLOPs utilization",
        html.Div(equation(mfu), id="job-equation"),
        *(
            [chart("job-mfu", mfu_figure(data), "MFU while training, minute by minute", data.now)]
            if mfu.train_mfu is not None and data.series is not None
            else []
        ),
        html.Div(steps_line(mfu, data.run.gpus), id="job-steps", className="mfu-steps"),
        aside=_peak(mfu),
        name="mfu",
    )


def equation(mfu: Mfu) -> Component | list[Component]:
    """train MFU x share of time = job MFU; or in words why it is unknown."""
    if mfu.train_mfu is None:
        return html.P(f"MFU is unknown: {mfu.reason}.", className="card-body")
    parts = [
        _term(percent_fine(mfu.train_mfu), "MFU while training", "train-mfu"),
        html.Span("×", className="sign"),
        _term(percent(mfu.train_share), "of the GPU time trains", "train-share"),
        html.Span("=", className="sign"),
        _term(percent_fine(mfu.job_mfu), "MFU of the job", "job-mfu", "result"),
    ]
    notes = [html.P(note, className="card-body") for note in (mfu.note, mfu.reason) if note]
    return [html.Dl(parts, className="equation"), *notes]


def _term(figure: str, label: str, test_id: str, name: str = "") -> Component:
    value = html.Dd(figure, **{"data-testid": test_id})
    return html.Div([html.Dt(label), value], className=name)


def _peak(mfu: Mfu) -> str:
    if mfu.peak_flops is None:
        return "peak unknown"
    return f"peak {teraflops(mfu.peak_flops)}, {mfu.dtype} dense"


def steps_line(mfu: Mfu, gpus: int | None) -> list[Component | str]:
    """What the training processes on the job's `gpus` tell beside their FLOPs."""
    ranks = count(mfu.ranks)
    if gpus is not None and mfu.ranks < gpus:
        ranks = f"{ranks} of {plural(gpus, 'GPU')} report"
    facts = [
        ("Ranks", ranks),
        ("Steps", count(mfu.steps)),
        ("Step", DASH if mfu.step_seconds is None else _seconds(mfu.step_seconds)),
        ("Achieved", f"{teraflops(mfu.flops_per_second)} a GPU"),
    ]
    return [html.Span([f"{name} ", html.B(value)]) for name, value in facts]


def _seconds(value: float) -> str:
    return age(value) if value >= 60 else f"{value:.{2 if value >= 1 else 3}f} s"


def _not_reported(data: JobData) -> Component:
    tensor = data.efficiency.means.get("tensor_active")
    meanwhile: list[Component] = []
    if tensor is not None:
        meanwhile = [
            html.H2("What the counters say meanwhile"),
            html.P(f"Tensor active {percent(tensor)} on average. That is an upper estimate from "
                   "counters, not MFU: padding and recomputation count too."),
        ]  # fmt: skip
    body = [
        html.P("This job does not report its FLOPs, so MFU is unknown. Two lines in the training "
               "script are enough; nothing else changes."),
        code(_CODE),
        html.Ul([html.Li(promise) for promise in _PROMISES], className="promises"),
        *meanwhile,
    ]  # fmt: skip
    return card("MFU", html.Div(body, className="card-body mfu-missing"), note="not reported")


def mfu_figure(data: JobData) -> Figure:
    """Train MFU by minute on the time axis of the instrument."""
    assert data.series is not None
    x, y = minute_line(data.mfu_points)
    return {
        "data": [
            {"type": "scatter", "mode": "lines", "name": "MFU", "x": x, "y": y,
             "line": {"color": "--accent", "width": 1.5}, "connectgaps": False,
             "hovertemplate": "MFU <b>%{y:.1f} %</b><extra></extra>"}
        ],
        "layout": {
            "height": HEIGHT, "margin": {"l": 16, "r": 52, "t": 8, "b": 28},
            "paper_bgcolor": "rgba(0,0,0,0)", "plot_bgcolor": "rgba(0,0,0,0)",
            "font": CHART_FONT, "showlegend": False, "hovermode": "x unified",
            "hoverlabel": HOVER_LABEL, "dragmode": "zoom",
            "xaxis": {"type": "date", "range": _range(data), "showgrid": False, "zeroline": False,
                      "linecolor": "--line2", "ticks": "outside", "tickcolor": "--line2",
                      "ticklen": 4, "nticks": 6, "tickangle": 0, "tickformatstops": TICK_FORMATS,
                      "hoverformat": "%d %b %H:%M"},
            "yaxis": {"side": "right", "fixedrange": True, "zeroline": False,
                      "gridcolor": "--grid", "ticklabeloverflow": "allow",
                      **_scale(mfu_top(data.mfu_points))},
        },
    }  # fmt: skip


def mfu_points(data: JobData) -> Whole:
    """The same points for a figure that is on the screen already."""
    x, y = minute_line(data.mfu_points)
    scale = _scale(mfu_top(data.mfu_points))
    return Whole([{"x": x, "y": y}], _range(data), data.window, scale)


def minute_line(points: Sequence[MfuPoint]) -> tuple[list[int], list[float | None]]:
    """The line in percent, broken wherever a minute without a report lies between two points."""
    x: list[int] = []
    y: list[float | None] = []
    previous: int | None = None
    for point in points:
        if previous is not None and point.time - previous > MINUTE_SECONDS:
            x.append(axis_time(previous + MINUTE_SECONDS // 2))
            y.append(None)
        x.append(axis_time(point.time - MINUTE_SECONDS // 2))
        y.append(None if point.train_mfu is None else round(100 * point.train_mfu, 2))
        previous = point.time
    return x, y


def mfu_top(points: Sequence[MfuPoint]) -> float:
    """The lowest of the usual scale ends that holds all points, in percent."""
    highest = max((100 * p.train_mfu for p in points if p.train_mfu is not None), default=0.0)
    return next((top for top in _TOPS if highest <= top), _TOPS[-1])


def _scale(top: float) -> dict[str, Any]:
    return {
        "range": [0, top],
        "tickvals": [top / 2, top],
        "ticktext": [f"{top / 2:g}", f"{top:g} %"],
    }


def _range(data: JobData) -> list[Any]:
    assert data.series is not None
    return [axis_time(data.series.start), axis_time(data.series.end)]
