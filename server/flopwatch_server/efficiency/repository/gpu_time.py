"""What became of the time of every GPU: each second of it is in one state.

What is held is so by the scheduler's word: *allocated* to one job, *shared* by several that were
given shards of it, or *disputed* where two are said to hold it or processes speak against it. What
nobody holds is *down*, *drained* or *reserved* where its node is, and else *free*. Nothing is free
by a guess: where the scheduler did not tell, or a job holds some GPU of the node and nobody knows
which, it is *unknown*. Only a machine that no scheduler shares out serves while its agent reports.

Every set of seconds is a multirange of PostgreSQL, so all of this is exact.

Where a job holds one GPU of a node that has two, each of the two is unknown, and yet one is free:
`by_node` counts it so, since it need not say which.
"""

from collections.abc import Sequence
from datetime import datetime
from functools import partial
from typing import Any

from sqlalchemy import (
    CTE,
    BinaryExpression,
    ColumnElement,
    Float,
    ScalarSelect,
    Select,
    and_,
    case,
    func,
    literal_column,
    not_,
    select,
)
from sqlalchemy.dialects.postgresql import TSTZMULTIRANGE, TSTZRANGE
from sqlalchemy.orm import Session, aliased

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
from flopwatch_server.telemetry.repository import (
    MINUTE,
    AnyRow,
    epoch_seconds,
    instant,
    interval,
)

STATES = ("allocated", "shared", "disputed", "free", "reserved", "drained", "down", "unknown")

Times = ColumnElement[Any]
_never = literal_column("'{}'::tstzmultirange", TSTZMULTIRANGE)
_both = partial(func.multirange_intersect, type_=TSTZMULTIRANGE)
_either = partial(func.multirange_union, type_=TSTZMULTIRANGE)
_all_of = partial(func.range_agg, type_=TSTZMULTIRANGE)


def by_gpu(start: datetime, end: datetime, now: datetime) -> Select[Any]:
    """Seconds of every GPU within [start, end), as far as that is over, in each of `STATES`.

    Gives (cluster id, node id, device id, `<state>_seconds`, `either_seconds`); a GPU that was
    moved has a row for each node. The seconds of a row add up to the time that the GPU sat there.
    `either_seconds` are those of the unknown in which it was free, or the one that a job held.
    """
    window = _window(start, end, now)
    return _by_gpu(window, _holds(window, now), now)


def by_node(start: datetime, end: datetime, now: datetime) -> Select[Any]:
    """The same for all GPUs of each node together: (cluster id, node id, `<state>_seconds`)."""
    window = _window(start, end, now)
    holds = _holds(window, now)
    gpus, loose = _by_gpu(window, holds, now).cte("gpus"), _loose_seconds(holds)
    sums: dict[str, ColumnElement[float]] = {
        state: func.sum(gpus.c[f"{state}_seconds"], type_=Float) for state in STATES
    }
    either = func.sum(gpus.c.either_seconds) - func.coalesce(func.max(loose.c.seconds), 0.0)
    besides = func.greatest(either, 0.0, type_=Float)
    sums |= {"free": sums["free"] + besides, "unknown": sums["unknown"] - besides}
    return (
        select(
            gpus.c.cluster_id, gpus.c.node_id,
            *(seconds.label(f"{state}_seconds") for state, seconds in sums.items()),
        )
        .outerjoin(loose, loose.c.node_id == gpus.c.node_id)
        .group_by(gpus.c.cluster_id, gpus.c.node_id)
    )  # fmt: skip


def of_cluster(
    session: Session, cluster_id: int, start: datetime, end: datetime, now: datetime
) -> Sequence[AnyRow]:
    """The nodes of one cluster: (name of the node, `<state>_seconds`), in the order of names."""
    nodes = by_node(start, end, now).cte("by_node")
    return session.execute(
        select(Node.name.label("node"), nodes)
        .join(Node, Node.id == nodes.c.node_id)
        .where(nodes.c.cluster_id == cluster_id)
        .order_by(Node.name)
    ).all()


def _window(start: datetime, end: datetime, now: datetime) -> ColumnElement[Any]:
    return _lasting(instant(start), instant(min(end, now)))


def _by_gpu(window: ColumnElement[Any], holds: CTE, now: datetime) -> Select[Any]:
    told = _told(window, holds, now)
    held, there = told.c.held, told.c.there
    first = _stage(
        "first", told, disputed=_both(held, told.c.disputed), rest=_less(there, held, told.c.untold)
    )
    serves = _both(first.c.rest, first.c.serving)
    second = _stage(
        "second", first,
        shared=_less(_both(first.c.held, first.c.shared), first.c.disputed),
        down=_both(first.c.rest, first.c.down), drained=_both(first.c.rest, first.c.drained),
        reserved=_either(_both(first.c.rest, first.c.reserved), _both(serves, first.c.kept)),
        open_to_all=_less(serves, first.c.kept),
    )  # fmt: skip
    third = _stage("third", second, free=_less(second.c.open_to_all, second.c.loose))
    state = third.c
    known = (state[name] for name in ("held", "free", "reserved", "drained", "down"))
    sets = _stage(
        "sets", third,
        allocated=_less(state.held, state.disputed, state.shared),
        unknown=_less(state.there, *known),
        either=_both(state.open_to_all, state.loose),
    )  # fmt: skip
    return select(
        sets.c.cluster_id, sets.c.node_id, sets.c.device_id,
        *(_seconds(sets.c[name]).label(f"{name}_seconds") for name in (*STATES, "either")),
    )  # fmt: skip


def _stage(name: str, rows: CTE, **times: Times) -> CTE:
    """The rows with these times beside the others, or in place of them, worked out once: each is
    used several times, and PostgreSQL would write it out wherever it is."""
    others = (column for column in rows.c if column.key not in times)
    made = (these.label(each) for each, these in times.items())
    return select(*others, *made).offset(0).cte(name)


def _told(window: ColumnElement[Any], holds: CTE, now: datetime) -> CTE:
    """When each GPU was there, and all that was told of it, its node and its cluster."""
    there, devices, loose = _there(window), _devices(holds), _loose(holds)
    nodes, kept, untold = _services(window), _kept(window), _untold(window, now)
    reported = _reported(there, window)
    serving = func.coalesce(nodes.c.serving, reported.c.times, _never)
    return (
        select(
            there.c.cluster_id, there.c.node_id, there.c.device_id, there.c.there,
            _both(there.c.there, func.coalesce(devices.c.held, _never)).label("held"),
            func.coalesce(devices.c.shared, _never).label("shared"),
            func.coalesce(devices.c.disputed, _never).label("disputed"),
            serving.label("serving"),
            *(func.coalesce(nodes.c[name], _never).label(name)
              for name in ("reserved", "drained", "down")),
            func.coalesce(kept.c.times, _never).label("kept"),
            func.coalesce(loose.c.times, _never).label("loose"),
            func.coalesce(untold.c.times, _never).label("untold"),
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
    sat = _lasting(Placement.valid_from, Placement.valid_to)
    is_local = and_(Node.scheduler_state.is_(None), local.exists())
    return (
        select(
            Node.cluster_id, Placement.node_id, Placement.device_id,
            _all_of(_common(sat, window)).label("there"), is_local.label("is_local"),
        )
        .join(Node, Node.id == Placement.node_id)
        .where(_overlap(sat, window))
        .group_by(Node.id, Placement.node_id, Placement.device_id)
        .cte("there")
    )  # fmt: skip


def _holds(window: ColumnElement[Any], now: datetime) -> CTE:
    """Allocations within the window, and when in it they held their GPU."""
    end = func.coalesce(Allocation.valid_to, instant(now))
    held = _lasting(Allocation.valid_from, end)
    return (
        select(
            Allocation.id, Allocation.device_id, Allocation.node_id, Allocation.gres_ordinal,
            Allocation.shared,
            (Allocation.confidence == "disputed").label("is_disputed"),
            _common(held, window).label("time"),
        )
        # What a range would say, in words that an index knows.
        .where(Allocation.valid_from < func.upper(window), end > func.lower(window))
        .cte("holds")
    )  # fmt: skip


def _devices(holds: CTE) -> CTE:
    """When each GPU was held, when by several that share it, and when that is disputed: by some
    sign, or since two hold it that were not both told to share it."""
    times = _all_of(holds.c.time)
    known = (
        select(
            holds.c.device_id,
            times.label("held"),
            *(
                func.coalesce(times.filter(which), _never).label(name)
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
    clash = _either(_both(known.c.shared, known.c.alone), func.coalesce(twice.c.times, _never))
    return (
        select(
            known.c.device_id, known.c.held, known.c.shared,
            _either(known.c.disputed, clash).label("disputed"),
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
        select(row.c.device_id, _all_of(both).label("times"))
        .where(row.c.before > row.c.start)
        .group_by(row.c.device_id)
        .cte("twice")
    )


def _loose(holds: CTE) -> CTE:
    """When some GPU of a node was held, and nobody knows which."""
    return (
        select(holds.c.node_id, _all_of(holds.c.time).label("times"))
        .where(holds.c.device_id.is_(None))
        .group_by(holds.c.node_id)
        .cte("loose")
    )


def _loose_seconds(holds: CTE) -> CTE:
    """For how long they were, by node; one of unknown ordinal is told apart by its holder."""
    gpu = (holds.c.node_id, holds.c.gres_ordinal,
           case((holds.c.gres_ordinal.is_(None), holds.c.id)))  # fmt: skip
    one = (
        select(holds.c.node_id, _all_of(holds.c.time).label("times"))
        .where(holds.c.device_id.is_(None))
        .group_by(*gpu)
        .cte("loose_gpus")
    )
    seconds = func.sum(_seconds(one.c.times)).label("seconds")
    return select(one.c.node_id, seconds).group_by(one.c.node_id).cte("loose_seconds")


def _services(window: ColumnElement[Any]) -> CTE:
    """When each node that the scheduler tells of was in which service."""
    lasted = _lasting(NodeState.valid_from, NodeState.valid_to)
    times = _all_of(_common(lasted, window))
    known = ("serving", "reserved", "drained", "down")
    return (
        select(
            NodeState.node_id,
            *(
                func.coalesce(times.filter(NodeState.service == name), _never).label(name)
                for name in known
            ),
        )
        .where(_overlap(lasted, window))
        .group_by(NodeState.node_id)
        .cte("services")
    )


def _kept(window: ColumnElement[Any]) -> CTE:
    """When a reservation kept all of a node."""
    lasted = _lasting(Reservation.valid_from, Reservation.valid_to)
    named = (
        select(
            Reservation.cluster_id, func.unnest(Reservation.nodes).label("name"),
            _common(lasted, window).label("time"),
        )
        .where(Reservation.is_whole, _overlap(lasted, window))
        .cte("reserved_names")
    )  # fmt: skip
    is_of = and_(Node.cluster_id == named.c.cluster_id, Node.name == named.c.name)
    return (
        select(Node.id.label("node_id"), _all_of(named.c.time).label("times"))
        .join(named, is_of)
        .group_by(Node.id)
        .cte("kept")
    )


def _untold(window: ColumnElement[Any], now: datetime) -> CTE:
    """When none of a cluster's sources told who holds what."""
    source = SchedulerSource
    over = aliased(SchedulerOutage)
    lasted = _lasting(over.valid_from, over.valid_to)
    ended = (
        select(_all_of(_common(lasted, window)))
        .where(over.cluster_id == source.cluster_id, over.kind == source.kind,
               _overlap(lasted, window))
        .correlate(source)
        .scalar_subquery()
    )  # fmt: skip
    since = func.tstzrange(source.last_success_at, None, type_=TSTZRANGE)
    goes_on = case((is_out(instant(now)), func.tstzmultirange(_common(since, window))))
    of_kind = (
        select(
            source.cluster_id,
            _either(func.coalesce(ended, _never), func.coalesce(goes_on, _never)).label("times"),
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
        select(minute.device_id, _all_of(lasted).label("times"))
        .join(there, and_(there.c.device_id == minute.device_id, there.c.is_local))
        .where(
            minute.minute > func.lower(window) - interval(MINUTE),
            minute.minute < func.upper(window),
            minute.samples_received > 0,
        )
        .group_by(minute.device_id)
        .cte("reported")
    )


def _less(times: Times, *others: Times) -> Times:
    """Those times without these."""
    for other in others:
        times = func.multirange_minus(times, other, type_=TSTZMULTIRANGE)
    return times


def _lasting(start: Any, end: Any) -> Times:
    """[start, end); without an end for ever. One that ends before it starts never was: clocks and
    late news make such rows, and PostgreSQL makes no range of them."""
    last = case((end.is_not(None), func.greatest(start, end)))
    return func.tstzrange(start, last, type_=TSTZRANGE)


def _common(one: Times, other: Times) -> Times:
    return func.range_intersect(one, other, type_=TSTZRANGE)


def _overlap(one: Times, other: Times) -> BinaryExpression[bool]:
    return one.bool_op("&&")(other)


def _seconds(times: Times) -> ScalarSelect[float]:
    """How long they are together."""
    time = func.unnest(times, type_=TSTZRANGE).column_valued("time")
    lengths = epoch_seconds(func.upper(time) - func.lower(time))
    return select(func.coalesce(func.sum(lengths), 0.0, type_=Float)).scalar_subquery()
