"""The sentences of the overview, from its figures alone."""

from dash import html
from dash.development.base_component import Component

from flopwatch_dashboard.format import count, percent, plural
from flopwatch_dashboard.words import NOT_TOLD, gpus_in_words
from flopwatch_server.efficiency.schemas import JobRow, Overview

_NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_ALWAYS_SAID = ("do work", "run low")
ATTENTION_ROWS = 10
"""The service tells no more jobs than this that need attention."""


def number_word(number: int) -> str:
    """ "six"; figures from eleven on."""
    return _NUMBERS[number] if number < len(_NUMBERS) else count(number)


def lead(found: Overview) -> list[str | Component]:
    """One sentence on what is allocated and what it does."""
    now = found.gpus_now
    if found.allocated is None:
        verb = "reports" if found.gpus == 1 else "report"
        return [f"{NOT_TOLD[:-1]}; {plural(found.gpus, 'GPU')} {verb}."]
    if not found.allocated:
        whole = "The only GPU is not" if found.gpus == 1 else f"None of {count(found.gpus)} GPUs is"
        return [f"{whole} allocated."]
    doing = (
        (now.active, "does work", "do work"),
        (now.low, "runs low", "run low"),
        (now.shared, "is shared", "are shared"),
        (now.unknown, "shows no data", "show no data"),
    )
    said = [
        f"{count(number)} {one if number == 1 else many}, "
        for number, one, many in doing
        if number or many in _ALWAYS_SAID
    ]
    verb = "is" if found.allocated == 1 else "are"
    parts: list[str | Component] = [
        f"{gpus_in_words(found.allocated, found.gpus)} {verb} allocated. " + "".join(said)
    ]
    if not now.idle:
        return [*parts, "none is idle."]
    parts.append(html.Em(f"{count(now.idle)} {'is' if now.idle == 1 else 'are'} idle"))
    holders = idle_jobs(found)
    if holders is None:
        return [*parts, "."]
    return [*parts, f"; {number_word(holders)} job{' holds' if holders == 1 else 's hold'} "
                    f"the idle {'one' if now.idle == 1 else 'ones'}."]  # fmt: skip


def idle_jobs(found: Overview) -> int | None:
    """Jobs with an idle GPU now; None when there may be more than the service tells."""
    holders = sum(1 for row in found.attention if row.gpus_now.idle)
    return None if holders == 0 or holders >= ATTENTION_ROWS else holders


def what(row: JobRow) -> str:
    """What about a job calls for attention: "12 of 32 GPUs idle"."""
    now = row.gpus_now
    held = now.active + now.low + now.idle + now.shared + now.unknown
    for state, number in (("idle", now.idle), ("low", now.low)):
        if number:
            sm = f", SM {percent(row.sm_active)}" if state == "low" else ""
            return f"{gpus_in_words(number, held)} {state}{sm}"
    if now.unknown:
        return f"{gpus_in_words(now.unknown, held)} without data"
    return f"tensor {percent(row.tensor_active)}, SM {percent(row.sm_active)}"
