"""GPU-hours by account over the window."""

from collections.abc import Sequence

from dash import html
from dash.development.base_component import Component

from flopwatch_dashboard.components import Column, card, glyph, mix_bar, table
from flopwatch_dashboard.format import gpu_hours, percent
from flopwatch_dashboard.pages.overview.data import WINDOW_LABELS, OverviewData
from flopwatch_server.efficiency.schemas import AccountHours

_WARM_IDLE_SHARE = 0.10


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
        note=f"last {WINDOW_LABELS[data.window]}",
        aside=html.Span(
            [html.Span([glyph(state), state]) for state in ("active", "low", "idle", "unknown")],
            className="legend",
        ),
        name="accounts",
    )
