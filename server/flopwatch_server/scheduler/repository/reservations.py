"""Reservations, as far as they were told, over time."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from flopwatch_server.database.text import storable
from flopwatch_server.scheduler.models import Reservation
from flopwatch_server.scheduler.records import ReservationRecord


def apply_reservations(
    session: Session, cluster_id: int, records: Sequence[ReservationRecord], now: datetime
) -> None:
    """Bring reservations up to all that are told now.

    What is over stays as it was. One that is told no more, or otherwise, was so until now; what
    had not begun never was.
    """
    session.execute(
        delete(Reservation).where(
            Reservation.cluster_id == cluster_id, Reservation.valid_from >= now
        )
    )
    of_cluster = Reservation.cluster_id == cluster_id
    in_force = {
        row.name: row
        for row in session.scalars(
            select(Reservation).where(of_cluster, Reservation.valid_to > now)
        )
    }
    for record in records:
        told = _columns(record)
        row = in_force.pop(told["name"], None)
        if row is not None and record.starts_at <= now and _is_the_same(row, told):
            row.valid_to = max(row.valid_from, record.ends_at)
            continue
        if row is not None:
            row.valid_to = now
        if record.ends_at > now:
            key = (cluster_id, told["name"], record.starts_at)
            is_new = row is None and session.get(Reservation, key) is None
            begins = record.starts_at if is_new else max(now, record.starts_at)
            session.add(
                Reservation(
                    cluster_id=cluster_id, valid_from=begins, valid_to=record.ends_at, **told
                )
            )
    for gone in in_force.values():
        gone.valid_to = now
    session.flush()


def _columns(record: ReservationRecord) -> dict[str, Any]:
    return {
        "name": storable(record.name),
        "nodes": list(record.nodes),
        "is_whole": record.is_whole,
        "users": [storable(user) for user in record.users],
        "accounts": [storable(account) for account in record.accounts],
        "flags": list(record.flags),
    }


def _is_the_same(row: Reservation, told: dict[str, Any]) -> bool:
    return all(getattr(row, name) == value for name, value in told.items())
