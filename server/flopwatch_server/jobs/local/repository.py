"""SQL over local runs and the devices they hold."""

from collections.abc import Collection, Sequence
from datetime import datetime

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from flopwatch_server.fleet.models import Placement
from flopwatch_server.jobs.local.models import LocalSighting
from flopwatch_server.jobs.models import Allocation, Run


def find(
    session: Session, cluster_id: int, raw_job_id: int, started_at: datetime
) -> tuple[Run, LocalSighting] | None:
    """A local run by its identity, of which the name of its node is no part: that may change."""
    row = session.execute(
        select(Run, LocalSighting)
        .join(LocalSighting, LocalSighting.run_id == Run.id)
        .where(
            Run.cluster_id == cluster_id,
            Run.raw_job_id == raw_job_id,
            Run.submitted_at == started_at,
        )
    ).first()
    return None if row is None else (row[0], row[1])


def holdings(session: Session, run_id: int) -> Sequence[Allocation]:
    """What a run holds and held, in the order of time."""
    return session.scalars(
        select(Allocation).where(Allocation.run_id == run_id).order_by(Allocation.valid_from)
    ).all()


def holders(session: Session, device_ids: Collection[int]) -> Sequence[Allocation]:
    """What local runs hold now of these devices."""
    return session.scalars(
        select(Allocation)
        .join(Run, Run.id == Allocation.run_id)
        .where(Allocation.device_id.in_(device_ids), Allocation.valid_to.is_(None), Run.local)
    ).all()


def ordinals(session: Session, node_id: int) -> dict[int, int | None]:
    """By id of each device in a node, in their order: its GRES ordinal, or else its minor."""
    ordinal = func.coalesce(Placement.gres_ordinal, Placement.minor)
    rows = session.execute(
        select(Placement.device_id, ordinal)
        .where(Placement.node_id == node_id, Placement.valid_to.is_(None))
        .order_by(ordinal, Placement.device_id)
    )
    return {device_id: number for device_id, number in rows}


def silent(session: Session, since: datetime) -> Sequence[tuple[Run, LocalSighting]]:
    """Local runs that go on, as far as is known, and of which nobody has told since then."""
    rows = session.execute(
        select(Run, LocalSighting)
        .join(LocalSighting, LocalSighting.run_id == Run.id)
        .where(LocalSighting.heard_at < since, Run.ended_at.is_(None), Run.vanished_at.is_(None))
    ).all()
    return [(run, sighting) for run, sighting in rows]
