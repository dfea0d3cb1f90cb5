"""How a cluster's GPU time was used in steps of 10 minutes: made of minutes, and read again."""

from collections.abc import Sequence
from datetime import datetime
from functools import cache
from typing import Any

from sqlalchemy import (
    CTE,
    ColumnElement,
    Float,
    Select,
    Table,
    and_,
    bindparam,
    case,
    delete,
    func,
    insert,
    or_,
    select,
)
from sqlalchemy.orm import Session

from flopwatch_server.database.base import UtcDateTime
from flopwatch_server.efficiency.models import (
    KNOWN_STATES,
    NOT_HELD_COLUMNS,
    account_steps,
    cluster_steps,
)
from flopwatch_server.efficiency.repository import gpu_time
from flopwatch_server.efficiency.repository.figures import in_state
from flopwatch_server.efficiency.repository.hours import mean_of_sums, sum_and_count
from flopwatch_server.fleet.models import Cluster
from flopwatch_server.fleet.repository.placements import clusters_at
from flopwatch_server.jobs.models import Allocation, Run
from flopwatch_server.telemetry.models import STEP, device_minutes
from flopwatch_server.telemetry.repository import (
    AnyRow,
    epoch_seconds,
    held,
    instant,
    minute_counts,
)

_STEP_SECONDS = STEP.total_seconds()
_minute = device_minutes.c
_by_account = account_steps.c


def newest(session: Session) -> datetime | None:
    """The start of the newest step that has been made."""
    step: datetime | None = session.scalar(select(func.max(cluster_steps.c.step)))
    return step


def make(session: Session, step: datetime, now: datetime) -> None:
    """Make one step of all clusters, which is over by `now`."""
    holding = held(
        instant(now),
        Allocation.valid_from < instant(step + STEP),
        or_(Allocation.valid_to.is_(None), Allocation.valid_to > instant(step)),
    )
    _set(session, account_steps, step, _accounts(holding, step))
    _set(session, cluster_steps, step, _clusters(holding, step, now))


def _set(session: Session, table: Table, step: datetime, rows: Select[*tuple[Any, ...]]) -> None:
    session.execute(delete(table).where(table.c.step == instant(step)))
    session.execute(insert(table).from_select(rows.selected_columns.keys(), rows))


def _accounts(holding: CTE, step: datetime) -> Select[Any]:
    """Rows of `account_steps`."""
    who = (Run.cluster_id, Run.account)
    time = (
        select(*who, func.sum(_overlap(holding, step)).label("allocated_seconds"))
        .join(holding, holding.c.run_id == Run.id)
        .group_by(*who)
        .cte("time")
    )
    tensor = sum_and_count("tensor_active")
    numbers = {
        **{f"{state}_seconds": 60 * func.count().filter(in_state(state)) for state in KNOWN_STATES},
        "tensor_active_minutes": tensor["minutes"],
    }
    known = (
        select(
            *who,
            *(number.label(name) for name, number in numbers.items()),
            tensor["sum"].label("tensor_active_sum"),
        )
        .join(holding, holding.c.run_id == Run.id)
        .join(device_minutes, minute_counts(holding))
        .where(~holding.c.shared, *_within(step))
        .group_by(*who)
        .cte("known")
    )
    same = and_(known.c.cluster_id == time.c.cluster_id, known.c.account == time.c.account)
    return select(
        time,
        instant(step).label("step"),
        *(func.coalesce(known.c[name], 0).label(name) for name in numbers),
        known.c.tensor_active_sum,
    ).outerjoin(known, same)


def _clusters(holding: CTE, step: datetime, now: datetime) -> Select[*tuple[Any, ...]]:
    """Rows of `cluster_steps`, one for every cluster."""
    seen, taken = _seen(step), _taken(holding, step)
    not_held = _not_held(step, now)
    return (
        select(
            Cluster.id.label("cluster_id"),
            instant(step).label("step"),
            func.coalesce(taken.c.seconds, 0.0).label("allocated_seconds"),
            *(func.coalesce(not_held.c[name], 0.0).label(name) for name in NOT_HELD_COLUMNS),
            seen.c.power_watts,
            seen.c.cluster_id.is_not(None).label("is_seen"),
        )
        .outerjoin(taken, taken.c.cluster_id == Cluster.id)
        .outerjoin(not_held, not_held.c.cluster_id == Cluster.id)
        .outerjoin(seen, seen.c.cluster_id == Cluster.id)
    )


def _not_held(step: datetime, now: datetime) -> CTE:
    """Seconds of GPUs that nobody held, by cluster and state."""
    nodes = gpu_time.by_node(step, step + STEP, now).cte("by_node")
    sums = (func.sum(nodes.c[name], type_=Float).label(name) for name in NOT_HELD_COLUMNS)
    return select(nodes.c.cluster_id, *sums).group_by(nodes.c.cluster_id).cte("not_held")


def _seen(step: datetime) -> CTE:
    """Clusters with GPUs that reported: (cluster id, power of all that tell it)."""
    sat = clusters_at(step).cte("sat")
    powers = (
        select(_minute.device_id, func.avg(_minute.power_watts).label("power_watts"))
        .where(*_within(step))
        .group_by(_minute.device_id)
        .cte("powers")
    )
    return (
        select(sat.c.cluster_id, func.sum(powers.c.power_watts).label("power_watts"))
        .join(sat, sat.c.device_id == powers.c.device_id)
        .group_by(sat.c.cluster_id)
        .cte("seen")
    )


def _taken(holding: CTE, step: datetime) -> CTE:
    """Seconds for which the GPUs of each cluster were held: (cluster id, seconds).

    A GPU that several jobs share counts once; one of unknown ordinal is told apart by its holder.
    """
    gpu = (holding.c.node_id, holding.c.gres_ordinal,
           case((holding.c.gres_ordinal.is_(None), holding.c.id)))  # fmt: skip
    once = (
        select(
            func.min(Run.cluster_id).label("cluster_id"),
            func.least(func.sum(_overlap(holding, step)), _STEP_SECONDS).label("seconds"),
        )
        .join(Run, Run.id == holding.c.run_id)
        .group_by(*gpu)
        .cte("once")
    )
    seconds = func.sum(once.c.seconds, type_=Float).label("seconds")
    return select(once.c.cluster_id, seconds).group_by(once.c.cluster_id).cte("taken")


def _within(step: datetime) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
    return _minute.minute >= instant(step), _minute.minute < instant(step + STEP)


def _overlap(holding: CTE, step: datetime) -> ColumnElement[float]:
    """Seconds for which an allocation was held in a step."""
    end = func.least(holding.c.until, instant(step + STEP))
    common = end - func.greatest(holding.c.valid_from, instant(step))
    return func.greatest(epoch_seconds(common), 0.0, type_=Float)


def of_cluster(
    session: Session, cluster_id: int, start: datetime, end: datetime
) -> Sequence[AnyRow]:
    """Steps of a cluster in [start, end), in order, each with all of its accounts together."""
    window = {"cluster_id": cluster_id, "start": start, "end": end}
    return session.execute(_of_cluster(), window).all()


@cache
def _of_cluster() -> Select[Any]:
    together = _together().add_columns(_by_account.step).group_by(_by_account.step)
    accounts = together.where(*_in_window(account_steps)).cte("accounts")
    return (
        select(cluster_steps, *(column for column in accounts.c if column.key != "step"))
        .outerjoin(accounts, accounts.c.step == cluster_steps.c.step)
        .where(*_in_window(cluster_steps))
        .order_by(cluster_steps.c.step)
    )


def of_accounts(
    session: Session, cluster_id: int, start: datetime, end: datetime
) -> Sequence[AnyRow]:
    """Accounts of a cluster over [start, end), each over all steps, those that held most first."""
    window = {"cluster_id": cluster_id, "start": start, "end": end}
    return session.execute(_of_accounts(), window).all()


@cache
def _of_accounts() -> Select[Any]:
    allocated = func.sum(_by_account.allocated_seconds)
    return (
        _together()
        .add_columns(_by_account.account, allocated.label("allocated_seconds"))
        .where(*_in_window(account_steps))
        .group_by(_by_account.account)
        .order_by(allocated.desc(), _by_account.account)
    )


def _together() -> Select[Any]:
    """Seconds by state and mean tensor activity over rows of `account_steps`."""
    seconds = [
        func.sum(_by_account[name]).label(name)
        for name in (f"{state}_seconds" for state in KNOWN_STATES)
    ]
    return select(*seconds, mean_of_sums(_by_account, "tensor_active").label("tensor_active"))


def _in_window(table: Table) -> tuple[ColumnElement[bool], ...]:
    step = table.c.step
    start, end = (bindparam(name, type_=UtcDateTime) for name in ("start", "end"))
    return table.c.cluster_id == bindparam("cluster_id"), step >= start, step < end
