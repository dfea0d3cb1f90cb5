"""The side of the overview: partitions, agents, and what the words mean."""

from collections.abc import Sequence

from dash import html
from dash.development.base_component import Component

from flopwatch_dashboard.components import Column, card, glyph, or_dash, table
from flopwatch_dashboard.format import age, count, percent
from flopwatch_dashboard.pages.overview.data import OverviewData
from flopwatch_server.efficiency.schemas import Overview, PartitionNow


def side(data: OverviewData) -> list[Component]:
    """Partitions, agents and definitions."""
    return [_partitions_card(data.overview), _agents_card(data), _definitions_card(data)]


def _partitions_card(found: Overview) -> Component:
    no_nodes = "no scheduler tells which nodes a partition has"
    columns: Sequence[Column[PartitionNow]] = (
        Column("Partition", lambda row: row.partition, "strong"),
        Column("GPUs", lambda row: or_dash(count(row.gpus), no_nodes), "number optional"),
        Column("Allocated", lambda row: count(row.allocated), "number"),
        Column("Idle", lambda row: html.Span(count(row.idle), className="warm" if row.idle else ""),
               "number"),
        Column("Free", lambda row: or_dash(count(row.free), no_nodes), "number optional"),
        Column("Queued", lambda row: count(row.queued), "number"),
        Column("Tensor", lambda row: or_dash(percent(row.tensor_active), "no counters"), "number"),
    )  # fmt: skip
    body = table(columns, found.partitions, "Partitions") if found.partitions else html.P(
        "No partition is known: no scheduler has told of jobs or nodes.", className="card-body"
    )  # fmt: skip
    return card("Partitions", body, note="now")


def _agents_card(data: OverviewData) -> Component:
    found = data.overview
    parts: list[Component] = [
        html.Span([glyph("active"), html.B(count(found.agents_reporting)), "reporting"])
    ]
    if found.agents_silent:
        first = found.agents_silent[0]
        more = len(found.agents_silent) - 1
        text = f"silent: {first.node} for {age((data.now - first.since).total_seconds())}"
        text += f" and {more} more" if more else ""
        parts.append(html.Span([glyph("unknown"), html.B(count(more + 1)), text]))
    return card("Agents", html.Div(html.Div(parts, className="legend"), className="card-body"))


def _definitions_card(data: OverviewData) -> Component:
    limits = data.thresholds
    idle, low = (f"{100 * each:g} %" for each in (limits.idle_sm_active, limits.low_sm_active))
    return card(
        "Definitions",
        html.Div(
            html.P(
                f"Idle: SM activity under {idle} and utilization 0 for the whole minute. "
                f"Low: SM under {low}. Unknown minutes are never counted as idle."
            ),
            className="card-body",
        ),
    )
