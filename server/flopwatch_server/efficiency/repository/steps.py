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
    cast,
    delete,
    func,
    insert,
    or_,
    select,
)
from sqlalchemy.orm import Session

from flopwatch_server.database.base import UtcDateTime
from flopwatch_server.efficiency.models import KNOWN_STATES, account_steps, cluster_steps
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
    _set(session, cluster_steps, step, _clusters(holding, step))


def _set(session: Session, table: Table, step: datetime, rows: Select[Any]) -> None:
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


def _clusters(holding: CTE, step: datetime) -> Select[Any]:
    """Rows of `cluster_steps`, one for every cluster."""
    seen, taken = _seen(step), _taken(holding, step)
    free = func.greatest(seen.c.seconds - func.coalesce(taken.c.seconds, 0.0), 0.0)
    same = and_(taken.c.device_id == seen.c.device_id, taken.c.cluster_id == seen.c.cluster_id)
    gpus = (
        select(
            func.coalesce(seen.c.cluster_id, taken.c.cluster_id).label("cluster_id"),
            taken.c.seconds, free.label("free"), seen.c.power_watts, seen.c.device_id,
        )
        .select_from(seen.join(taken, same, full=True))
        .cte("gpus")
    )  # fmt: skip
    return (
        select(
            Cluster.id.label("cluster_id"),
            instant(step).label("step"),
            func.coalesce(func.sum(gpus.c.seconds), 0.0).label("allocated_seconds"),
            cast(func.coalesce(func.sum(gpus.c.free), 0), Float).label("free_seconds"),
            func.sum(gpus.c.power_watts).label("power_watts"),
            (func.count(gpus.c.device_id) > 0).label("is_seen"),
        )
        .outerjoin(gpus, gpus.c.cluster_id == Cluster.id)
        .group_by(Cluster.id)
    )


def _seen(step: datetime) -> CTE:
    """GPUs of which minutes are there: (cluster id, device id, seconds that reported, power)."""
    sat = clusters_at(step).cte("sat")
    reported = func.count().filter(_minute.samples_received > 0)
    told = (
        select(
            _minute.device_id,
            func.avg(_minute.power_watts).label("power_watts"),
            (reported * 60.0).label("seconds"),
        )
        .where(*_within(step))
        .group_by(_minute.device_id)
        .cte("told")
    )
    return select(sat.c.cluster_id, told).join(sat, sat.c.device_id == told.c.device_id).cte("seen")


def _taken(holding: CTE, step: datetime) -> CTE:
    """Seconds for which each GPU was held: (cluster id, device id, seconds).

    A GPU that several jobs share counts once; one of unknown ordinal is told apart by its holder.
    """
    gpu = (holding.c.node_id, holding.c.gres_ordinal,
           case((holding.c.gres_ordinal.is_(None), holding.c.id)))  # fmt: skip
    seconds = func.sum(_overlap(holding, step))
    return (
        select(
            func.min(Run.cluster_id).label("cluster_id"),
            func.max(holding.c.device_id).label("device_id"),
            func.least(seconds, _STEP_SECONDS, type_=Float).label("seconds"),
        )
        .join(Run, Run.id == holding.c.run_id)
        .group_by(*gpu)
        .cte("taken")
    )


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
