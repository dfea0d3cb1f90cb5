"""What GPUs that are held do now, and since when."""

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from functools import cache

from sqlalchemy import (
    ARRAY,
    CTE,
    BigInteger,
    ColumnElement,
    FromClause,
    Row,
    ScalarSelect,
    Select,
    and_,
    any_,
    bindparam,
    case,
    func,
    literal_column,
    or_,
    select,
    true,
    tuple_,
    union,
    union_all,
)
from sqlalchemy.orm import Session, aliased
from sqlalchemy.sql.selectable import LateralFromClause

from flopwatch_server.access.principal import Principal
from flopwatch_server.access.visibility import may_see
from flopwatch_server.database.base import UtcDateTime
from flopwatch_server.efficiency.models import KNOWN_STATES, allocation_hours
from flopwatch_server.efficiency.repository.figures import newest_minute
from flopwatch_server.fleet.models import Cluster, Device, Node
from flopwatch_server.jobs.models import Allocation, Run
from flopwatch_server.scheduler.records import WORKING_STATES
from flopwatch_server.telemetry.models import STATES, device_minutes
from flopwatch_server.telemetry.repository import AnyRow, epoch_seconds, interval

LOOK_BACK = timedelta(minutes=3)
"""How long a minute that has not come yet may be missing before the state now is unknown."""

SINCE_LOOK_BACK = timedelta(days=7)
_HOUR = timedelta(hours=1)


# Statements about now are built once, and know the time as parameters: building them costs more
# than running them.
_now = bindparam("now", type_=UtcDateTime)
_newest = bindparam("newest", type_=UtcDateTime)
_late_from = bindparam("late_from", type_=UtcDateTime)


def moment(now: datetime) -> dict[str, datetime]:
    """The parameters of every statement here that asks for what is `now`."""
    newest = newest_minute(now)
    return {"now": now, "newest": newest, "late_from": newest - LOOK_BACK}


def is_open(table: type[Allocation] = Allocation) -> ColumnElement[bool]:
    """Whether an allocation holds its GPU now."""
    return and_(table.valid_from <= _now, or_(table.valid_to.is_(None), table.valid_to > _now))


def held_now(*conditions: ColumnElement[bool]) -> CTE:
    """Open allocations of runs that meet `conditions`; `working` says its processes may run."""
    return (
        select(
            *(column for column in Allocation.__table__.columns if column.key != "valid_to"),
            Run.partition, Run.state.in_(WORKING_STATES).label("working"),
        )
        .join(Run, Run.id == Allocation.run_id)
        .where(is_open(), *conditions)
        .cte("holding")
    )  # fmt: skip


def state_now(holding: CTE, newest: CTE) -> CTE:
    """The allocations of `held_now`, each with its state in the `newest_minutes` of devices.

    That is the newest complete minute which has been stored, at most `LOOK_BACK` older than the
    newest complete one by the clock: samples arrive in batches. If there is none, or if it does not
    lie inside the allocation alone, the state is unknown; so it is where another run is said to
    hold the GPU too, and while the scheduler lets no process of the run work. A shared GPU's state
    says nothing about one of its holders.
    """
    others = _others(holding)
    alone_from = func.greatest(holding.c.valid_from, others.c.gone_at, type_=UtcDateTime)
    words = {position: state for position, state in enumerate(STATES)}
    is_known = and_(
        newest.c.minute >= alone_from,
        holding.c.working,
        holding.c.confidence != "disputed",
        others.c.are_here.is_not(True),
    )
    state = case(
        (holding.c.shared, "shared"),
        (is_known, case(words, value=newest.c.state)),
        else_="unknown",
    )
    trusted = and_(newest.c.minute >= alone_from, newest.c.samples_suspect == 0)
    return (
        select(
            holding, state.label("state"), alone_from.label("alone_from"), newest.c.minute,
            case((trusted, newest.c.tensor_active)).label("tensor_active"),
        )
        .outerjoin(others, others.c.id == holding.c.id)
        .outerjoin(newest, newest.c.device_id == holding.c.device_id)
        .cte("present")
    )  # fmt: skip


def _others(holding: CTE) -> CTE:
    """Other holders of a GPU lately: (id of `holding`, whether one is here, when the last left)."""
    other = aliased(Allocation)
    here = is_open(other)
    return (
        select(
            holding.c.id,
            func.bool_or(here).label("are_here"),
            func.max(other.valid_to).filter(~here).label("gone_at"),
        )
        .join(other, and_(other.device_id == holding.c.device_id, other.id != holding.c.id))
        .where(
            other.valid_from <= _now,
            or_(other.valid_to.is_(None), other.valid_to > _late_from),
        )
        .group_by(holding.c.id)
        .cte("others")
    )


def newest_minutes(*devices: FromClause) -> CTE:
    """The newest stored minute of each of these devices, at most `LOOK_BACK` before the newest.

    Nearly all have the newest itself, which is read at one go; the few that lack it are looked up.
    """
    known = (select(some.c.device_id).where(some.c.device_id.is_not(None)) for some in devices)
    wanted = union(*known).cte("wanted")
    now, row = device_minutes.alias("now"), device_minutes.alias("row")
    late = (
        select(row)
        .where(
            now.c.device_id.is_(None),
            row.c.device_id == wanted.c.device_id,
            row.c.minute >= _late_from,
            row.c.minute < _newest,
        )
        .order_by(row.c.minute.desc())
        .limit(1)
        .correlate(wanted, now)
        .lateral("late")
    )
    of_both = ("minute", "state", "samples_suspect", "tensor_active", "power_watts")
    return (
        select(
            wanted.c.device_id,
            *(func.coalesce(now.c[name], late.c[name]).label(name) for name in of_both),
        )
        .outerjoin(now, and_(now.c.device_id == wanted.c.device_id, now.c.minute == _newest))
        .outerjoin(late, true())
        .cte("newest")
    )


def unbroken(present: CTE, which: ColumnElement[bool]) -> LateralFromClause:
    """A lateral (since): when the unbroken run of minutes in the state now began, 7 days at most.

    Only for those of `present` that meet `which`. A missing minute breaks the run, as another state
    does. Hours that were wholly in this state need no look at their minutes.
    """
    oldest = func.greatest(
        present.c.alone_from, _end_before(present), present.c.minute - interval(SINCE_LOOK_BACK)
    )
    # The hours of allocations lag a little behind the minutes: the last two are not asked for.
    hours_end = func.date_trunc("hour", present.c.minute, "UTC") - interval(_HOUR)
    hours_start = func.coalesce(_whole_hours(present, hours_end, oldest), hours_end)
    bounds = (
        select(
            hours_end.label("hours_end"), hours_start.label("hours_start"), oldest.label("oldest")
        )
        .offset(0)  # worked out once, not wherever it is used
        .correlate(present)
        .lateral("bounds")
    )
    other, same = _minutes_around(present, bounds)
    place = func.row_number().over(order_by=same.c.minute.desc())
    skipped = case(
        (same.c.minute < bounds.c.hours_end, bounds.c.hours_end - bounds.c.hours_start),
        else_=interval(timedelta(0)),
    )
    numbered = (
        select(same.c.minute, place.label("place"), skipped.label("skipped"),
               bounds.c.hours_end, bounds.c.hours_start)
        .select_from(bounds)
        .join(other, true())
        .join(same, true())
        .where(which)
        .correlate(present)
        .subquery("numbered")
    )  # fmt: skip
    age = present.c.minute - numbered.c.minute - numbered.c.skipped
    follows = epoch_seconds(age) == 60 * (numbered.c.place - 1)
    first = func.min(numbered.c.minute)
    # A run that goes back to the whole hours goes through them.
    since = case(
        (first == func.min(numbered.c.hours_end), func.min(numbered.c.hours_start)), else_=first
    )
    return select(since.label("since")).where(follows).lateral("unbroken")


def _minutes_around(
    present: CTE, bounds: LateralFromClause
) -> tuple[LateralFromClause, LateralFromClause]:
    """The minutes before and after the whole hours: the newest in another state, later ones.

    Two laterals of one column, `minute`; the first bounds what is read for the second.
    """
    minutes = device_minutes.alias("row")
    oldest, start, end = bounds.c.oldest, bounds.c.hours_start, bounds.c.hours_end
    # The hour before whole ones is not whole, so that minutes before it need no look.
    first = case((start < end, func.greatest(oldest, start - interval(_HOUR))), else_=oldest)
    stretches = (
        and_(minutes.c.minute >= func.greatest(oldest, end), minutes.c.minute <= present.c.minute),
        and_(minutes.c.minute >= first, minutes.c.minute < start),
    )
    of_device = select(minutes.c.minute).where(minutes.c.device_id == present.c.device_id)
    position = _position(present.c.state)
    newest_others = (
        of_device.where(stretch, minutes.c.state != position)
        .order_by(minutes.c.minute.desc())
        .limit(1)
        .correlate(present, bounds)
        .scalar_subquery()
        for stretch in stretches
    )
    never = literal_column("'-infinity'::timestamptz", UtcDateTime)
    other = (
        select(func.coalesce(*newest_others, never).label("minute"))
        .offset(0)
        .correlate(present, bounds)
        .lateral("other")
    )
    same = union_all(
        *(
            of_device.where(
                stretch, minutes.c.state == position, minutes.c.minute > other.c.minute
            ).correlate(present, bounds, other)
            for stretch in stretches
        )
    )
    return other, same.lateral("same")


def _end_before(present: CTE) -> ScalarSelect[datetime | None]:
    """When the holder before gave the GPU back."""
    other = aliased(Allocation)
    before = tuple_(other.valid_from, other.id) < tuple_(present.c.valid_from, present.c.id)
    return (
        select(other.valid_to)
        .where(other.device_id == present.c.device_id, before)
        .order_by(other.valid_from.desc(), other.id.desc())
        .limit(1)
        .correlate(present)
        .scalar_subquery()
    )


def _whole_hours(
    present: CTE, end: ColumnElement[datetime], oldest: ColumnElement[datetime]
) -> ScalarSelect[datetime]:
    """The start of the unbroken row of hours before `end` that were wholly in the state now."""
    hours = allocation_hours.c
    seconds = case(
        {state: hours[f"{state}_seconds"] for state in KNOWN_STATES}, value=present.c.state
    )
    whole = (
        select(hours.hour, func.row_number().over(order_by=hours.hour.desc()).label("place"))
        .where(
            hours.allocation_id == present.c.id,
            hours.hour >= oldest,
            hours.hour < end,
            seconds == _HOUR.total_seconds(),
        )
        .correlate(present)
        .subquery("whole")
    )
    follows = whole.c.hour == end - whole.c.place * interval(_HOUR)
    return select(func.min(whole.c.hour)).where(follows).correlate(present).scalar_subquery()


def _position(state: ColumnElement[str]) -> ColumnElement[int]:
    return case({word: position for position, word in enumerate(STATES)}, value=state)


def open_allocations(
    session: Session, principal: Principal, cluster: str | None, state: str | None, now: datetime
) -> Sequence[AnyRow]:
    """GPUs held now by runs that `principal` may see, with state and since, longest first."""
    holding = held_now(may_see(principal, Run.user_name, Run.account))
    present = state_now(holding, newest_minutes(holding))
    lasting = unbroken(present, present.c.state != "shared")
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
    return session.execute(query, moment(now)).all()


def states_of(
    session: Session, run_ids: Collection[int], now: datetime
) -> Sequence[Row[int, int, str, datetime | None]]:
    """Open allocations of these runs: (id, run id, state, since when it is idle if it is)."""
    return session.execute(_states_of(), moment(now) | {"run_ids": list(run_ids)}).all()


@cache
def _states_of() -> Select[int, int, str, datetime | None]:
    holding = held_now(Run.id == any_(bindparam("run_ids", type_=ARRAY(BigInteger))))
    present = state_now(holding, newest_minutes(holding))
    lasting = unbroken(present, present.c.state == "idle")
    return select(present.c.id, present.c.run_id, present.c.state, lasting.c.since).outerjoin(
        lasting, true()
    )
