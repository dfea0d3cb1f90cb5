"""The overview: a sentence, six tiles, the states over time, and who needs attention."""

from collections.abc import Sequence
from typing import Any

from dash import dcc, html
from dash.development.base_component import Component

from flopwatch_dashboard.address import Place, job_path
from flopwatch_dashboard.components import (
    Column,
    Tile,
    card,
    glyph,
    mix_bar,
    or_dash,
    table,
    tiles,
)
from flopwatch_dashboard.components.chart import chart
from flopwatch_dashboard.format import (
    DASH,
    age,
    count,
    gpu_hours,
    kilowatts,
    percent,
    plural,
)
from flopwatch_dashboard.freshness import freshness
from flopwatch_dashboard.pages import Shown
from flopwatch_dashboard.pages.overview import figures, first_run, words
from flopwatch_dashboard.pages.overview.data import (
    DEFAULT_WINDOW,
    WINDOWS,
    OverviewData,
    read,
    window_of,
)
from flopwatch_dashboard.services import call
from flopwatch_dashboard.words import NOT_TOLD
from flopwatch_server.efficiency.schemas import AccountHours, JobRow, Overview, PartitionNow

_LABELS = {"6h": "6 h", "24h": "24 h", "7d": "7 d"}
_WARM_GPU_HOURS = 10.0
_WARM_IDLE_SHARE = 0.10
MFU_LABEL = "MFU while training"


async def show(place: Place) -> Shown:
    """The whole page for an address."""
    if place.cluster is None:
        return await first_run.show(None, "no cluster")
    data = await call(read, place.cluster.name, window_of(place))
    if data.overview.newest_sample_at is None:
        return await first_run.show(data, cursor(data))
    found = data.overview
    content = html.Div(
        [
            html.Div(
                html.Div([html.H1("Overview", tabIndex="-1"),
                          html.P(words.lead(found), id="overview-lead", className="lead")]),
                className="page-head",
            ),
            html.Div(banners(data), id="overview-banners"),
            html.Div(tile_strip(found), id="overview-tiles"),
            html.Div([_states_card(data), html.Div(accounts_card(data), id="overview-accounts")],
                     className="columns stretch"),
            html.Div([html.Div(attention_card(data), id="overview-attention"),
                      html.Div(side(data), id="overview-side", className="stack")],
                     className="columns"),
            dcc.Store(id="overview-cursor", data=cursor(data)),
        ]
    )  # fmt: skip
    return Shown(
        content,
        freshness(found.newest_sample_at, data.now),
        tuple((name, _LABELS[name]) for name in WINDOWS),
        DEFAULT_WINDOW,
    )


def cursor(data: OverviewData) -> str:
    """What the browser shows: while it stays the same, only the moving parts are sent."""
    kind = "first run" if data.overview.newest_sample_at is None else "measured"
    return f"{kind} {data.overview.cluster}"


def moving_parts(data: OverviewData) -> dict[str, dict[str, Any]]:
    """Properties of the parts that change, by their id."""
    found = data.overview
    children = {
        "overview-lead": words.lead(found),
        "overview-banners": banners(data),
        "overview-tiles": tile_strip(found),
        "overview-window": window_note(data),
        "overview-labels": state_labels(found),
        "overview-accounts": accounts_card(data),
        "overview-attention": attention_card(data),
        "overview-side": side(data),
    }
    message = figures.states_message(found, data.window)
    return {name: {"children": value} for name, value in children.items()} | {
        "overview-states-live": {"data": message}
    }


def banners(data: OverviewData) -> list[Component]:
    """What makes the page less than whole: sources that don't answer, nodes that are silent."""
    problems = [words.source_problem(source, data.now) for source in data.overview.sources]
    silent = len(data.overview.agents_silent)
    if silent:
        all_nodes = silent + data.overview.agents_reporting
        problems.append(
            f"{silent} of {plural(all_nodes, 'node')} {'is' if silent == 1 else 'are'} silent; "
            f"{'its' if silent == 1 else 'their'} GPUs show no data."
        )
    return [html.Div(problem, className="banner") for problem in problems if problem]


def tile_strip(found: Overview) -> Component:
    """The six figures of the cluster, with their course over the window."""
    if found.allocated is None:
        return tiles([*_untold_tiles(), _power_tile(found)])
    return tiles([*job_tiles(found, found.allocated), _power_tile(found)])


def _untold_tiles() -> list[Tile]:
    labels = ("Allocated", "Active", "Idle-allocated", "Tensor active", MFU_LABEL)
    return [Tile(label, DASH, "no scheduler yet") for label in labels]


def job_tiles(found: Overview, allocated: int) -> list[Tile]:
    """The tiles about what jobs do with the GPUs that are `allocated`."""
    now = found.gpus_now
    jobs = words.idle_jobs(found)
    return [
        Tile("Allocated", count(allocated), unit=f"of {count(found.gpus)} GPUs",
             note=f"{_share(allocated, found.gpus)}, {plural(found.pending_jobs, 'job')} queued",
             history=_course(found, "active", "low", "idle")),
        Tile("Active", count(now.active), unit="GPUs", state="active",
             note=f"{_share(now.active, allocated)} of allocated",
             history=_course(found, "active")),
        Tile("Idle-allocated", count(now.idle), unit="GPUs", state="idle",
             note=f"{_share(now.idle, allocated)} of allocated"
                  + (f", {plural(jobs, 'job')}" if jobs else ""),
             history=_course(found, "idle"), tone="idle"),
        Tile("Tensor active", percent(found.tensor_active),
             note="mean of allocated GPUs" if found.tensor_active is not None else "no counters",
             history=found.history_tensor),
        Tile(MFU_LABEL, percent(found.mfu), note=_who_reports(found)),
    ]  # fmt: skip


def _power_tile(found: Overview) -> Tile:
    limit = found.power_limit_watts
    note = f"of {kilowatts(limit)} GPU limit" if limit else "limit unknown"
    return Tile("Power", kilowatts(found.power_watts), note, history=found.history_power_watts)


def _who_reports(found: Overview) -> str:
    """Over which jobs the service takes the plain mean."""
    running = plural(found.running_jobs, "job")
    if not found.reporting_jobs:
        return "no job reports"
    return f"mean of {count(found.reporting_jobs)} of {running}"


def _course(found: Overview, *states: str) -> list[float | None]:
    """GPUs in any of the states over the window; None while nobody watched."""
    return [
        sum(getattr(point, state) for state in states) if point.watched else None
        for point in found.history
    ]


def _share(part: float, whole: float) -> str:
    return percent(part / whole) if whole else DASH


def _states_card(data: OverviewData) -> Component:
    figure = figures.states_figure(data.overview, data.window)
    return card(
        "GPUs by state",
        html.Div(
            [
                chart("overview-states", figure, "GPUs by state over time, stacked"),
                html.Div(state_labels(data.overview), id="overview-labels",
                         className="state-labels"),
            ],
            className="state-chart",
        ),
        note=html.Span(window_note(data), id="overview-window"),
    )  # fmt: skip


def window_note(data: OverviewData) -> str:
    """What the chart shows."""
    return f"last {_LABELS[data.window]}, 10 min means"


def state_labels(found: Overview) -> list[Component]:
    """What each band is and how many GPUs it has now, at its right edge."""
    now = found.gpus_now
    rest = now.shared + now.unknown
    if found.free is None:  # nobody has told who holds the others
        rest = found.gpus - found.down - now.active - now.low - now.idle
    labelled = (
        (now.idle, "Idle"),
        (now.low, "Low"),
        (now.active, "Active"),
        (rest, "Shared, no data" if now.shared else "No data"),
        (found.free or 0, "Free"),
        (found.down, "Down"),
    )
    positions = figures.label_positions([amount for amount, _ in labelled], figures.top(found))
    return [
        html.Span([html.B(count(amount)), word], style={"top": f"{position:.0f}px"})
        for (amount, word), position in zip(labelled, positions, strict=True)
        if amount
    ]


def accounts_card(data: OverviewData) -> Component:
    """GPU-hours by account over the window."""
    accounts = data.overview.accounts
    whole = max((account.allocated for account in accounts), default=0.0)

    def bar(row: AccountHours) -> Component:
        known = {"active": row.active, "low": row.low, "idle": row.idle}
        return mix_bar(known | {"unknown": row.allocated - sum(known.values())}, whole)

    def idle_share(row: AccountHours) -> Component | str:
        share = row.idle / row.allocated if row.allocated else None
        if share is not None and share >= _WARM_IDLE_SHARE:
            return html.Span(percent(share), className="warm")
        return percent(share)

    columns: Sequence[Column[AccountHours]] = (
        Column("Account", lambda row: row.account or "none", "strong"),
        Column("By state", bar, "bar"),
        Column("GPU-h", lambda row: gpu_hours(row.allocated), "number"),
        Column("Idle", idle_share, "number"),
    )
    return card(
        "GPU-h by account",
        table(columns, accounts, "GPU-hours by account")
        if accounts
        else html.P("No job held a GPU.", className="card-body"),
        note=f"last {_LABELS[data.window]}",
        aside=html.Span(
            [html.Span([glyph(state), state]) for state in ("active", "low", "idle", "unknown")],
            className="legend",
        ),
        name="accounts",
    )


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


def side(data: OverviewData) -> list[Component]:
    """Partitions, agents and definitions."""
    return [_partitions_card(data.overview), _agents_card(data), _definitions_card()]


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


def _definitions_card() -> Component:
    return card(
        "Definitions",
        html.Div(
            html.P(
                "Idle: SM activity under 1 % and utilisation 0 for the whole minute. Low: SM under "
                "15 %. Unknown minutes are never counted as idle."
            ),
            className="card-body",
        ),
    )
