"""How device-hours are made of minutes."""

from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import (
    REAL,
    ColumnElement,
    FromClause,
    Integer,
    LargeBinary,
    Select,
    cast,
    func,
    literal,
    select,
)

from flopwatch_server.settings import Thresholds
from flopwatch_server.telemetry.models import (
    MAX_COLUMNS,
    SPREAD_COLUMNS,
    STATES,
    device_hours,
    device_minutes,
    dirty_hours,
)
from flopwatch_server.telemetry.repository.minutes import SAMPLES_PER_MINUTE
from flopwatch_server.telemetry.repository.rollups import Columns, Rollup, marked, measures

_HOUR = timedelta(hours=1)
_SAMPLES_PER_HOUR = 60 * SAMPLES_PER_MINUTE


def _minutes(begin: datetime, end: datetime) -> Select[tuple[object, ...]]:
    """The minutes of a marked hour."""
    return (
        select(device_minutes)
        .where(
            device_minutes.c.device_id == marked.c.device_id,
            device_minutes.c.minute >= marked.c.time,
            device_minutes.c.minute < marked.c.time + literal(_HOUR),
            device_minutes.c.minute >= begin,
            device_minutes.c.minute < end,
        )
        .correlate(marked)
    )


def _columns(one: FromClause, thresholds: Thresholds) -> Columns:
    in_state = {
        f"{state}_minutes": func.count().filter(one.c.state == position)
        for position, state in enumerate(STATES)
    }
    return {
        **in_state,
        "samples_received": func.sum(one.c.samples_received),
        "samples_expected": literal(_SAMPLES_PER_HOUR),
        "samples_suspect": func.sum(one.c.samples_suspect),
        **measures(one, {name: f"{name}_max" for name in MAX_COLUMNS}),
        **{f"{name}_points": _points(one.c[name]) for name in SPREAD_COLUMNS},
    }


def _points(ratio: ColumnElement[Any]) -> ColumnElement[bytes]:
    """One byte for each known ratio: its whole points, as precise as it is: 0.01 is one."""
    points = cast(func.floor(ratio * cast(100, REAL)), Integer)
    byte = func.set_byte(literal(b"\0", LargeBinary), 0, points)
    return func.string_agg(byte, literal(b"", LargeBinary), type_=LargeBinary)


HOURS = Rollup(
    tier=device_hours,
    marks=dirty_hours,
    length=_HOUR,
    lock=0x686F7572,
    marks_a_turn=10_000,
    made_of=_minutes,
    columns=_columns,
)
