"""The sentences of the fair-share page."""

import math
from datetime import datetime

from dash import html
from dash.development.base_component import Component

from flopwatch_dashboard.components import clock, or_dash
from flopwatch_dashboard.format import DASH, count, percent, plural
from flopwatch_dashboard.pages.fair_share.data import Chosen, FairShareData
from flopwatch_server.jobs.pending import PendingClass
from flopwatch_server.people.schemas import AssociationShare

NOTHING_USED = "nothing used yet"
CLASSES: dict[PendingClass, tuple[str, str]] = {
    "resources": ("Resources", "It would start if more GPUs were free, or up."),
    "priority": ("Priority", "Jobs of higher priority come first."),
    "limit": ("Limits", "A limit of the account, the QOS, the partition or the array is reached: "
                        "free GPUs don't help."),
    "dependency": ("Dependency", "It waits for another job."),
    "other": ("Other", "Held, not due yet, impossible, not looked at yet, or for a reason that is "
                       "not one of Slurm's."),
}  # fmt: skip
"""What each class of waiting is called, and what it means."""


def lead(data: FairShareData) -> str:
    """Who is furthest over their share, and what waits."""
    return f"{_shares_sentence(data)} {_waiting_sentence(data)}"


def _shares_sentence(data: FairShareData) -> str:
    if data.told.told_at is None:
        return "No fair share is known."
    levels = {line.share.account: line.share.level_fs for line in data.accounts}
    known = {account: level for account, level in levels.items() if level is not None}
    if not known:
        own = next((share for share in data.single_users if share.level_fs is not None), None)
        return _own_sentence(own) if own else "No association has a share of its own."
    over = {account: level for account, level in known.items() if level < 1}
    if not over:
        return "No account has used more than its share."
    worst = min(over, key=over.__getitem__)
    much = f"{_times(over[worst])} as much" if over[worst] else "without having any"
    whose = "has used more than its" if len(over) == 1 else "have used more than their"
    most = " most" if len(over) > 1 else ""
    return (
        f"{count(len(over))} of {plural(len(known), 'account')} {whose} share; "
        f"{worst}{most}, {much}."
    )


def _own_sentence(share: AssociationShare) -> str:
    level = share.level_fs or 0.0
    if math.isinf(level):
        return f"{share.user} has used nothing yet in {share.account}."
    if not level:
        return f"{share.user} has no share in {share.account} and has used some."
    return f"{share.user} has used {_times(level)} their share in {share.account}."


def _times(level_fs: float) -> str:
    """How much was used of a share, "1.2 times": the inverse of its level."""
    times = 1 / level_fs
    return f"{times:,.{0 if times >= 9.95 else 2 if times < 1.05 else 1}f} times"


def _waiting_sentence(data: FairShareData) -> str:
    if data.waiting.told_at is None:
        return "No scheduler has told of jobs."
    jobs = sum(group.runs for group in data.waiting.groups)
    if not jobs:
        return "No job waits."
    gpus = sum(group.gpus for group in data.waiting.groups)
    unknown = sum(group.unknown_runs for group in data.waiting.groups)
    waiting = f"{plural(jobs, 'job')} {'waits' if jobs == 1 else 'wait'}"
    if unknown == jobs:
        return f"{waiting}; how many GPUs they ask for is unknown."
    return f"{waiting} for {'at least ' if unknown else ''}{plural(gpus, 'GPU')}."


def stale(data: FairShareData) -> list[str | Component] | None:
    """Why the figures are old; None if they are not."""
    told = data.told
    if told.error is None or told.told_at is None:
        return None
    since: list[str | Component] = [" since ", clock(told.error_since)] if told.error_since else []
    return ["Fair share has not been told", *since, f": {told.error}. Shown is what was told at ",
            clock(told.told_at), "."]  # fmt: skip


def why_unknown(data: FairShareData) -> list[Component]:
    """Why no fair share is known, and what it takes."""
    told = data.told
    reason = (
        [html.P(["Slurm was asked and has not told it", _since(told.error_since),
                 html.Code(told.error)])]
        if told.error
        else [html.P("No scheduler has told of it yet.")]
    )  # fmt: skip
    return [
        *reason,
        html.P([
            "Slurm tells it where ", html.Code("sshare"), " and ", html.Code("sacctmgr"),
            " work on the server's host. That takes slurmdbd (",
            html.Code("AccountingStorageType=accounting_storage/slurmdbd"), ") and ",
            html.Code("PriorityType=priority/multifactor"), " in slurm.conf. It is asked every "
            "5 min; by slurmrestd it is not read.",
        ]),
        html.P(["Any other scheduler tells it by ", html.Code("share"), " lines of the feed."]),
    ]  # fmt: skip


def _since(moment: datetime | None) -> Component:
    return html.Span([" since ", clock(moment), ": "] if moment else ": ")


def title(chosen: Chosen) -> str:
    """ "alice in vision, partition debug"."""
    name = f"{chosen.user} in {chosen.account}" if chosen.user else chosen.account
    return f"{name}, partition {chosen.partition}" if chosen.partition else name


def raw_shares(share: AssociationShare) -> Component | str:
    """The shares that it was given."""
    return or_dash(count(share.raw_shares), _why_no_shares(share))


def norm_shares(share: AssociationShare) -> Component | str:
    """Its part of the shares on its level."""
    return or_dash(percent(share.norm_shares), _why_no_shares(share))


def usage(share: AssociationShare) -> Component | str:
    """Its part of what was used on its level."""
    return or_dash(percent(share.effective_usage), _why_nothing(share))


def level(share: AssociationShare) -> Component | str:
    """Its share over its usage."""
    if share.level_fs is not None and math.isinf(share.level_fs):
        return html.Span(NOTHING_USED, className="note")
    return or_dash(level_text(share.level_fs), _why_no_shares(share))


def level_text(level_fs: float | None) -> str:
    """ "0.39"; without decimals from 10 on, where they tell nothing."""
    if level_fs is None:
        return DASH
    return f"{level_fs:,.{0 if level_fs >= 9.995 else 2}f}"


def factor(share: AssociationShare) -> Component | str:
    """Its factor in the priority of jobs."""
    text = DASH if share.fair_share is None else f"{share.fair_share:.3f}"
    is_account = share.user is None
    return or_dash(text, "Only users have a factor." if is_account else _why_nothing(share))


def _why_no_shares(share: AssociationShare) -> str:
    if share.user is None and share.parent is None and share.norm_shares is None:
        return "It is the root of the tree: nothing competes with it."
    if share.raw_shares is None:
        return "It has no shares of its own: it counts with those of its parent."
    return _why_nothing(share)


def _why_nothing(share: AssociationShare) -> str:
    return "The scheduler does not tell it." if share.changed_at else "Not told yet."
