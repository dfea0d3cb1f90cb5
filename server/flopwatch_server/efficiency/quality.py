"""How far figures can be trusted: what came of what was due, what is missing and why, how old."""

from collections import Counter
from datetime import datetime, timedelta

from sqlalchemy.orm import Session

from flopwatch_server.efficiency.repository import figures, quality
from flopwatch_server.efficiency.repository import overview as overview_repository
from flopwatch_server.efficiency.schemas import RunEvent, RunQuality, SourceUse
from flopwatch_server.efficiency.series import place_of
from flopwatch_server.fleet.repository.clusters import the_cluster
from flopwatch_server.jobs.schemas import RunView
from flopwatch_server.telemetry.minutes import SAMPLES_PER_MINUTE
from flopwatch_server.telemetry.repository import happenings

NEWEST_SAMPLE_LOOK_BACK = timedelta(minutes=2)


def run_quality(session: Session, run: RunView, now: datetime) -> RunQuality:
    """Samples that came and were due, why metrics have no value, sources and events."""
    row = figures.run_figures(session, run.id, now)
    missing: dict[str, str] = {}
    for metric, reason, _ in quality.missing_metrics(session, run.id, now):
        missing.setdefault(metric, reason)
    return RunQuality(
        samples_received=quality.samples_received(session, run.id, now),
        samples_expected=SAMPLES_PER_MINUTE * row.whole_minutes if row else 0,
        missing=missing,
        sources=_sources(session, run, now),
        events=_events(session, run, now),
    )


def _sources(session: Session, run: RunView, now: datetime) -> list[SourceUse]:
    """Most GPUs first; GPUs whose agent told nothing are not counted."""
    gpus = Counter(
        (row.name, row.period_seconds, tuple(sorted(row.passed_over.items())))
        for row in happenings.sources_of_run(session, run.id, now)
    )
    return [
        SourceUse(name=name, period_seconds=period, passed_over=dict(passed_over), gpus=count)
        for (name, period, passed_over), count in gpus.most_common()
    ]


def _events(session: Session, run: RunView, now: datetime) -> list[RunEvent]:
    return [
        RunEvent(place=place_of(row), device_uuid=row.uuid, at=row.at, kind=row.kind,
                 value=row.value, detail=row.detail)
        for row in happenings.events_of_run(session, run.id, now)
    ]  # fmt: skip


def newest_sample_at(session: Session, cluster: str, now: datetime) -> datetime | None:
    """When the newest sample of a cluster was taken, as far as the nodes heard from last tell.

    After `NEWEST_SAMPLE_LOOK_BACK` of silence it is the end of the newest minute; None before the
    first. Raises NotFound.
    """
    cluster_id = the_cluster(session, cluster).id
    not_before = now - NEWEST_SAMPLE_LOOK_BACK
    newest = overview_repository.newest_sample_at(session, cluster_id, not_before, now)
    return newest or overview_repository.newest_minute_end(session, cluster_id, now)
