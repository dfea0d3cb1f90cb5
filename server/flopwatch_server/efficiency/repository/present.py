"""What GPUs that are held do now, and since when."""

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta

from sqlalchemy import (
    CTE,
    ColumnElement,
    Row,
    and_,
    case,
    func,
    literal_column,
    or_,
    select,
    true,
)
from sqlalchemy.orm import Session
from sqlalchemy.sql.selectable import LateralFromClause

from flopwatch_server.access.principal import Principal, may_see
from flopwatch_server.efficiency.repository.figures import newest_minute
from flopwatch_server.fleet.models import Cluster, Device, Node
from flopwatch_server.jobs.models import Allocation, Run
from flopwatch_server.telemetry.models import STATES, device_minutes
from flopwatch_server.telemetry.repository import AnyRow, epoch_seconds, held, instant, interval

LOOK_BACK = timedelta(minutes=3)
"""How long a minute that has not come yet may be missing before the state now is unknown."""

SINCE_LOOK_BACK = timedelta(days=7)


def is_open(now: datetime) -> ColumnElement[bool]:
    """Whether an allocation holds its GPU at `now`."""
    return and_(
        Allocation.valid_from <= instant(now),
        or_(Allocation.valid_to.is_(None), Allocation.valid_to > instant(now)),
    )


def state_now(now: datetime, *conditions: ColumnElement[bool]) -> CTE:
    """Open allocations of runs that meet `conditions`, each with its state in the newest minute.

    That is the newest complete minute which lies inside the allocation and has been stored, at
    most `LOOK_BACK` older than the newest complete one by the clock: samples arrive in batches. If
    there is none the state is unknown; so it is where another run is said to hold the GPU too, and
    while the scheduler lets no process of the run work. A shared GPU's state says nothing about one
    of its holders.
    """
    holding = held(now, is_open(now), *conditions)
    newest = newest_minute(now)
    minute = (
        select(device_minutes)
        .where(
            device_minutes.c.device_id == holding.c.device_id,
            device_minutes.c.minute >= holding.c.alone_from,
            device_minutes.c.minute.between(instant(newest - LOOK_BACK), instant(newest)),
        )
        .order_by(device_minutes.c.minute.desc())
        .limit(1)
        .lateral("newest")
    )
    words = {position: state for position, state in enumerate(STATES)}
    state = case(
        (holding.c.shared, "shared"),
        (~holding.c.working | (holding.c.alone_until < holding.c.until), "unknown"),
        else_=func.coalesce(case(words, value=minute.c.state), "unknown"),
    )
    return (
        select(
            holding, state.label("state"), minute.c.minute,
            case((minute.c.samples_suspect == 0, minute.c.tensor_active)).label("tensor_active"),
        )
        .outerjoin(minute, true())
        .cte()
    )  # fmt: skip


def unbroken(present: CTE) -> LateralFromClause:
    """A lateral (since): when the unbroken run of minutes in the state now began, 7 days at most.

    A missing minute breaks the run, as another state does.
    """
    earlier, row = device_minutes.alias("earlier"), device_minutes.alias("row")
    oldest = func.greatest(present.c.alone_from, present.c.minute - interval(SINCE_LOOK_BACK))
    # The newest minute in another state bounds what has to be read.
    other = (
        select(earlier.c.minute)
        .where(
            earlier.c.device_id == present.c.device_id,
            earlier.c.minute >= oldest,
            earlier.c.minute < present.c.minute,
            earlier.c.state != _position(present.c.state),
        )
        .order_by(earlier.c.minute.desc())
        .limit(1)
        .correlate(present)
        .scalar_subquery()
    )
    rank = func.row_number().over(order_by=row.c.minute.desc())
    numbered = (
        select(row.c.minute, rank.label("place"))
        .where(
            present.c.state != "shared",
            row.c.device_id == present.c.device_id,
            row.c.state == _position(present.c.state),
            row.c.minute >= oldest,
            row.c.minute > func.coalesce(other, literal_column("'-infinity'::timestamptz")),
            row.c.minute <= present.c.minute,
        )
        .correlate(present)
        .subquery("numbered")
    )
    follows = epoch_seconds(present.c.minute - numbered.c.minute) == 60 * (numbered.c.place - 1)
    return select(func.min(numbered.c.minute).label("since")).where(follows).lateral("unbroken")


def _position(state: ColumnElement[str]) -> ColumnElement[int]:
    return case({word: position for position, word in enumerate(STATES)}, value=state)


def open_allocations(
    session: Session, principal: Principal, cluster: str | None, state: str | None, now: datetime
) -> Sequence[AnyRow]:
    """GPUs held now by runs that `principal` may see, with state and since, longest first."""
    present = state_now(now, may_see(principal, Run.user_name, Run.account))
    lasting = unbroken(present)
    query = (
        select(
            present, lasting.c.since, Cluster.name.label("cluster"), Node.name.label("node"),
            Device.uuid, Device.model, Run.display_id, Run.user_name, Run.account,
        )
        .join(Run, Run.id == present.c.run_id)
        .join(Cluster, Cluster.id == Run.cluster_id)
        .join(Node, Node.id == present.c.node_id)
        .outerjoin(Device, Device.id == present.c.device_id)
        .outerjoin(lasting, true())
        .order_by(lasting.c.since.asc().nulls_last(), Node.name, present.c.place, present.c.id)
    )  # fmt: skip
    if cluster is not None:
        query = query.where(Cluster.name == cluster)
    if state is not None:
        query = query.where(present.c.state == state)
    return session.execute(query).all()


def states_of(
    session: Session, run_ids: Collection[int], now: datetime
) -> Sequence[Row[int, int, str]]:
    """Open allocations of these runs: (id, run id, state)."""
    present = state_now(now, Run.id.in_(run_ids))
    return session.execute(select(present.c.id, present.c.run_id, present.c.state)).all()


def idle_since(session: Session, run_ids: Collection[int], now: datetime) -> dict[int, datetime]:
    """By run id: since when all of its GPUs that are idle now have been so, not only the first."""
    present = state_now(now, Run.id.in_(run_ids))
    lasting = unbroken(present)
    rows = session.execute(
        select(present.c.run_id, func.max(lasting.c.since))
        .join(lasting, true())
        .where(present.c.state == "idle")
        .group_by(present.c.run_id)
    )
    return {run_id: since for run_id, since in rows}
