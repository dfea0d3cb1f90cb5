"""The job page: whose it is, the verdict, tiles, the instrument, MFU, the GPUs, data quality."""

from datetime import datetime

from dash import html
from dash.development.base_component import Component

from flopwatch_dashboard.address import Place
from flopwatch_dashboard.components import (
    card,
    clock,
    facts,
    full_time,
    icon,
    state_bar,
    state_word,
)
from flopwatch_dashboard.components.chart import chart
from flopwatch_dashboard.format import (
    DASH,
    age,
    count,
    gpu_hours,
    model_name,
    percent,
    plural,
    slurm_elapsed,
)
from flopwatch_dashboard.freshness import freshness
from flopwatch_dashboard.pages import Shown
from flopwatch_dashboard.pages.job import figures, gpus, mfu_panel, tiles
from flopwatch_dashboard.pages.job.data import WHOLE, WINDOWS, JobData, read, settled_of, shape_of
from flopwatch_dashboard.pages.job.gutter import gutter
from flopwatch_dashboard.pages.job.quality import quality_card
from flopwatch_dashboard.pages.job.verdict import gap_text, verdict
from flopwatch_dashboard.services import call
from flopwatch_server.efficiency.schemas import RunSeries
from flopwatch_server.jobs.schemas import RunView

_SHOWN_GAPS = 5


async def show(place: Place) -> Shown:
    """The whole page for an address. Raises NotFound."""
    data = await call(read, place)
    content = [
        html.Div(
            [_head(data), _copy_link()],
            className="page-head",
        ),
        html.Section(verdict_card(data), id="job-verdict", className="card verdict"),
    ]
    if data.run.started_at is None:
        body = html.Div(facts(_queue_facts(data.run, data.now)), className="card-body")
        content.append(card("Queue", body, name="queue"))
    elif data.has_samples:
        content += _measured(data)
    else:
        content += _unmeasured(data)
    ranges = (
        tuple((name, label) for name, (label, _) in WINDOWS.items()) if data.has_samples else ()
    )
    if not data.is_live:
        ranges = tuple(item for item in ranges if item[0] != "live")
    return Shown(
        html.Div(content),
        freshness(data.fresh_at, data.now, live=data.is_live),
        ranges,
        WHOLE,
        shape_of(data),
        settled_of(data),
    )


def _head(data: JobData) -> Component:
    return html.Div(
        [
            html.Div(_title(data), className="job-title"),
            html.Div(head_facts(data.run), id="job-facts", className="job-facts"),
        ],
        id="job-head",
    )


def _measured(data: JobData) -> list[Component]:
    return [
        html.Div(tiles.job_tiles(data), id="job-tiles"),
        _instrument_card(data),
        html.Div(
            [mfu_panel.mfu_card(data), html.Div(quality_card(data), id="job-quality")],
            className="columns even stretch",
        ),
        html.Div(gpus.gpu_card(data), id="job-gpus"),
    ]


def _unmeasured(data: JobData) -> list[Component]:
    """What is known without a sample: a training may report before there is one, or end."""
    mfu = [] if data.mfu is None else [mfu_panel.mfu_card(data)]
    return mfu + ([html.Div(gpus.gpu_card(data), id="job-gpus")] if data.devices else [])


def _title(data: JobData) -> list[Component]:
    """Name and id, which stay as they are under a reader who selects them, and the state."""
    run = data.run
    return [
        html.H1(run.name or f"Job {run.job_id}", tabIndex="-1"),
        html.Span(f"pid {run.job_id}" if run.local else run.job_id, className="mono note"),
        html.Span(state(data), id="job-state"),
    ]


def state(data: JobData) -> Component:
    """What the scheduler says, with the letter of what the GPUs do."""
    run = data.run
    word = run.state.replace("_", " ").capitalize()
    if run.local and run.state == "COMPLETED":
        word = "Ended"  # nobody knows how
    now = "ended" if run.ended_at else _state_now(data) if run.started_at else "pending"
    return state_word(now, word)


def head_facts(run: RunView) -> list[Component]:
    """Whose it is, on what, since when."""
    return [html.Span(part) for part in _head_facts(run)]


def _state_now(data: JobData) -> str:
    now = data.efficiency.gpus_now
    order = ("idle", "low", "active", "shared")
    return next((state for state in order if getattr(now, state)), "unknown")


def _head_facts(run: RunView) -> list[list[str | Component]]:
    account = "" if run.local else f", account {run.account or 'none'}"
    parts: list[list[str | Component]] = [[html.B(run.user), account]]
    if run.gpus:
        model = f" × {model_name(run.gpu_model)}" if run.gpu_model else " GPUs"
        where = f" on {', '.join(run.nodes[:2])}" if run.nodes else ""
        more = f" and {len(run.nodes) - 2} more" if len(run.nodes) > 2 else ""
        parts.append([html.B(f"{count(run.gpus)}{model}"), where + more])
    if run.started_at is not None:
        parts.append(["started ", html.B(clock(run.started_at))])
        limit = f" of {slurm_elapsed(run.time_limit_seconds)}" if run.time_limit_seconds else ""
        parts.append([html.B(slurm_elapsed(run.elapsed_seconds)), limit or " so far"])
    if run.ended_at is not None:
        parts.append(["ended ", html.B(clock(run.ended_at))])
    if not run.local:
        parts.append([f"{run.partition}, QOS {run.qos}" if run.qos else run.partition])
    if run.restarts:
        parts.append([f"restarted {plural(run.restarts, 'time')}"])
    return parts


def _copy_link() -> Component:
    return html.Button(
        [icon("link"), html.Span("Copy link", className="button-text")],
        className="button", type="button",
        **{"data-action": "copy-link", "aria-label": "Copy link"},
    )  # fmt: skip


def verdict_card(data: JobData) -> list[Component]:
    """The sentence, and how the GPU-hours divide."""
    text = verdict(data.run, data.efficiency, data.idle, data.mfu, data.now)
    sentence = html.P(
        text.replace(" %", "\u00a0%"), className="sentence", **{"data-testid": "verdict"}
    )
    states = data.efficiency.state_seconds
    if not states.total:
        return [sentence]
    so_far = "" if data.run.ended_at else " so far"
    bar = html.Div(
        [
            html.Div(
                [
                    html.Span(f"{gpu_hours(states.total / 3600)} GPU-h{so_far}"),
                    html.Span(f"coverage {percent(data.efficiency.coverage)}", className="note"),
                ],
                className="head",
            ),
            *state_bar(states.model_dump()),
        ]
    )
    return [sentence, bar]


def _queue_facts(run: RunView, now: datetime) -> list[tuple[str, Component | str]]:
    waited = age(((run.ended_at or now) - run.submitted_at).total_seconds())
    return [
        ("Submitted", full_time(run.submitted_at)),
        ("Waited" if run.ended_at else "Has waited", f"{waited} in the queue"),
        ("Reason", run.reason or "none told"),
        ("GPUs asked for", count(run.gpus)),
        ("Time limit", slurm_elapsed(run.time_limit_seconds)),
        ("Partition", run.partition),
        ("QOS", run.qos or DASH),
    ]


def _instrument_card(data: JobData) -> Component:
    assert data.series is not None
    figure = figures.instrument(data.series, data.power_limit_watts, data.window, live=data.is_live)
    legend = html.Div(
        [
            html.Span([html.Span(className="swatch fill-idle"), "idle"]),
            html.Span(["0", html.Span(className="ramp"), html.Span("100 %", id="ramp-top")]),
            html.Span([html.Span(className="swatch gap"), "no data"]),
        ],
        className="strip-legend",
    )
    body = html.Div(
        [gutter(data), chart("job-instrument", figure, "Tensor activity of each GPU, and "
                                  "tensor, DRAM, SM and power over time. The table of GPUs below "
                                  "holds the same figures as numbers.", data.now)],
        className="instrument",
    )  # fmt: skip
    return card(
        "GPUs over time", legend, body,
        html.Div(gap_list(data), id="job-gaps", className="event-list"),
        note=html.Span(step_note(data.series), id="job-step"),
        aside=html.Button("Reset zoom", className="button plain", type="button",
                          **{"data-action": "reset-zoom"}),
        name="instrument-card",
    )  # fmt: skip


def step_note(series: RunSeries) -> str:
    """What a point and the band of the instrument are."""
    return f"{age(series.step_seconds)} means; band: lowest and highest GPU"


def gap_list(data: JobData) -> list[Component]:
    """The gaps in words, newest first."""
    gaps = list(reversed(data.series.gaps)) if data.series else []
    lines = [html.Div(gap_text(gap)) for gap in gaps]
    more = len(gaps) - _SHOWN_GAPS
    tail = [html.Div(f"and {plural(more, 'older gap')}")] if more > 0 else []
    return [*lines[:_SHOWN_GAPS], *tail]
