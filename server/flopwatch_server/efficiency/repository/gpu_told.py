"""What was told of GPUs over a window: where they sat, who held them, what their nodes were there
for, and when nobody told anything."""

from datetime import datetime
from typing import Any

from sqlalchemy import CTE, ColumnElement, and_, case, func, not_, select
from sqlalchemy.dialects.postgresql import TSTZMULTIRANGE, TSTZRANGE
from sqlalchemy.orm import aliased

from flopwatch_server.database import timesets as ts
from flopwatch_server.fleet.models import Node, Placement
from flopwatch_server.jobs.models import Allocation
from flopwatch_server.scheduler.models import (
    ASKED,
    LOCAL,
    NodeState,
    Reservation,
    SchedulerOutage,
    SchedulerSource,
)
from flopwatch_server.scheduler.repository.sources import is_out
from flopwatch_server.telemetry.models import device_minutes
from flopwatch_server.telemetry.repository import MINUTE, instant, interval


def told(window: ColumnElement[Any], holds: CTE, now: datetime) -> CTE:
    """When each GPU was there, and all that was told of it, its node and its cluster."""
    there, devices, loose = _there(window), _devices(holds), _loose(holds)
    nodes, kept, untold = _services(window), _kept(window), _untold(window, now)
    reported = _reported(there, window)
    serving = func.coalesce(nodes.c.serving, reported.c.times, ts.NEVER)
    return (
        select(
            there.c.cluster_id, there.c.node_id, there.c.device_id, there.c.there,
            ts.both(there.c.there, func.coalesce(devices.c.held, ts.NEVER)).label("held"),
            func.coalesce(devices.c.shared, ts.NEVER).label("shared"),
            func.coalesce(devices.c.disputed, ts.NEVER).label("disputed"),
            serving.label("serving"),
            *(func.coalesce(nodes.c[name], ts.NEVER).label(name)
              for name in ("reserved", "drained", "down")),
            func.coalesce(kept.c.times, ts.NEVER).label("kept"),
            func.coalesce(loose.c.times, ts.NEVER).label("loose"),
            func.coalesce(untold.c.times, ts.NEVER).label("untold"),
        )
        .outerjoin(devices, devices.c.device_id == there.c.device_id)
        .outerjoin(loose, loose.c.node_id == there.c.node_id)
        .outerjoin(nodes, nodes.c.node_id == there.c.node_id)
        .outerjoin(kept, kept.c.node_id == there.c.node_id)
        .outerjoin(untold, untold.c.cluster_id == there.c.cluster_id)
        .outerjoin(reported, reported.c.device_id == there.c.device_id)
        .offset(0)
        .cte("told")
    )  # fmt: skip


def _there(window: ColumnElement[Any]) -> CTE:
    """Where each GPU sat: (cluster, node, device, times, whether no scheduler shares it out)."""
    local = select(SchedulerSource.kind).where(
        SchedulerSource.cluster_id == Node.cluster_id, SchedulerSource.kind == LOCAL
    )
    sat = ts.lasting(Placement.valid_from, Placement.valid_to)
    is_local = and_(Node.scheduler_state.is_(None), local.exists())
    return (
        select(
            Node.cluster_id, Placement.node_id, Placement.device_id,
            ts.together(ts.common(sat, window)).label("there"), is_local.label("is_local"),
        )
        .join(Node, Node.id == Placement.node_id)
        .where(ts.overlap(sat, window))
        .group_by(Node.id, Placement.node_id, Placement.device_id)
        .cte("there")
    )  # fmt: skip


def holds(window: ColumnElement[Any], now: datetime) -> CTE:
    """Allocations within the window, and when in it they held their GPU."""
    end = func.coalesce(Allocation.valid_to, instant(now))
    held = ts.lasting(Allocation.valid_from, end)
    return (
        select(
            Allocation.id, Allocation.device_id, Allocation.node_id, Allocation.gres_ordinal,
            Allocation.shared,
            (Allocation.confidence == "disputed").label("is_disputed"),
            ts.common(held, window).label("time"),
        )
        # What a range would say, in words that an index knows.
        .where(Allocation.valid_from < func.upper(window), end > func.lower(window))
        .cte("holds")
    )  # fmt: skip


def _devices(holds: CTE) -> CTE:
    """When each GPU was held, when by several that share it, and when that is disputed: by some
    sign, or since two hold it that were not both told to share it."""
    times = ts.together(holds.c.time)
    known = (
        select(
            holds.c.device_id,
            times.label("held"),
            *(
                func.coalesce(times.filter(which), ts.NEVER).label(name)
                for name, which in (
                    ("shared", holds.c.shared),
                    ("alone", not_(holds.c.shared)),
                    ("disputed", holds.c.is_disputed),
                )
            ),
        )
        .where(holds.c.device_id.is_not(None))
        .group_by(holds.c.device_id)
        .cte("known")
    )
    twice = _twice(holds)
    clash = ts.either(
        ts.both(known.c.shared, known.c.alone), func.coalesce(twice.c.times, ts.NEVER)
    )
    return (
        select(
            known.c.device_id, known.c.held, known.c.shared,
            ts.either(known.c.disputed, clash).label("disputed"),
        )
        .outerjoin(twice, twice.c.device_id == known.c.device_id)
        .cte("devices")
    )  # fmt: skip


def _twice(holds: CTE) -> CTE:
    """When two held the same GPU, each for itself alone.

    In the order of their starts, each is held against the latest end before it: one pass, however
    many jobs there were.
    """
    start, end = func.lower(holds.c.time), func.upper(holds.c.time)
    before = func.max(end).over(
        partition_by=holds.c.device_id, order_by=(start, holds.c.id), rows=(None, -1)
    )
    row = (
        select(holds.c.device_id, start.label("start"), end.label("end"), before.label("before"))
        .where(holds.c.device_id.is_not(None), not_(holds.c.shared))
        .cte("in_order")
    )
    both = func.tstzrange(row.c.start, func.least(row.c.end, row.c.before), type_=TSTZRANGE)
    return (
        select(row.c.device_id, ts.together(both).label("times"))
        .where(row.c.before > row.c.start)
        .group_by(row.c.device_id)
        .cte("twice")
    )


def _loose(holds: CTE) -> CTE:
    """When some GPU of a node was held, and nobody knows which."""
    return (
        select(holds.c.node_id, ts.together(holds.c.time).label("times"))
        .where(holds.c.device_id.is_(None))
        .group_by(holds.c.node_id)
        .cte("loose")
    )


def loose_seconds(holds: CTE) -> CTE:
    """For how long they were, by node; one of unknown ordinal is told apart by its holder."""
    gpu = (holds.c.node_id, holds.c.gres_ordinal,
           case((holds.c.gres_ordinal.is_(None), holds.c.id)))  # fmt: skip
    one = (
        select(holds.c.node_id, ts.together(holds.c.time).label("times"))
        .where(holds.c.device_id.is_(None))
        .group_by(*gpu)
        .cte("loose_gpus")
    )
    seconds = func.sum(ts.seconds(one.c.times)).label("seconds")
    return select(one.c.node_id, seconds).group_by(one.c.node_id).cte("loose_seconds")


def _services(window: ColumnElement[Any]) -> CTE:
    """When each node that the scheduler tells of was in which service."""
    lasted = ts.lasting(NodeState.valid_from, NodeState.valid_to)
    times = ts.together(ts.common(lasted, window))
    known = ("serving", "reserved", "drained", "down")
    return (
        select(
            NodeState.node_id,
            *(
                func.coalesce(times.filter(NodeState.service == name), ts.NEVER).label(name)
                for name in known
            ),
        )
        .where(ts.overlap(lasted, window))
        .group_by(NodeState.node_id)
        .cte("services")
    )


def _kept(window: ColumnElement[Any]) -> CTE:
    """When a reservation kept all of a node."""
    lasted = ts.lasting(Reservation.valid_from, Reservation.valid_to)
    named = (
        select(
            Reservation.cluster_id, func.unnest(Reservation.nodes).label("name"),
            ts.common(lasted, window).label("time"),
        )
        .where(Reservation.is_whole, ts.overlap(lasted, window))
        .cte("reserved_names")
    )  # fmt: skip
    is_of = and_(Node.cluster_id == named.c.cluster_id, Node.name == named.c.name)
    return (
        select(Node.id.label("node_id"), ts.together(named.c.time).label("times"))
        .join(named, is_of)
        .group_by(Node.id)
        .cte("kept")
    )


def _untold(window: ColumnElement[Any], now: datetime) -> CTE:
    """When none of a cluster's sources told who holds what."""
    source = SchedulerSource
    over = aliased(SchedulerOutage)
    lasted = ts.lasting(over.valid_from, over.valid_to)
    ended = (
        select(ts.together(ts.common(lasted, window)))
        .where(over.cluster_id == source.cluster_id, over.kind == source.kind,
               ts.overlap(lasted, window))
        .correlate(source)
        .scalar_subquery()
    )  # fmt: skip
    since = func.tstzrange(source.last_success_at, None, type_=TSTZRANGE)
    goes_on = case((is_out(instant(now)), func.tstzmultirange(ts.common(since, window))))
    of_kind = (
        select(
            source.cluster_id,
            ts.either(func.coalesce(ended, ts.NEVER), func.coalesce(goes_on, ts.NEVER)).label(
                "times"
            ),
        )
        .where(source.kind.in_(ASKED), source.last_success_at.is_not(None))
        .cte("untold_by_kind")
    )  # fmt: skip
    together = func.range_intersect_agg(of_kind.c.times, type_=TSTZMULTIRANGE)
    return select(of_kind.c.cluster_id, together.label("times")).group_by(
        of_kind.c.cluster_id
    ).cte("untold")  # fmt: skip


def _reported(there: CTE, window: ColumnElement[Any]) -> CTE:
    """When GPUs reported that no scheduler shares out."""
    minute = device_minutes.c
    lasted = func.tstzrange(minute.minute, minute.minute + interval(MINUTE), type_=TSTZRANGE)
    return (
        select(minute.device_id, ts.together(lasted).label("times"))
        .join(there, and_(there.c.device_id == minute.device_id, there.c.is_local))
        .where(
            minute.minute > func.lower(window) - interval(MINUTE),
            minute.minute < func.upper(window),
            minute.samples_received > 0,
        )
        .group_by(minute.device_id)
        .cte("reported")
    )
