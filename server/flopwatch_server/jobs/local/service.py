"""From what agents see of local runs to runs and allocations.

A run is known to live when it is seen, and over when its agent says so. Agents send what is live
before what they have in store, so sightings may come out of order: an older one moves a beginning
back and never an end.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy.orm import Session

from flopwatch_server.jobs.local import repository
from flopwatch_server.jobs.local.models import LocalSighting
from flopwatch_server.jobs.models import Allocation, Run
from flopwatch_server.scheduler.repository import sources

SILENCE = timedelta(minutes=5)
"""A run of which its agent has not told for so long has ended, for all we know, when last seen."""

LINGER = timedelta(minutes=1)
"""So long after its last process there an agent takes a run to hold a device."""

SOURCE = "local"

UNKNOWN = "UNKNOWN"
"""The state of a run that nobody tells of any more: it may have ended, or its node be cut off."""


@dataclass(frozen=True, slots=True)
class Sighting:
    """A local run as its node's agent saw it: `device_ids` are those it computes on.

    It lived at `seen_at` and was gone at `ended_at`, where that is told. `started_at` names it: by
    a clock that was turned back since, it may come after both.
    """

    raw_job_id: int
    pid: int
    user: str
    name: str
    started_at: datetime
    seen_at: datetime
    ended_at: datetime | None
    device_ids: tuple[int, ...]


def see(
    session: Session, cluster_id: int, node_id: int, sightings: Sequence[Sighting], now: datetime
) -> None:
    """Bring the local runs of a node up to what its agent saw; `now` is when that came."""
    sources.succeeded(session, cluster_id, SOURCE, now)
    ordinals = repository.ordinals(session, node_id)
    for sighting in sorted(sightings, key=lambda each: each.seen_at):
        found = repository.find(session, cluster_id, sighting.raw_job_id, sighting.started_at)
        is_newest = found is None or sighting.seen_at >= found[1].last_seen_at
        run, known = found or _add(session, cluster_id, node_id, sighting, now)
        if is_newest and known.node_id != node_id:  # its node has another name now
            known.node_id = node_id
            for allocation in repository.holdings(session, run.id):
                allocation.node_id = node_id
        _hold(session, run, known.node_id, sighting, ordinals, is_newest=is_newest)
        if is_newest and run.ended_at is None:
            run.state, run.vanished_at = "RUNNING", None
        known.last_seen_at = max(known.last_seen_at, sighting.seen_at)
        known.heard_at = now
        run.gpu_count = max(run.gpu_count or 0, len(sighting.device_ids))
        if sighting.ended_at is not None and run.ended_at is None:
            run.state, run.ended_at = "COMPLETED", max(sighting.ended_at, sighting.seen_at)
            # What its GPUs did after it was last seen may be idleness that is not its own.
            _release(session, run, (), sighting.seen_at)
        elif is_newest:
            _release(session, run, sighting.device_ids, sighting.seen_at)
            _share(session, sighting.device_ids, sighting.seen_at)


def close_silent(session: Session, now: datetime) -> None:
    """Let runs that nobody tells of any more end when they were last seen, until they are again."""
    for run, known in repository.silent(session, now - SILENCE):
        run.state, run.vanished_at = UNKNOWN, known.last_seen_at
        _release(session, run, (), known.last_seen_at)


def _add(
    session: Session, cluster_id: int, node_id: int, sighting: Sighting, now: datetime
) -> tuple[Run, LocalSighting]:
    run = Run(
        cluster_id=cluster_id, raw_job_id=sighting.raw_job_id, submitted_at=sighting.started_at,
        display_id=str(sighting.pid), name=sighting.name, user_name=sighting.user, account="",
        partition="", qos="", reason="", state="RUNNING",
        started_at=min(sighting.started_at, sighting.seen_at),
        suspended_seconds=0, restarts=0, node_count=1, local=True,
    )  # fmt: skip
    session.add(run)
    session.flush()
    known = LocalSighting(
        run_id=run.id, node_id=node_id, last_seen_at=sighting.seen_at, heard_at=now
    )
    session.add(known)
    return run, known


def _hold(
    session: Session, run: Run, node_id: int, sighting: Sighting, ordinals: dict[int, int | None],
    *, is_newest: bool,
) -> None:  # fmt: skip
    """Let a run hold, at least at the time of the sighting, the devices that it was seen on."""
    at = sighting.seen_at
    end = None if is_newest and run.ended_at is None else at
    held = repository.holdings(session, run.id)
    for device_id in sighting.device_ids:
        own = [each for each in held if each.device_id == device_id]
        before = [each for each in own if each.valid_from <= at]
        last_end = before[-1].valid_to if before else None
        if before and (last_end is None or at <= last_end):
            continue
        if len(before) < len(own):
            own[len(before)].valid_from = at
        elif last_end and (last_end == run.vanished_at or (end and at - last_end <= LINGER)):
            before[-1].valid_to = end  # it went on, but was not told of for a while
        else:
            # One that is no longer in the node comes behind those that are.
            place = [*ordinals, *sighting.device_ids].index(device_id)
            allocation = _allocation(
                run.id, node_id, place, ordinals.get(device_id), device_id, at, shared=False
            )
            allocation.valid_to = end
            session.add(allocation)
    session.flush()


def _release(session: Session, run: Run, kept: Collection[int], at: datetime) -> None:
    """Let a run hold no other devices than these any more."""
    gone = [
        each for each in repository.holdings(session, run.id)
        if each.valid_to is None and each.device_id not in kept
    ]  # fmt: skip
    for allocation in gone:
        allocation.valid_to = max(at, allocation.valid_from)
    session.flush()
    _share(session, [each.device_id for each in gone if each.device_id is not None], at)


def _share(session: Session, device_ids: Collection[int], at: datetime) -> None:
    """Say of each holder of these devices whether it has them for itself: from `at` on."""
    holders = repository.holders(session, device_ids)
    for each in holders:
        shared = sum(other.device_id == each.device_id for other in holders) > 1
        if each.shared == shared:
            continue
        if each.valid_from >= at:
            each.shared = shared
            continue
        each.valid_to = at
        session.add(
            _allocation(
                each.run_id, each.node_id, each.place, each.gres_ordinal, each.device_id, at,
                shared=shared,
            )
        )  # fmt: skip
    session.flush()


def _allocation(
    run_id: int, node_id: int, place: int, ordinal: int | None, device_id: int | None,
    start: datetime, *, shared: bool,
) -> Allocation:  # fmt: skip
    return Allocation(
        run_id=run_id, node_id=node_id, place=place, gres_ordinal=ordinal, gres_type=None,
        device_id=device_id, valid_from=start, valid_to=None, shared=shared, source=SOURCE,
        confidence="certain",
    )  # fmt: skip
