"""Where the activity of devices came from, and what rare things happened to them."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import select
from sqlalchemy.dialects.postgresql import distinct_on, insert
from sqlalchemy.orm import Session

from flopwatch_server.fleet.models import Device, Node
from flopwatch_server.fleet.registration import Registration
from flopwatch_server.telemetry.ingest import ValidatedBatch
from flopwatch_server.telemetry.models import DeviceEvent, DeviceSource
from flopwatch_server.telemetry.repository.holdings import AnyRow, held_by_run, of_run

MOST_EVENTS = 200
"""Of one run; an agent tells at most six of a kind, device and minute."""


def write(session: Session, registered: Sequence[tuple[ValidatedBatch, Registration]]) -> None:
    """Keep sources and events. What is told again changes nothing, or is the newer word."""
    sources: list[dict[str, Any]] = []
    events: list[dict[str, Any]] = []
    for batch, ids in registered:
        sources += [
            {"device_id": int(ids.device_ids[each.device]), "valid_from": _at(each.since),
             "name": each.name, "period_seconds": each.period_seconds,
             "passed_over": each.passed_over}
            for each in batch.header.sources
        ]  # fmt: skip
        events += [
            {"device_id": int(ids.device_ids[each.device]), "at": _at(each.time),
             "kind": each.kind, "value": each.value, "detail": each.detail}
            for each in batch.header.events
        ]  # fmt: skip
    if sources:
        session.execute(_UPSERT_SOURCE, sources)
    if events:
        session.execute(_INSERT_EVENT, events)


def sources_of_run(session: Session, run_id: int, now: datetime) -> Sequence[AnyRow]:
    """(name, period_seconds, passed_over) of each allocation's device, at its end or now."""
    holding = held_by_run()
    return session.execute(
        select(DeviceSource.name, DeviceSource.period_seconds, DeviceSource.passed_over)
        .join(holding, holding.c.device_id == DeviceSource.device_id)
        .where(DeviceSource.valid_from < holding.c.until)
        .ext(distinct_on(holding.c.id))
        .order_by(holding.c.id, DeviceSource.valid_from.desc()),
        of_run(run_id, now),
    ).all()


def events_of_run(session: Session, run_id: int, now: datetime) -> Sequence[AnyRow]:
    """What happened to devices of a run while it held them, the newest first."""
    holding = held_by_run()
    event = DeviceEvent
    return session.execute(
        select(
            Node.name.label("node"), holding.c.place, holding.c.gres_ordinal, Device.uuid,
            event.at, event.kind, event.value, event.detail,
        )
        .join(holding, holding.c.device_id == event.device_id)
        .join(Device, Device.id == event.device_id)
        .join(Node, Node.id == holding.c.node_id)
        .where(event.at >= holding.c.valid_from, event.at <= holding.c.until)
        .order_by(event.at.desc(), holding.c.id, event.kind, event.value)
        .limit(MOST_EVENTS),
        of_run(run_id, now),
    ).all()  # fmt: skip


def _at(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


# Built once: building a statement costs more than running it.
_INSERT_SOURCE = insert(DeviceSource)
_UPSERT_SOURCE = _INSERT_SOURCE.on_conflict_do_update(
    index_elements=["device_id", "valid_from"],
    set_={
        name: _INSERT_SOURCE.excluded[name] for name in ("name", "period_seconds", "passed_over")
    },
)
_INSERT_EVENT = insert(DeviceEvent).on_conflict_do_nothing()
