"""Partitions and QOS as told last. One that is told no more stays, with `gone_at`."""

from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any

from sqlalchemy import select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from flopwatch_server.database.text import storable
from flopwatch_server.scheduler.models import Qos, SchedulerPartition, SchedulerSource
from flopwatch_server.scheduler.records import PartitionRecord, QosRecord


def apply_partitions(
    session: Session, cluster_id: int, records: Sequence[PartitionRecord], now: datetime
) -> None:
    """Bring partitions up to these, which are all there are."""
    rows = [
        asdict(record) | {"name": storable(record.name), "qos": record.qos and storable(record.qos)}
        for record in records
    ]
    _tell(session, SchedulerPartition, cluster_id, rows, now)


def apply_qos(
    session: Session, cluster_id: int, records: Sequence[QosRecord], now: datetime
) -> None:
    """Bring QOS up to these, which are all there are."""
    rows = [
        asdict(record)
        | {"name": storable(record.name), "preempts": [storable(name) for name in record.preempts],
           "first_told_at": now}
        for record in records
    ]  # fmt: skip
    _tell(session, Qos, cluster_id, rows, now)


def partitions(session: Session, cluster_id: int) -> Sequence[SchedulerPartition]:
    """Those that were told last, by name."""
    told = select(SchedulerPartition).where(
        SchedulerPartition.cluster_id == cluster_id, SchedulerPartition.gone_at.is_(None)
    )
    return session.scalars(told.order_by(SchedulerPartition.name)).all()


def qos(session: Session, cluster_id: int) -> Sequence[Qos]:
    """Those that were told last, the highest priority first."""
    told = select(Qos).where(Qos.cluster_id == cluster_id, Qos.gone_at.is_(None))
    return session.scalars(told.order_by(Qos.priority.desc(), Qos.name)).all()


def source(session: Session, cluster_id: int, kind: str) -> SchedulerSource | None:
    """How the conversation of this kind goes; None before the first."""
    return session.get(SchedulerSource, (cluster_id, kind))


def _tell(
    session: Session,
    table: type[Qos] | type[SchedulerPartition],
    cluster_id: int,
    rows: Sequence[dict[str, Any]],
    now: datetime,
) -> None:
    """Let all be gone but those that are told."""
    known = update(table).where(table.cluster_id == cluster_id, table.gone_at.is_(None))
    session.execute(known.values(gone_at=now))
    if not rows:
        return
    new = insert(table)
    kept = {"cluster_id", "name", "first_told_at"}
    told = {column: new.excluded[column] for column in rows[0] if column not in kept}
    session.execute(
        new.on_conflict_do_update(
            index_elements=["cluster_id", "name"], set_={**told, "gone_at": None}
        ),
        [{"cluster_id": cluster_id, **row} for row in rows],
    )
