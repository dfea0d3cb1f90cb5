"""Runs and allocations: what the scheduler says goes in, what a person may see comes out."""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy.orm import Session

from flopwatch_server.access.principal import Principal
from flopwatch_server.database.text import storable
from flopwatch_server.fleet import service as fleet
from flopwatch_server.fleet.repository.clusters import lock_cluster
from flopwatch_server.fleet.repository.nodes import ensure_nodes
from flopwatch_server.house import NotFound
from flopwatch_server.jobs import repository
from flopwatch_server.jobs.evidence.repository import seat, weigh_processes
from flopwatch_server.jobs.repository import Holding, Key, Known
from flopwatch_server.jobs.schemas import RunView
from flopwatch_server.scheduler.records import (
    PENDING_STATES,
    RUNNING_STATES,
    JobRecord,
    NodeGpus,
    NodeRecord,
)
from flopwatch_server.scheduler.repository.nodes import apply_node_records

_RESOLVED_LATE = timedelta(days=35)  # longer than a run may last


def find_run(
    session: Session, principal: Principal, cluster: str, job_id: str, now: datetime
) -> RunView:
    """The newest run of a job by the id that its owner knows; NotFound if none may be seen."""
    row = repository.newest_run(session, principal, cluster, job_id)
    if row is None:
        raise NotFound(f"no job {job_id} on cluster {cluster}")
    return repository.to_view(row, now)


def apply_records(
    session: Session,
    cluster_id: int,
    jobs: Sequence[JobRecord],
    nodes: Sequence[NodeRecord],
    now: datetime,
    *,
    complete: bool,
    source: str,
    all_nodes: bool = False,
) -> None:
    """Bring runs, allocations and nodes up to what a scheduler says now.

    With `complete`, `jobs` holds every pending and running job: a run that is missing has left the
    queue. It stays open, with its allocations ended at `now`, until its end is told: no guess.
    With `all_nodes`, `nodes` holds every node.
    """
    lock_cluster(session, cluster_id)
    jobs = _newest(jobs)
    apply_node_records(session, cluster_id, nodes, now, complete=all_nodes)
    known = repository.open_runs(session, cluster_id) if complete else {}
    others = {job.raw_job_id for job in jobs if _key(job) not in known}
    known |= repository.runs_of(session, cluster_id, others)
    news = [job for job in jobs if _is_news(job, known.get(_key(job)))]
    written = repository.upsert_runs(session, [_run_row(cluster_id, job) for job in news])
    ids = {key: run.id for key, run in known.items()} | written
    if complete:
        present = {_key(job) for job in jobs if not _has_ended(job)}
        open_runs = (key for key, run in known.items() if run.ended_at is None)
        gone = [ids[key] for key in open_runs if key not in present and not known[key].vanished_at]
        repository.mark_vanished(session, gone, now)
    changed = (known[key] for key in map(_key, news) if key in known)
    before = {run.id: run.ended_at or run.vanished_at for run in changed}
    repository.move_ends(session, {run_id: end for run_id, end in before.items() if end})
    repository.close_allocations(session, cluster_id)
    _allocate(session, cluster_id, news, ids, now, source)
    repository.close_allocations(session, cluster_id)
    attribute(session, cluster_id, now)


def attribute(session: Session, cluster_id: int, now: datetime) -> None:
    """Bring what is known of the devices of allocations up to what agents have told by now."""
    lock_cluster(session, cluster_id)
    repository.unseat(session, cluster_id)
    _resolve(session, cluster_id, now)
    seat(session, cluster_id)
    weigh_processes(session, cluster_id)


def starts_without_gpus(
    session: Session, cluster_id: int, jobs: Iterable[JobRecord]
) -> list[JobRecord]:
    """Running jobs whose GPUs have not been asked for: once for every start."""
    running = {_key(job): job for job in jobs if job.state in RUNNING_STATES and job.gpu_count != 0}
    known = repository.runs_of(session, cluster_id, (raw_job_id for raw_job_id, _ in running))
    ids = {key: known[key].id for key in running if key in known}
    asked = repository.with_allocations(session, ids.values())
    return [job for key, job in running.items() if ids.get(key) not in asked]


def _is_news(job: JobRecord, known: Known | None) -> bool:
    """Whether anything is told that was not told last. A run that had vanished is back."""
    return known is None or known.vanished_at is not None or known.told != job.fingerprint


def _key(job: JobRecord) -> Key:
    return job.raw_job_id, job.submitted_at


def _newest(jobs: Sequence[JobRecord]) -> list[JobRecord]:
    """One record a run, the last one told, since one statement can't touch a row twice."""
    return list({_key(job): job for job in jobs}.values())


def _has_ended(job: JobRecord) -> bool:
    return job.state not in RUNNING_STATES and not _waits(job)


def _waits(job: JobRecord) -> bool:
    """REQUEUED with an end ends a run, as accounting tells; without, the job's next run waits."""
    return job.state in PENDING_STATES and job.ended_at is None


def _run_row(cluster_id: int, job: JobRecord) -> dict[str, Any]:
    return {
        "cluster_id": cluster_id,
        "raw_job_id": job.raw_job_id,
        "submitted_at": job.submitted_at,
        "display_id": storable(job.display_id),
        "array_job_id": job.array_job_id,
        "array_task_id": job.array_task_id,
        "het_job_id": job.het_job_id,
        "het_offset": job.het_offset,
        "sluid": None if job.sluid is None else storable(job.sluid),
        "name": storable(job.name),
        "user_name": storable(job.user),
        "account": storable(job.account),
        "partition": storable(job.partition),
        "qos": storable(job.qos),
        "state": job.state,
        "reason": storable(job.reason),
        "started_at": job.started_at,
        "ended_at": job.ended_at if _has_ended(job) else None,
        "vanished_at": None,
        "time_limit_seconds": job.time_limit_seconds,
        "suspended_seconds": job.suspended_seconds,
        "restarts": job.restarts,
        "exit_code": job.exit_code,
        "gpu_count": job.gpu_count,
        "node_count": job.node_count,
        "told": job.fingerprint,
    }


def _allocate(
    session: Session,
    cluster_id: int,
    jobs: Sequence[JobRecord],
    ids: dict[Key, int],
    now: datetime,
    source: str,
) -> None:
    """Let each run that tells its GPUs hold these and no others; one that waits again holds none.

    A GPU that is told on stays held since it was, whatever start is told now.
    """
    telling = {ids[_key(job)]: job for job in jobs if _tells_gpus(job)}
    names = {held.node for job in telling.values() for held in job.gpus or ()}
    node_ids = ensure_nodes(session, cluster_id, names)
    known: dict[int, list[Holding]] = {run_id: [] for run_id in telling}
    for row in repository.holdings(session, telling):
        known[row.run_id].append(row)
    rows, released = [], []
    for run_id, job in telling.items():
        told = {
            (node_ids[held.node], place): {
                "run_id": run_id, "node_id": node_ids[held.node], "place": place,
                "gres_ordinal": ordinal, "gres_type": held.gres_type, "device_id": None,
                "valid_to": None, "shared": held.shared, "source": source, "confidence": "unknown",
            }
            for held in job.gpus or ()
            for place, ordinal in _places(held)
        }  # fmt: skip
        last = {(row.node_id, row.place): row.id for row in known[run_id] if row.held_to_the_last}
        start = _start(job, known[run_id], now)
        rows += [told[spot] | {"valid_from": start} for spot in told if spot not in last]
        if not _has_ended(job):
            released += [last[spot] for spot in last if spot not in told]
    repository.add_allocations(session, rows)
    repository.release(session, released, now)


def _tells_gpus(job: JobRecord) -> bool:
    return _waits(job) or (job.gpus is not None and job.started_at is not None)


def _start(job: JobRecord, known: Sequence[Holding], now: datetime) -> datetime:
    """Since when a run holds GPUs that were not told before: its start, or now if it grew."""
    if any(row.held_to_the_last for row in known):
        return now
    ended: list[datetime] = [row.valid_to for row in known]
    return max([job.started_at or now, *ended])


def _places(held: NodeGpus) -> list[tuple[int, int | None]]:
    if held.ordinals is None:
        return [(place, None) for place in range(held.count)]
    return [(ordinal, ordinal) for ordinal in held.ordinals]


def _resolve(session: Session, cluster_id: int, now: datetime) -> None:
    """Give allocations the device that sits at their ordinal, as far as that is known.

    A run may be told when it is over already, or before its nodes' agents have ever reported; that
    the device sat there then is only assumed, unless gres.conf says where it sits.
    """
    waiting = repository.unresolved(session, cluster_id, now - _RESOLVED_LATE)
    devices = fleet.current_devices(session, {allocation.node_id for allocation in waiting})
    for allocation in waiting:
        ordinal = allocation.gres_ordinal
        found = None if ordinal is None else devices.get((allocation.node_id, ordinal))
        if found is not None:
            allocation.device_id, source = found
            is_likely = allocation.valid_to is None or source == fleet.GRES_CONF
            allocation.confidence = "likely" if is_likely else "assumed"
    session.flush()
