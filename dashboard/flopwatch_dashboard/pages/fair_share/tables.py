"""Accounts and users with their shares and usage."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TypeVar

from dash import html
from dash.development.base_component import Component

from flopwatch_dashboard.address import Place
from flopwatch_dashboard.components import Column, card, table
from flopwatch_dashboard.format import count
from flopwatch_dashboard.pages.fair_share import words
from flopwatch_dashboard.pages.fair_share.data import (
    Chosen,
    FairShareData,
    Line,
    chosen_of,
    path,
)
from flopwatch_dashboard.pages.fair_share.waiting import gpus
from flopwatch_server.jobs.schemas import WaitingGroup
from flopwatch_server.people.schemas import AssociationShare

Row = TypeVar("Row")
_ORDER = "furthest over their share first"


def accounts_card(data: FairShareData, place: Place) -> Component:
    """The accounts as a tree; for who sees none, their own associations."""
    if data.accounts:
        return card("Accounts", table(_account_columns(data, place), data.accounts, "Accounts"),
                    note=_ORDER)  # fmt: skip
    users = sorted(data.single_users, key=lambda share: (share.account, share.user or ""))
    if not users:
        nothing = html.P("You have no association on this cluster.", className="card-body")
        return card("Accounts", nothing)
    account = Column[AssociationShare]("Account", lambda row: row.account, "strong")
    columns = [account, *_user_columns(users, data, place)]
    return card("Your associations", table(columns, users, "Associations"))


def members_card(data: FairShareData, place: Place) -> Component:
    """The users of the chosen account."""
    assert data.chosen is not None
    account, users = data.chosen.account, data.members
    if not users:
        body = html.P("It has no users of its own.", className="card-body")
        return card(f"Users of {account}", body)
    return card(f"Users of {account}", table(_user_columns(users, data, place), users, "Users"),
                note=_ORDER)  # fmt: skip


def _account_columns(data: FairShareData, place: Place) -> list[Column[Line]]:
    users, waiting = _subtrees(data)
    top = _top([line.share for line in data.accounts])

    def name(line: Line) -> Component:
        link = _link(chosen_of(line.share), line.share.account, data, place)
        return html.Span(link, className="branch", style={"--depth": str(line.depth)})

    def told(
        of: Callable[[AssociationShare], Component | str],
    ) -> Callable[[Line], Component | str]:
        return lambda line: of(line.share)

    has_factor = any(line.share.fair_share is not None for line in data.accounts)
    return [
        Column("Account", name, "strong"),
        Column("Users", lambda line: count(users[line.share.account]), "number optional"),
        Column("Waiting GPUs", lambda line: gpus(waiting[line.share.account]), "number optional"),
        Column("Shares", told(words.raw_shares), "number optional"),
        Column("Share", told(words.norm_shares), "number"),
        Column("Usage", told(words.usage), "number"),
        Column("", lambda line: _bar(line.share, top), "bar optional"),
        Column("LevelFS", told(words.level), "number"),
        *([Column("Factor", told(words.factor), "number")] if has_factor else []),
    ]


def _user_columns(
    users: Sequence[AssociationShare], data: FairShareData, place: Place
) -> list[Column[AssociationShare]]:
    top = _top(users)

    def name(share: AssociationShare) -> Component:
        text = f"{share.user} ({share.partition})" if share.partition else str(share.user)
        return _link(chosen_of(share), text, data, place)

    return [
        Column("User", name, "strong"),
        Column("Share", words.norm_shares, "number"),
        Column("Usage", words.usage, "number"),
        Column("", lambda share: _bar(share, top), "bar optional"),
        Column("LevelFS", words.level, "number"),
        Column("Factor", words.factor, "number"),
    ]


def _subtrees(data: FairShareData) -> tuple[Counter[str], dict[str, list[WaitingGroup]]]:
    """How many users each account has with those below it, and what waits in them."""
    users = Counter(share.account for share in data.told.shares if share.user is not None)
    waiting: dict[str, list[WaitingGroup]] = {line.share.account: [] for line in data.accounts}
    for group in data.waiting.groups:
        waiting.setdefault(group.account, []).append(group)
    for line in reversed(data.accounts):  # those below come before the account above them
        account, parent = line.share.account, line.share.parent
        if parent is not None and parent in waiting:
            users[parent] += users[account]
            waiting[parent] += waiting[account]
    return users, waiting


def _link(target: Chosen, text: str, data: FairShareData, place: Place) -> Component:
    """A link that chooses, or takes the choice back; the account of a chosen user is marked too."""
    href = path(place, None if target == data.chosen else target)
    if target not in (data.chosen, data.chosen and Chosen(data.chosen.account)):
        return html.A(text, href=href)
    return html.A(text, href=href, className="chosen", **{"aria-current": "true"})


def _top(shares: Sequence[AssociationShare]) -> float:
    """What a whole bar stands for: the largest part of those that compete with others."""
    competing = [share for share in shares if share.norm_shares is not None]
    parts = [part for share in competing for part in (share.norm_shares, share.effective_usage)]
    return max((part for part in parts if part is not None), default=1.0) or 1.0


def _bar(share: AssociationShare, top: float) -> Component | None:
    """Usage as a bar, the share as a mark on it."""
    if share.norm_shares is None or share.effective_usage is None:
        return None
    width, mark = (100 * part / top for part in (share.effective_usage, share.norm_shares))
    return html.Span(
        [html.I(style={"width": f"{width:.1f}%"}), html.B(style={"left": f"{mark:.1f}%"})],
        className="usage-bar",
        **{"aria-hidden": "true"},
    )
