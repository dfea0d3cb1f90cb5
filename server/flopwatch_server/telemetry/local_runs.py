"""What a batch tells of local runs, handed to the room of jobs."""

from collections.abc import Iterable

from sqlalchemy.orm import Session

from flopwatch import wire
from flopwatch_server.fleet.registration import Registration
from flopwatch_server.jobs.local import service
from flopwatch_server.jobs.local.service import Sighting
from flopwatch_server.telemetry.repository.facts import Registered, instant


def write_local_runs(session: Session, registered: Iterable[Registered]) -> None:
    """Keep what agents saw of the runs of machines without a scheduler."""
    for batch, ids in registered:
        if batch.header.local_runs:
            sightings = [_sighting(entry, ids) for entry in batch.header.local_runs]
            service.see(session, batch.cluster_id, ids.node_id, sightings, batch.received_at)


def _sighting(entry: wire.LocalRun, ids: Registration) -> Sighting:
    return Sighting(
        raw_job_id=wire.local_job_id(entry.pid, entry.started_at),
        pid=entry.pid,
        user=entry.user,
        name=entry.name,
        started_at=instant(entry.started_at),
        seen_at=instant(entry.last_seen),
        ended_at=None if entry.ended_at is None else instant(entry.ended_at),
        device_ids=tuple(int(ids.device_ids[index]) for index in entry.devices),
    )
