"""Where samples, minutes and hours meet runs.

A sample carries no job id. It covers (ts − 10 s, ts] and counts for an allocation that holds the
device for all of that; a device-minute covers [minute, minute + 60 s) and counts likewise, and so
does an hour. What straddles a hand-over belongs to nobody.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import cache
from typing import Any

from sqlalchemy import (
    CTE,
    ColumnElement,
    Float,
    Interval,
    Row,
    ScalarSelect,
    Select,
    Tuple,
    and_,
    bindparam,
    case,
    cast,
    func,
    literal,
    select,
    tuple_,
)
from sqlalchemy.orm import Session, aliased

from flopwatch.metrics import SAMPLE_PERIOD_SECONDS
from flopwatch_server.database.base import UtcDateTime
from flopwatch_server.fleet.models import Device, Node
from flopwatch_server.jobs.models import Allocation, Run
from flopwatch_server.scheduler.records import WORKING_STATES
from flopwatch_server.telemetry.models import device_hours, device_minutes, samples

AnyRow = Row[*tuple[Any, ...]]
SAMPLE = timedelta(seconds=SAMPLE_PERIOD_SECONDS)
MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
_other = aliased(Allocation)


def instant(value: datetime) -> ColumnElement[datetime]:
    """A time as a typed SQL parameter."""
    return literal(value, UtcDateTime)


def interval(length: timedelta) -> ColumnElement[timedelta]:
    """A length of time as a typed SQL parameter: beside an instant it would be taken for one."""
    return literal(length, Interval)


def epoch_seconds(value: ColumnElement[Any]) -> ColumnElement[float]:
    """A time in seconds since 1970, or an interval in seconds."""
    return cast(func.extract("epoch", value), Float)


def held(now: ColumnElement[datetime], *conditions: ColumnElement[bool]) -> CTE:
    """Allocations of the runs that meet `conditions`, with how long each has held its GPU by `now`.

    `until` is the end, or `now` while the GPU is still held; `seconds` lies between. Where others
    are said to hold the same GPU at the same time, minutes and samples belong to nobody: those of
    this one lie within [`alone_from`, `alone_until`), which is empty where it is disputed.
    `working` says that its processes may run.
    """
    until = func.least(func.coalesce(Allocation.valid_to, now), now, type_=UtcDateTime)
    length = func.greatest(epoch_seconds(until - Allocation.valid_from), 0.0, type_=Float)
    return (
        select(
            Allocation.id, Allocation.run_id, Allocation.node_id, Allocation.place,
            Allocation.gres_ordinal, Allocation.device_id, Allocation.shared,
            Allocation.valid_from, Allocation.valid_to, Allocation.source, Allocation.confidence,
            until.label("until"), length.label("seconds"),
            func.greatest(Allocation.valid_from, _end_before(now), type_=UtcDateTime)
            .label("alone_from"),
            case(
                (Allocation.confidence == "disputed", Allocation.valid_from),
                else_=func.least(until, _start_after(), type_=UtcDateTime),
            ).label("alone_until"),
            Run.state.in_(WORKING_STATES).label("working"),
        )
        .join(Run, Run.id == Allocation.run_id)
        .where(*conditions)
        .cte()
    )  # fmt: skip


def _end_before(now: ColumnElement[datetime]) -> ScalarSelect[datetime]:
    """When the holder before an allocation gives its GPU back, `now` if it has not done so."""
    end = func.least(func.coalesce(_other.valid_to, now), now, type_=UtcDateTime)
    order = _other.valid_from.desc(), _other.id.desc()
    return _neighbour(end, _age(_other) < _age(Allocation)).order_by(*order).scalar_subquery()


def _start_after() -> ScalarSelect[datetime]:
    """When the next holder of an allocation's GPU came."""
    start = _other.valid_from.expression
    order = _other.valid_from, _other.id
    return _neighbour(start, _age(_other) > _age(Allocation)).order_by(*order).scalar_subquery()


def _neighbour(what: ColumnElement[Any], which: ColumnElement[bool]) -> Select[Any]:
    same = _other.device_id == Allocation.device_id
    return select(what).where(same, which).correlate(Allocation).limit(1)


def _age(table: type[Allocation]) -> Tuple:
    return tuple_(table.valid_from, table.id)


@cache
def held_by_run() -> CTE:
    """`held` of the run :run_id at :now. Made once: to build it costs more than to run it."""
    return held(bindparam("now", type_=UtcDateTime), Run.id == bindparam("run_id"))


def of_run(run_id: int, now: datetime) -> dict[str, Any]:
    """The parameters of a statement that has `held_by_run` in it."""
    return {"run_id": run_id, "now": now}


def minute_counts(holding: CTE) -> ColumnElement[bool]:
    """Whether a device-minute lies wholly inside an allocation, and inside no other."""
    minute = device_minutes.c
    return and_(
        minute.device_id == holding.c.device_id,
        minute.minute >= holding.c.alone_from,
        minute.minute <= holding.c.alone_until - interval(MINUTE),
    )


def hour_counts(holding: CTE) -> ColumnElement[bool]:
    """Whether a device-hour lies wholly inside an allocation, and inside no other."""
    hour = device_hours.c
    return and_(
        hour.device_id == holding.c.device_id,
        hour.hour >= holding.c.alone_from,
        hour.hour <= holding.c.alone_until - interval(HOUR),
    )


def sample_counts(holding: CTE) -> ColumnElement[bool]:
    """Whether a sample lies wholly inside an allocation, and inside no other."""
    return and_(
        samples.c.device_id == holding.c.device_id,
        samples.c.ts >= holding.c.alone_from + interval(SAMPLE),
        samples.c.ts <= holding.c.alone_until,
    )


def allocations_of(session: Session, run_id: int, now: datetime) -> Sequence[AnyRow]:
    """The allocations of a run with node and device, in the order of node and place."""
    return session.execute(_allocations(), of_run(run_id, now)).all()


@cache
def _allocations() -> Select[Any]:
    holding = held_by_run()
    return (
        select(
            holding, Node.name.label("node"),
            Device.uuid, Device.model, Device.memory_mib, Device.power_limit_watts,
        )
        .join(Node, Node.id == holding.c.node_id)
        .outerjoin(Device, Device.id == holding.c.device_id)
        .order_by(Node.name, holding.c.place, holding.c.valid_from)
    )  # fmt: skip
