"""The jobs that need attention: those that lose most, worst first."""

from collections.abc import Sequence

from dash import html
from dash.development.base_component import Component

from flopwatch_dashboard.address import job_path
from flopwatch_dashboard.components import Column, card, glyph, table
from flopwatch_dashboard.format import DASH, age, count, gpu_hours
from flopwatch_dashboard.pages.overview import words
from flopwatch_dashboard.pages.overview.data import OverviewData
from flopwatch_dashboard.words import NOT_TOLD
from flopwatch_server.efficiency.schemas import JobRow, Overview

_WARM_GPU_HOURS = 10.0


def attention_card(data: OverviewData) -> Component:
    """The jobs that lose most, worst first."""
    rows = data.overview.attention

    def held_for(row: JobRow) -> str:
        return age((data.now - row.idle_since).total_seconds()) if row.idle_since else DASH

    def lost(row: JobRow) -> Component | str:
        text = gpu_hours(row.idle_gpu_hours)
        warm = (row.idle_gpu_hours or 0) >= _WARM_GPU_HOURS
        return html.Span(text, className="warm") if warm else text

    columns: Sequence[Column[JobRow]] = (
        Column("", lambda row: glyph(row.state_now)),
        Column("Job", _job_link),
        Column("User", lambda row: row.user, "optional"),
        Column("GPUs", lambda row: count(row.gpus), "number"),
        Column("What", words.what, "wide optional"),
        Column("Idle for", held_for, "number optional"),
        Column("Idle GPU-h", lost, "number"),
    )
    return card(
        "Needs attention",
        table(columns, rows, "Jobs that need attention")
        if rows
        else html.P(_no_attention(data.overview), className="card-body"),
        note="sorted by GPU-h lost" if rows else None,
        aside=html.A("All jobs", href="/jobs", **{"data-keep": "cluster"}),
    )


def _no_attention(found: Overview) -> str:
    if found.allocated is None:
        return NOT_TOLD
    return "No running job holds GPUs without using them."


def _job_link(row: JobRow) -> Component:
    return html.Span(
        [
            html.A(html.B(row.name), href=job_path(row.cluster, row.job_id),
                   style={"color": "var(--text)"}),
            " ",
            html.Span(row.job_id, className="mono note"),
        ]
    )  # fmt: skip
