"""How one tier is made of the one before, wherever marks say that something is new there.

Marks are consumed by DELETE ... RETURNING and the tier is computed by a later statement of the same
transaction. Under READ COMMITTED that statement sees every row whose mark was consumed; a row that
comes later brings a mark of its own. A lock lets one turn of a tier run at a time: of two at once,
the one that saw less could have the last word. What a turn makes is set, never added to, so it may
be made again at any time.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import (
    REAL,
    BigInteger,
    Column,
    ColumnElement,
    Delete,
    FromClause,
    Insert,
    MetaData,
    Select,
    Table,
    and_,
    cast,
    delete,
    func,
    literal,
    or_,
    select,
    text,
    true,
    tuple_,
)
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session
from sqlalchemy.schema import CreateTable

from flopwatch_server.database.base import UtcDateTime
from flopwatch_server.fleet.models import Device
from flopwatch_server.settings import Thresholds
from flopwatch_server.telemetry.models import MAX_COLUMNS, MEAN_COLUMNS

marked = Table(
    "marked",
    MetaData(),
    Column("device_id", BigInteger, primary_key=True, autoincrement=False),
    Column("time", UtcDateTime, primary_key=True),
    prefixes=["TEMPORARY"],
    postgresql_on_commit="DELETE ROWS",
)
"""What one turn has to make, each device and time once.

By the key no plan compares all of it with all of a tier, however wrong the planner's statistics.
"""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_BLOCK_DEVICES = 512
Columns = dict[str, ColumnElement[Any]]


@dataclass(frozen=True, slots=True)
class Rollup:
    """One tier, made of the one before.

    `made_of` gives the rows of a marked device and time, whose times lie between two bounds;
    `columns` those of `tier`, aggregated over them, from them and from what `Device` says. A turn
    makes what the first `marks_a_turn` name. What was made becomes marks in each of `next_marks`,
    which name the length that they are marks of. Its devices are in so many `parts`, each under a
    lock of its own, the first of which is `lock`.
    """

    tier: Table
    marks: Table
    length: timedelta
    lock: int
    marks_a_turn: int
    made_of: Callable[[datetime, datetime], Select[Any]]
    columns: Callable[[FromClause, Thresholds], Columns]
    next_marks: tuple[tuple[Table, timedelta], ...] = ()
    parts: int = 1

    @property
    def time(self) -> str:
        """Name of the time's column, in the tier and in its marks."""
        return time_of(self.marks).name


def recompute(
    session: Session, rollup: Rollup, thresholds: Thresholds, now: datetime, part: int = 0
) -> bool:
    """Make what the first marks ask for, in a transaction of its own; True if more may wait.

    Of the devices of one part only: others may be made at the same time.

    What is not over by `now` waits: made once it is over, it is made once and not at every sample.
    For the same reason a turn that did not find as many marks as it may take is not to be followed
    by another one at once: new samples come all the time.
    """
    begin_turn(session, rollup.lock + part)
    is_full = _take(session, rollup, now, part)
    begin, end = session.execute(select(func.min(marked.c.time), func.max(marked.c.time))).one()
    if begin is None:
        return False
    rows = rollup.made_of(begin, end + rollup.length)
    session.execute(_clear(rollup, rows, begin, end))
    session.execute(_make(rollup, rows, thresholds))
    for marks, length in rollup.next_marks:
        session.execute(_mark_next(marks, length))
    return is_full


def begin_turn(session: Session, lock: int) -> None:
    """Let the transaction of `session` be the only one under `lock`, with nothing in `marked`."""
    session.connection(execution_options={"isolation_level": "READ COMMITTED"})
    session.execute(text("SET LOCAL statement_timeout = 0"))  # a back-fill may take its time
    session.execute(select(func.pg_advisory_xact_lock(lock)))
    session.execute(CreateTable(marked, if_not_exists=True))


def is_awaited(session: Session, rollup: Rollup, begin: datetime, end: datetime) -> bool:
    """Whether marks in [begin, end) wait, of a tier or of what is made of it."""
    every = (rollup.marks, *(marks for marks, _ in rollup.next_marks))
    times = map(time_of, every)
    waiting = (select(time).where(time >= begin, time < end).exists() for time in times)
    return bool(session.scalar(select(or_(*waiting))))


def measures(rows: FromClause, highest: Mapping[str, str]) -> Columns:
    """What a tier keeps of the metrics; `highest` names the column that has each maximum."""
    columns: Columns = {
        "energy_joules": cast(func.sum(rows.c.energy_joules), REAL),
        "sm_min": func.min(rows.c.sm_min),
        "sm_max": func.max(rows.c.sm_max),
    }
    columns |= {name: cast(func.avg(rows.c[name]), REAL) for name in MEAN_COLUMNS}
    return columns | {f"{name}_max": func.max(rows.c[highest[name]]) for name in MAX_COLUMNS}


def time_of(marks: Table) -> Column[datetime]:
    """What a mark names beside its device: the last of its columns."""
    return list(marks.columns)[-1]


def _take(session: Session, rollup: Rollup, now: datetime, part: int) -> bool:
    """Move the first marks of what is over to `marked`, with all others that name the same.

    First is what is newest, so that a back-fill holds up nothing live. True if there were as many
    as a turn may take.
    """
    marks, time = rollup.marks, rollup.marks.c[rollup.time]
    is_due = and_(time <= now - rollup.length, _is_in(part, rollup, marks.c.device_id))
    order = (time.desc(), marks.c.device_id.desc())
    last = session.execute(
        select(time, marks.c.device_id)
        .where(is_due)
        .order_by(*order)
        .offset(rollup.marks_a_turn - 1)
        .limit(1)
    ).first()
    taken = delete(marks).where(is_due).returning(marks.c.device_id, time.label("time"))
    if last is not None:
        taken = taken.where(
            tuple_(time, marks.c.device_id) >= tuple_(literal(last[0], time.type), last[1])
        )
    named = taken.cte("taken")
    distinct = select(named).distinct().order_by(*named.c)
    session.execute(insert(marked).from_select(["device_id", "time"], distinct))
    return last is not None


def _is_in(part: int, rollup: Rollup, device_id: ColumnElement[int]) -> ColumnElement[bool]:
    """Whether a device is of this part of a tier: blocks of devices take turns."""
    return device_id // _BLOCK_DEVICES % rollup.parts == part


def _clear(rollup: Rollup, rows: Select[Any], begin: datetime, end: datetime) -> Delete:
    """DELETE of what is marked and there already, if it still has rows that it can be made of.

    Nobody else writes here meanwhile, so this and a plain INSERT do what ON CONFLICT would, and
    half of what it costs is saved.
    """
    tier, time = rollup.tier, rollup.tier.c[rollup.time]
    return delete(tier).where(
        tier.c.device_id == marked.c.device_id,
        time == marked.c.time,
        # Times known beforehand leave the other partitions alone.
        time.between(begin, end),
        # By its limit this is asked for what is there only, not planned as a join.
        select(literal(True))
        .select_from(rows.subquery())
        .limit(1)
        .correlate(marked)
        .scalar_subquery(),
    )


def _make(rollup: Rollup, rows: Select[Any], thresholds: Thresholds) -> Insert:
    """INSERT ... SELECT of all that is marked and has rows."""
    of = rows.subquery("rows")
    columns = rollup.columns(of, thresholds)
    named = [column.label(name) for name, column in columns.items()]
    made = select(*named, func.count().label("rows")).select_from(of).lateral("made")
    return insert(rollup.tier).from_select(
        ["device_id", rollup.time, *columns],
        select(marked.c.device_id, marked.c.time, *(made.c[name] for name in columns))
        .join(Device, Device.id == marked.c.device_id)
        .join(made, true())
        .where(made.c.rows > 0),
    )


def _mark_next(marks: Table, length: timedelta) -> Insert:
    time = func.date_bin(literal(length), marked.c.time, _EPOCH)
    return insert(marks).from_select(
        ["device_id", time_of(marks).name], select(marked.c.device_id, time).distinct()
    )
