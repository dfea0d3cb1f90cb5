"""What allocations got out of each hour, and runs altogether: made again where marks say so."""

from collections.abc import Collection, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import (
    ARRAY,
    CTE,
    BigInteger,
    ColumnElement,
    Float,
    Select,
    Table,
    any_,
    case,
    cast,
    delete,
    func,
    literal,
    null,
    or_,
    select,
    text,
    union_all,
)
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from flopwatch_server.database.base import UtcDateTime
from flopwatch_server.efficiency.models import (
    KNOWN_STATES,
    MEAN_COLUMNS,
    allocation_hours,
    run_figures,
)
from flopwatch_server.efficiency.repository.figures import in_state
from flopwatch_server.jobs.models import Allocation, AllocationMark
from flopwatch_server.telemetry.models import STEP, device_minutes, dirty_steps
from flopwatch_server.telemetry.repository import held, instant, interval, minute_counts
from flopwatch_server.telemetry.repository.rollups import marked, time_of

_HOUR = timedelta(hours=1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MARKS_A_TURN = 100_000
SPAN_A_TURN = timedelta(hours=8)
"""A turn makes so much time at most that marks name, and as much that is over since the last."""

_changes = AllocationMark.metadata.tables[AllocationMark.__tablename__]
_minute = device_minutes.c
_hours = allocation_hours.c


def take_marks(session: Session, oldest: datetime, now: datetime) -> tuple[int, list[datetime]]:
    """Move the earliest device-hours that marks name to `marked`, none before `oldest`.

    They are those of `SPAN_A_TURN`; a mark that goes on after it is left for the rest. Gives how
    many marks there were, and the steps which they name, by their start.
    """
    first = _earliest(session)
    if first is None:
        return 0, []
    end = max(first, oldest).replace(minute=0, second=0, microsecond=0) + SPAN_A_TURN
    minutes = _taken(dirty_steps, first, end)
    holders = _taken(_changes, first, end)
    rest = select(holders.c.device_id, instant(end)).where(instant(end) < instant(now)).distinct()
    left = insert(_changes).from_select(["device_id", "since"], rest).cte("left")
    spans = union_all(
        select(
            minutes.c.device_id,
            minutes.c.step.label("begin"),
            (minutes.c.step + interval(STEP)).label("end"),
        ),
        select(holders.c.device_id, holders.c.since, instant(min(end, now))),
    ).cte("spans")
    hours = select(spans.c.device_id, _each(_HOUR, spans.c.begin, spans.c.end, oldest)).where(
        spans.c.device_id.is_not(None)
    )
    moved = insert(marked).from_select(["device_id", "time"], hours.distinct()).cte("moved")
    steps = select(_each(STEP, spans.c.begin, spans.c.end, oldest)).distinct()
    taken = select(func.count()).select_from(spans).scalar_subquery()
    row = session.execute(
        select(taken, func.array(steps.scalar_subquery(), type_=ARRAY(UtcDateTime))).add_cte(
            moved, left
        )
    ).one()
    return row[0], sorted(row[1])


def _earliest(session: Session) -> datetime | None:
    """The earliest time that a mark names."""
    earliest = (
        select(func.min(time)).scalar_subquery() for time in map(time_of, (dirty_steps, _changes))
    )
    first: datetime | None = session.scalar(select(func.least(*earliest, type_=UtcDateTime)))
    return first


def _taken(marks: Table, first: datetime, end: datetime) -> CTE:
    """DELETE of marks that name a time in [first, end), the oldest ones."""
    time = time_of(marks)
    within = time >= instant(first), time < instant(end)
    oldest = select(marks.c.id).where(*within).order_by(marks.c.id).limit(_MARKS_A_TURN)
    return delete(marks).where(marks.c.id.in_(oldest)).returning(marks.c.device_id, time).cte()


def _each(
    length: timedelta, begin: ColumnElement[Any], end: ColumnElement[Any], oldest: datetime
) -> ColumnElement[datetime]:
    """The starts of all stretches of this length that [begin, end) touches."""
    first = func.greatest(begin, instant(oldest))
    return func.generate_series(
        func.date_bin(interval(length), first, instant(_EPOCH)),
        end - interval(timedelta(microseconds=1)),
        interval(length),
        type_=UtcDateTime,
    )


def make_hours(session: Session, now: datetime) -> set[int]:
    """Make what allocations got out of the hours in `marked`; ids of allocations that changed."""
    session.execute(text("ANALYZE marked"))  # one GPU and all of them are read in different ways
    changed: set[int] = set()
    for hour in session.scalars(select(marked.c.time).distinct().order_by(marked.c.time)).all():
        gone = delete(allocation_hours).where(_hours.hour == instant(hour), _is_marked(hour))
        changed.update(session.scalars(gone.returning(_hours.allocation_id)))
        names = [column.name for column in allocation_hours.columns]
        made = insert(allocation_hours).from_select(names, _made(hour, now))
        changed.update(session.scalars(made.returning(_hours.allocation_id)))
    return changed


def _is_marked(hour: datetime) -> ColumnElement[bool]:
    return _hours.device_id.in_(_marked_devices(hour))


def _marked_devices(hour: datetime) -> Select[int]:
    return select(marked.c.device_id).where(marked.c.time == instant(hour))


def _made(hour: datetime, now: datetime) -> Select[Any]:
    """Rows of `allocation_hours` for the devices that are marked in this hour."""
    end = hour + _HOUR
    holding = held(
        instant(now),
        Allocation.device_id.in_(_marked_devices(hour)),
        Allocation.valid_from < instant(end),
        or_(Allocation.valid_to.is_(None), Allocation.valid_to > instant(hour)),
        ~Allocation.shared,
    )
    # Materialized, since each row of it costs two looks at the neighbours.
    holding = holding.prefix_with("MATERIALIZED")
    key = (holding.c.device_id, instant(hour).label("hour"), holding.c.id)
    return (
        select(*key, *_sums())
        .join(device_minutes, minute_counts(holding))
        .where(_minute.minute >= instant(hour), _minute.minute < instant(end))
        .group_by(holding.c.device_id, holding.c.id)
    )


def _sums() -> list[ColumnElement[Any]]:
    """Seconds by state, then the sum and the number of minute means of each metric."""
    seconds = [
        (60 * func.count().filter(in_state(state))).label(f"{state}_seconds")
        for state in KNOWN_STATES
    ]
    means = [
        column.label(f"{metric}_{name}")
        for metric in MEAN_COLUMNS
        for name, column in sum_and_count(metric).items()
    ]
    return [*seconds, *means]


def sum_and_count(metric: str) -> dict[str, ColumnElement[Any]]:
    """Sum and number of the means of minutes whose counters don't contradict each other."""
    trusted = _minute.samples_suspect == 0
    return {
        "sum": func.sum(cast(_minute[metric], Float)).filter(trusted),
        "minutes": func.count(_minute[metric]).filter(trusted),
    }


def make_run_figures(session: Session, allocation_ids: Collection[int]) -> None:
    """Add up all hours of the runs that hold these allocations.

    In the order of runs, as `keep_mfus` does, so that neither waits for the other in a circle.
    """
    ids = literal(sorted(allocation_ids), ARRAY(BigInteger))
    runs = select(Allocation.run_id).where(Allocation.id == any_(ids))
    known = func.sum(_hours.active_seconds + _hours.low_seconds + _hours.idle_seconds)
    columns: dict[str, Any] = {
        "run_id": Allocation.run_id,
        "idle_gpu_hours": case((known > 0, func.sum(_hours.idle_seconds) / 3600.0), else_=null()),
        **{metric: mean_of_sums(_hours, metric) for metric in MEAN_COLUMNS},
    }
    statement = insert(run_figures).from_select(
        list(columns),
        select(*columns.values())
        .outerjoin(allocation_hours, _hours.allocation_id == Allocation.id)
        .where(Allocation.run_id.in_(runs))
        .group_by(Allocation.run_id)
        .order_by(Allocation.run_id),
    )
    session.execute(
        statement.on_conflict_do_update(
            index_elements=["run_id"],
            set_={name: statement.excluded[name] for name in columns if name != "run_id"},
        )
    )


def mean_of_sums(columns: Any, metric: str) -> ColumnElement[Any]:
    """The mean of a metric from pairs of sum and number; NULL where there is none."""
    minutes = func.nullif(func.sum(columns[f"{metric}_minutes"]), 0)
    return func.sum(columns[f"{metric}_sum"]) / minutes


def keep_mfus(session: Session, mfus: Mapping[int, float | None]) -> None:
    """Remember the train MFU of these runs, by their ids."""
    told = func.unnest(
        literal(list(mfus), ARRAY(BigInteger)), literal(list(mfus.values()), ARRAY(Float))
    ).table_valued("run_id", "mfu", name="told")
    rows = told.render_derived()
    statement = insert(run_figures).from_select(
        ["run_id", "mfu"], select(rows.c.run_id, rows.c.mfu).order_by(rows.c.run_id)
    )
    session.execute(
        statement.on_conflict_do_update(
            index_elements=["run_id"], set_={"mfu": statement.excluded.mfu}
        )
    )
