"""SQL that compares allocations with the processes that agents saw on their devices."""

from collections.abc import Sequence
from datetime import timedelta

from sqlalchemy import ColumnElement, Interval, Select, and_, literal, or_, select, update
from sqlalchemy.orm import Session, aliased

from flopwatch_server.fleet.models import Node
from flopwatch_server.jobs.models import Allocation, Evidence, Run

_LINGER = literal(timedelta(minutes=2), Interval)
"""So long may processes of a job that has ended still be seen: Slurm gives them KillWait (30 s) and
UnkillableStepTimeout (60 s), and agents look every ten seconds."""

_other, _given = aliased(Run), aliased(Allocation)


def weigh_processes(session: Session, cluster_id: int) -> None:
    """Compare what is held now with the processes that were seen on its devices.

    * The cgroup of the holder's own job is proof: the device is certain, whatever else is seen.
    * The cgroup of a job that was never given the device makes it disputed, unless it is shared:
      somebody is wrong about who holds it, so nobody is told to be idle on it.
    * A claim, which is what a process's environment says where no cgroup tells, is never proof, for
      anybody may write anything there. A foreign one disputes as a cgroup does; see `_is_foreign`.
    * A job of which the scheduler has not told that it started says nothing yet: the holder may
      have ended as well, and that word comes together with the other.
    """
    own = _seen("cgroup").where(
        Evidence.raw_job_id == Run.raw_job_id, Evidence.last_seen_at >= Allocation.valid_from
    )
    cgroup = _seen_of_others("cgroup").where(
        Evidence.first_seen_at >= Allocation.valid_from, ~_was_given().exists()
    )
    claim = _seen_of_others("environ").where(_is_foreign())
    _set_confidence(session, cluster_id, ("likely", "disputed"), own.exists(), "certain")
    for sign in (cgroup, claim):
        which = ~Allocation.shared & sign.exists()
        _set_confidence(session, cluster_id, ("likely",), which, "disputed")


def seat(session: Session, cluster_id: int) -> None:
    """Give GPUs of unknown position the devices that the prolog named for their job.

    Only if it named as many as the job holds of them on the node: which is which does not matter.
    Processes may still dispute them.
    """
    named = (
        select(Allocation, Evidence.device_id)
        .join(Run, Run.id == Allocation.run_id)
        .join(
            Evidence,
            and_(
                Evidence.node_id == Allocation.node_id,
                Evidence.raw_job_id == Run.raw_job_id,
                Evidence.kind == "prolog",
                Evidence.device_id.is_not(None),
                Evidence.last_seen_at >= Allocation.valid_from,
            ),
        )
        .where(
            Allocation.valid_to.is_(None),
            Allocation.device_id.is_(None),
            Allocation.gres_ordinal.is_(None),
            Run.cluster_id == cluster_id,
        )
        .order_by(Allocation.place, Evidence.device_id)
    )
    held: dict[tuple[int, int], tuple[dict[Allocation, None], dict[int | None, None]]] = {}
    for allocation, device_id in session.execute(named):
        places, devices = held.setdefault((allocation.run_id, allocation.node_id), ({}, {}))
        places[allocation] = devices[device_id] = None
    for places, devices in held.values():
        if len(places) == len(devices):
            for allocation, device_id in zip(places, devices, strict=True):
                allocation.device_id, allocation.confidence = device_id, "likely"
    session.flush()


def _seen(kind: str) -> Select[int]:
    """The processes on the device of an allocation, which `Run` holds."""
    return (
        select(Evidence.id)
        .where(
            Evidence.kind == kind,
            Evidence.node_id == Allocation.node_id,
            Evidence.device_id == Allocation.device_id,
        )
        .correlate(Allocation, Run)
    )


def _seen_of_others(kind: str) -> Select[int]:
    """Those of another job, `_other`, that has started."""
    same_id = and_(_other.cluster_id == Run.cluster_id, _other.raw_job_id == Evidence.raw_job_id)
    return (
        _seen(kind)
        .join(_other, same_id)
        .where(Evidence.raw_job_id != Run.raw_job_id, _other.started_at.is_not(None))
    )


def _is_foreign() -> ColumnElement[bool]:
    """Whether a claim, seen while the device is held, is of somebody else's job.

    It is if the job that it names does not hold the device, nor did until just now: without cgroups
    a process can outlive its job, and its environment stays. It is not if it may be the holder's
    own process all the same: in a heterogeneous job SLURM_JOB_ID may be the first component's, and
    a shell that salloc starts has the id of a job elsewhere, though it stays in the one it was
    typed into. A task of an array has an id of its own.
    """
    until_now = or_(_given.valid_to.is_(None), _given.valid_to >= Evidence.last_seen_at - _LINGER)
    was_here = _allocations_of_other(_given.node_id == Evidence.node_id)
    return and_(
        Evidence.last_seen_at >= Allocation.valid_from,
        Evidence.raw_job_id.is_distinct_from(Run.het_job_id),
        ~_was_given().where(until_now).exists(),
        or_(_other.user_name != Run.user_name, was_here.exists()),
    )


def _was_given() -> Select[int]:
    """What the other job was ever given of the device."""
    return _allocations_of_other(_given.device_id == Evidence.device_id)


def _allocations_of_other(where: ColumnElement[bool]) -> Select[int]:
    """All runs of a job are one here: a process that is left of one counts for the next."""
    holder = aliased(Run)
    return (
        select(_given.id)
        .join(holder, holder.id == _given.run_id)
        .where(
            holder.cluster_id == _other.cluster_id,
            holder.raw_job_id == _other.raw_job_id,
            where,
        )
        .correlate(Evidence, _other)
    )


def _set_confidence(
    session: Session, cluster_id: int, old: Sequence[str], which: ColumnElement[bool], new: str
) -> None:
    session.execute(
        update(Allocation)
        .where(
            Allocation.run_id == Run.id,
            Allocation.valid_to.is_(None),
            Allocation.confidence.in_(old),
            Allocation.node_id.in_(select(Node.id).where(Node.cluster_id == cluster_id)),
            which,
        )
        .values(confidence=new)
        .execution_options(synchronize_session=False)
    )
