"""Phrases that more than one page says."""

from datetime import datetime

from flopwatch_dashboard.format import age, count
from flopwatch_server.efficiency.schemas import SourceStatus

NOT_TOLD = "No scheduler has told of any job yet."
_AS_TOLD = "Jobs are shown as last told."
_SOURCES = {
    "slurm": ("Slurm", _AS_TOLD),
    "slurm accounting": ("Slurm's accounting", "How jobs ended is told once it answers again."),
    "slurm reservations": ("Slurm's reservations", "Reservations are as last told."),
    "slurm shares": ("Slurm's fair share", "Shares are shown as last told."),
    "slurm partitions": ("Slurm's partitions", "Their limits are as last told."),
    "slurm qos": ("Slurm's QOS", "Their limits are as last told."),
    "feed": ("The scheduler feed", _AS_TOLD),
    "feed shares": ("The scheduler feed's fair share", "Shares are shown as last told."),
    "local": ("The machines without a scheduler", _AS_TOLD),
}
"""Who is asked, and what it means that no answer comes."""


def gpus_in_words(number: int, held: int) -> str:
    """ "All 8 GPUs", "Both GPUs", "The only GPU", "12 of 32 GPUs"."""
    if number < held:
        return f"{count(number)} of {count(held)} GPUs"
    return {1: "The only GPU", 2: "Both GPUs"}.get(held, f"All {count(held)} GPUs")


def source_problem(source: SourceStatus, now: datetime) -> str | None:
    """What is wrong with a scheduler's source; None if it answers."""
    if source.error is None:
        return None
    name, meaning = _SOURCES[source.kind]
    since = source.error_since
    long = f" for {age((now - since).total_seconds())}" if since else ""
    return f"{name} has not answered{long}: {source.error}. {meaning}"


def source_name(source: SourceStatus) -> str:
    """Who is asked: "Slurm's accounting"."""
    return _SOURCES[source.kind][0]


def source_state(source: SourceStatus, now: datetime) -> str:
    """ "read 12 s ago", for the list of checks."""
    if source.error is not None:
        return "does not answer"
    if source.last_success_at is None:
        return "not read yet"
    return f"read {age((now - source.last_success_at).total_seconds())} ago"
