"""What pages say of the sources that tell of jobs."""

from datetime import UTC, datetime, timedelta

import pytest

from flopwatch_dashboard.words import silence, source_name, source_problem, source_state
from flopwatch_server.efficiency.schemas import SourceStatus

NOW = datetime(2026, 3, 12, 9, 0, tzinfo=UTC)


def source(kind: str, minutes: float | None = 0, error: str | None = None) -> SourceStatus:
    """A source that told last so many minutes ago, and fails for three."""
    return SourceStatus(
        kind=kind,
        last_success_at=None if minutes is None else NOW - timedelta(minutes=minutes),
        error=error,
        error_since=NOW - timedelta(minutes=3) if error else None,
    )


@pytest.mark.parametrize(
    ("found", "name", "state", "problem"),
    [
        (source("slurm"), "Slurm", "read 0 s ago", None),
        (source("slurm", None), "Slurm", "not read yet", None),
        (source("slurm", 3, "squeue: late"), "Slurm", "does not answer",
         "Slurm has not answered for 3 min: squeue: late. Jobs are shown as last told."),
        (source("slurm accounting", 3, "sacct: late"), "Slurm's accounting", "does not answer",
         "Slurm's accounting has not answered for 3 min: sacct: late. How jobs ended is told once "
         "it answers again."),
        (source("feed", 3, "line 3, $.state: bad"), "The scheduler feed", "is refused",
         "The scheduler feed has been refused for 3 min: line 3, $.state: bad. Jobs are shown as "
         "last told."),
        (source("pbs", 3, "late"), "pbs", "does not answer",
         "pbs has not answered for 3 min: late. What it tells is as last told."),
    ],
)  # fmt: skip
def test_a_source_has_a_name_and_a_state(
    found: SourceStatus, name: str, state: str, problem: str | None
) -> None:
    assert (source_name(found), source_state(found, NOW)) == (name, state)
    assert source_problem(found, NOW) == problem


@pytest.mark.parametrize(
    ("sources", "said"),
    [
        ([], None),
        ([source("feed", None)], None),
        ([source("feed", 5)], None),
        ([source("feed", 90)], "Nobody has told of jobs for 1 h 30 min. Jobs are shown as last "
                               "told."),
        ([source("feed", 90), source("slurm", 1)], None),
        ([source("feed", 90), source("slurm", 80, "late")], None),
        ([source("slurm accounting", 90), source("slurm", 1)], None),
    ],
    ids=["none", "never", "lately", "long ago", "by another", "a failure says it", "another kind"],
)  # fmt: skip
def test_a_feed_that_stopped_is_missed(sources: list[SourceStatus], said: str | None) -> None:
    assert silence(sources, NOW) == said
