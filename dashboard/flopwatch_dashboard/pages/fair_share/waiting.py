"""What waits: GPUs by the class of the reason, and by account."""

from collections.abc import Sequence

from dash import html
from dash.development.base_component import Component

from flopwatch_dashboard.components import Column, Tile, card, or_dash, table, tiles
from flopwatch_dashboard.format import DASH, count, plural
from flopwatch_dashboard.pages.fair_share.data import FairShareData
from flopwatch_dashboard.pages.fair_share.words import CLASSES
from flopwatch_dashboard.words import NOT_TOLD
from flopwatch_server.jobs.schemas import WaitingGroup


def tile_strip(data: FairShareData) -> Component:
    """GPUs that are asked for: all, and by class."""
    groups = data.waiting.groups
    if data.waiting.told_at is None:
        labels = ("Waiting", *(label for label, _ in CLASSES.values()))
        return tiles([Tile(label, DASH, "no scheduler yet") for label in labels], small=True)
    by_class = [
        _tile(label, [group for group in groups if group.pending_class == name])
        for name, (label, _) in CLASSES.items()
    ]
    return tiles([_tile("Waiting", groups), *by_class], small=True)


def demand_card(data: FairShareData) -> Component:
    """The same by class and account, the largest demand first."""
    groups = sorted(data.waiting.groups, key=lambda group: (-group.gpus, group.account))
    note = "all jobs" if data.sees_all else "of the jobs that you may see"
    if not groups:
        told = data.waiting.told_at is not None
        body = html.P("No job waits." if told else NOT_TOLD, className="card-body")
        return card("Waiting GPUs", body)
    columns: Sequence[Column[WaitingGroup]] = (
        Column("Account", lambda group: group.account or "none", "strong"),
        Column("Waits for", _reason),
        Column("GPUs", lambda group: gpus([group]), "number"),
        Column("Jobs", _jobs, "number"),
    )
    return card("Waiting GPUs", table(columns, groups, "Waiting by account and reason"), note=note)


def gpus(groups: Sequence[WaitingGroup]) -> Component | str:
    """How many GPUs they ask for, as far as that is known; a dash where it is of none of them."""
    return or_dash(_gpus(groups), "Nobody told how many GPUs they ask for.")


def _gpus(groups: Sequence[WaitingGroup]) -> str:
    known = any(group.runs > group.unknown_runs for group in groups)
    return count(sum(group.gpus for group in groups)) if known or not groups else DASH


def _tile(label: str, groups: Sequence[WaitingGroup]) -> Tile:
    return Tile(label, _gpus(groups), unit="GPUs", note=_note(groups))


def _note(groups: Sequence[WaitingGroup]) -> str:
    """ "3 jobs, 1 of unknown size"; else with the tasks of arrays: "3 jobs, 42 tasks"."""
    runs, tasks, unknown = (
        sum(getattr(group, name) for group in groups) for name in ("runs", "tasks", "unknown_runs")
    )
    note = plural(runs, "job") if runs else "no job"
    if unknown:
        return f"{note}, {count(unknown)} of unknown size"
    return f"{note}, {plural(tasks, 'task')}" if tasks > runs else note


def _reason(group: WaitingGroup) -> Component:
    label, meaning = CLASSES[group.pending_class]
    return html.Span(label, tabIndex="0", **{"data-tip": meaning})


def _jobs(group: WaitingGroup) -> Component:
    return html.Span(count(group.runs), title=_note([group]))
