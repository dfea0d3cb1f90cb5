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
from typing import Any

from sqlalchemy import CTE, ColumnElement, Float, Select, func, select
from sqlalchemy.orm import Session

from flopwatch_server.database import timesets as ts
from flopwatch_server.database.timesets import Times
from flopwatch_server.efficiency.repository import gpu_told as told
from flopwatch_server.fleet.models import Node
from flopwatch_server.telemetry.repository import AnyRow, instant

STATES = ("allocated", "shared", "disputed", "free", "reserved", "drained", "down", "unknown")


def by_gpu(start: datetime, end: datetime, now: datetime) -> Select[Any]:
    """Seconds of every GPU within [start, end), as far as that is over, in each of `STATES`.

    Gives (cluster id, node id, device id, `<state>_seconds`, `either_seconds`); a GPU that was
    moved has a row for each node. The seconds of a row add up to the time that the GPU sat there.
    `either_seconds` are those of the unknown in which it was free, or the one that a job held.
    """
    window = _window(start, end, now)
    return _by_gpu(window, told.holds(window, now), now)


def by_node(start: datetime, end: datetime, now: datetime) -> Select[Any]:
    """The same for all GPUs of each node together: (cluster id, node id, `<state>_seconds`)."""
    window = _window(start, end, now)
    holds = told.holds(window, now)
    gpus, loose = _by_gpu(window, holds, now).cte("gpus"), told.loose_seconds(holds)
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
    return ts.lasting(instant(start), instant(min(end, now)))


def _by_gpu(window: ColumnElement[Any], holds: CTE, now: datetime) -> Select[Any]:
    known = told.told(window, holds, now)
    held, there = known.c.held, known.c.there
    first = _stage(
        "first",
        known,
        disputed=ts.both(held, known.c.disputed),
        rest=ts.without(there, held, known.c.untold),
    )
    serves = ts.both(first.c.rest, first.c.serving)
    second = _stage(
        "second", first,
        shared=ts.without(ts.both(first.c.held, first.c.shared), first.c.disputed),
        down=ts.both(first.c.rest, first.c.down), drained=ts.both(first.c.rest, first.c.drained),
        reserved=ts.either(ts.both(first.c.rest, first.c.reserved), ts.both(serves, first.c.kept)),
        open_to_all=ts.without(serves, first.c.kept),
    )  # fmt: skip
    third = _stage("third", second, free=ts.without(second.c.open_to_all, second.c.loose))
    state = third.c
    others = (state[name] for name in ("held", "free", "reserved", "drained", "down"))
    sets = _stage(
        "sets", third,
        allocated=ts.without(state.held, state.disputed, state.shared),
        unknown=ts.without(state.there, *others),
        either=ts.both(state.open_to_all, state.loose),
    )  # fmt: skip
    return select(
        sets.c.cluster_id, sets.c.node_id, sets.c.device_id,
        *(ts.seconds(sets.c[name]).label(f"{name}_seconds") for name in (*STATES, "either")),
    )  # fmt: skip


def _stage(name: str, rows: CTE, **times: Times) -> CTE:
    """The rows with these times beside the others, or in place of them, worked out once: each is
    used several times, and PostgreSQL would write it out wherever it is."""
    others = (column for column in rows.c if column.key not in times)
    made = (these.label(each) for each, these in times.items())
    return select(*others, *made).offset(0).cte(name)
