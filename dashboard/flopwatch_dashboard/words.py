"""Phrases that more than one page says."""

from collections.abc import Sequence
from datetime import datetime

from flopwatch_dashboard.format import age, count
from flopwatch_server.efficiency.schemas import SourceStatus
from flopwatch_server.scheduler.models import ASKED, OUTAGE_AFTER

NOT_TOLD = "No scheduler has told of any job yet."
_AS_TOLD = "Jobs are shown as last told."
_FEED = "feed"
_SOURCES = {
    "slurm": ("Slurm", _AS_TOLD),
    "slurm accounting": ("Slurm's accounting", "How jobs ended is told once it answers again."),
    "slurm reservations": ("Slurm's reservations", "Reservations are as last told."),
    "slurm shares": ("Slurm's fair share", "Shares are shown as last told."),
    "slurm partitions": ("Slurm's partitions", "Their limits are as last told."),
    "slurm qos": ("Slurm's QOS", "Their limits are as last told."),
    _FEED: ("The scheduler feed", _AS_TOLD),
    "feed shares": ("The scheduler feed's fair share", "Shares are shown as last told."),
    "local": ("The machines without a scheduler", _AS_TOLD),
}
"""Who is asked, and what it means that no answer comes."""


def _source(kind: str) -> tuple[str, str]:
    """A kind that a newer server has noted keeps its own name."""
    return _SOURCES.get(kind, (kind, "What it tells is as last told."))


def gpus_in_words(number: int, held: int) -> str:
    """ "All 8 GPUs", "Both GPUs", "The only GPU", "12 of 32 GPUs"."""
    if number < held:
        return f"{count(number)} of {count(held)} GPUs"
    return {1: "The only GPU", 2: "Both GPUs"}.get(held, f"All {count(held)} GPUs")


def source_problem(source: SourceStatus, now: datetime) -> str | None:
    """What is wrong with a scheduler's source; None if it answers."""
    if source.error is None:
        return None
    name, meaning = _source(source.kind)
    since = source.error_since
    long = f" for {age((now - since).total_seconds())}" if since else ""
    verb = "has been refused" if source.kind == _FEED else "has not answered"
    return f"{name} {verb}{long}: {source.error}. {meaning}"


def silence(sources: Sequence[SourceStatus], now: datetime) -> str | None:
    """That all who tell of jobs have fallen silent, though none has failed; else None."""
    asked = [source for source in sources if source.kind in ASKED]
    told = max((s.last_success_at for s in asked if s.last_success_at), default=None)
    if told is None or told >= now - OUTAGE_AFTER or any(source.error for source in asked):
        return None
    return f"Nobody has told of jobs for {age((now - told).total_seconds())}. {_AS_TOLD}"


def source_name(source: SourceStatus) -> str:
    """Who is asked: "Slurm's accounting"."""
    return _source(source.kind)[0]


def source_state(source: SourceStatus, now: datetime) -> str:
    """ "read 12 s ago", for the list of checks."""
    if source.error is not None:
        return "is refused" if source.kind == _FEED else "does not answer"
    if source.last_success_at is None:
        return "not read yet"
    return f"read {age((now - source.last_success_at).total_seconds())} ago"
