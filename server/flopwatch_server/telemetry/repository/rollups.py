"""How one tier is made of the one before, wherever marks say that something is new there.

Marks are consumed by DELETE ... RETURNING and the tier is computed by a later statement of the same
transaction. Under READ COMMITTED that statement sees every row whose mark was consumed; a row that
comes later brings a mark of its own. A lock lets one turn of a tier run at a time: of two at once,
the one that saw less could have the last word. What a turn makes is set, never added to, so it may
be made again at any time.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import (
    REAL,
    BigInteger,
    Column,
    ColumnElement,
    FromClause,
    Insert,
    MetaData,
    Select,
    Table,
    cast,
    delete,
    func,
    literal,
    select,
    text,
    true,
)
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session
from sqlalchemy.schema import CreateTable

from flopwatch_server.database.base import UtcDateTime
from flopwatch_server.settings import Thresholds
from flopwatch_server.telemetry.models import MAX_COLUMNS, MEAN_COLUMNS

marked = Table(
    "marked",
    MetaData(),
    Column("device_id", BigInteger, nullable=False),
    Column("time", UtcDateTime, nullable=False),
    prefixes=["TEMPORARY"],
    postgresql_on_commit="DELETE ROWS",
)
"""What one turn has to make, each device and time once."""

Columns = dict[str, ColumnElement[Any]]


@dataclass(frozen=True, slots=True)
class Rollup:
    """One tier, made of the one before.

    `columns` gives those of `tier`, aggregated over the rows of a marked device and time;
    `made_of` those rows. What was made becomes marks in `next_marks`, if there is a next tier.
    """

    tier: Table
    marks: Table
    length: timedelta
    lock: int
    marks_a_turn: int
    made_of: Callable[[datetime, datetime], Select[Any]]
    columns: Callable[[FromClause, Thresholds], Columns]
    next_marks: Table | None = None

    @property
    def time(self) -> str:
        """Name of the time's column, in the tier and in its marks."""
        return self.marks.columns.keys()[-1]


def recompute(session: Session, rollup: Rollup, thresholds: Thresholds, now: datetime) -> bool:
    """Make what the oldest marks ask for, in a transaction of its own; False if there were none.

    What is not over by `now` waits: made once it is over, it is made once and not at every sample.
    """
    session.connection(execution_options={"isolation_level": "READ COMMITTED"})
    session.execute(text("SET LOCAL statement_timeout = 0"))  # a back-fill may take its time
    session.execute(select(func.pg_advisory_xact_lock(rollup.lock)))
    session.execute(CreateTable(marked, if_not_exists=True))
    session.execute(_take(rollup, now))
    begin, end = session.execute(select(func.min(marked.c.time), func.max(marked.c.time))).one()
    if begin is None:
        return False
    session.execute(_upsert(rollup, thresholds, begin, end + rollup.length))
    if rollup.next_marks is not None:
        session.execute(_mark_next(rollup.next_marks))
    return True


def measures(rows: FromClause, highest: Mapping[str, str]) -> Columns:
    """What a tier keeps of the metrics; `highest` names the column that has each maximum."""
    columns: Columns = {
        "energy_joules": cast(func.sum(rows.c.energy_joules), REAL),
        "sm_min": func.min(rows.c.sm_min),
        "sm_max": func.max(rows.c.sm_max),
    }
    columns |= {name: cast(func.avg(rows.c[name]), REAL) for name in MEAN_COLUMNS}
    return columns | {f"{name}_max": func.max(rows.c[highest[name]]) for name in MAX_COLUMNS}


def _take(rollup: Rollup, now: datetime) -> Insert:
    """Move the oldest marks of what is over to `marked`."""
    marks, time = rollup.marks, rollup.marks.c[rollup.time]
    oldest = (
        select(marks.c.id)
        .where(time <= now - rollup.length)
        .order_by(marks.c.id)
        .limit(rollup.marks_a_turn)
    )
    taken = delete(marks).where(marks.c.id.in_(oldest)).returning(marks.c.device_id, time).cte()
    distinct = select(taken).distinct().order_by(*taken.c)
    return insert(marked).from_select(["device_id", "time"], distinct)


def _upsert(rollup: Rollup, thresholds: Thresholds, begin: datetime, end: datetime) -> Insert:
    """INSERT ... SELECT of all that is marked; what is there already is replaced.

    `begin` and `end` bound the times of the rows: known beforehand, they leave other partitions
    alone. Where no row is left, what was made of them stays as it is.
    """
    rows = rollup.made_of(begin, end).subquery("rows")
    columns = rollup.columns(rows, thresholds)
    made = select(
        *(column.label(name) for name, column in columns.items()), func.count().label("rows")
    ).lateral("made")
    statement = insert(rollup.tier).from_select(
        ["device_id", rollup.time, *columns],
        select(marked.c.device_id, marked.c.time, *(made.c[name] for name in columns))
        .join(made, true())
        .where(made.c.rows > 0),
    )
    return statement.on_conflict_do_update(
        index_elements=["device_id", rollup.time],
        set_={name: statement.excluded[name] for name in columns},
    )


def _mark_next(marks: Table) -> Insert:
    hour = func.date_trunc("hour", marked.c.time, literal("UTC"))
    return insert(marks).from_select(
        marks.columns.keys()[1:], select(marked.c.device_id, hour).distinct()
    )
