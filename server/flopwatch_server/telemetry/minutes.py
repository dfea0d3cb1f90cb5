"""Device-minutes, recomputed from samples wherever a mark says that there are new ones.

Marks are consumed by DELETE ... RETURNING and the minutes aggregated by a later statement of the
same transaction. Under READ COMMITTED that statement sees every sample whose mark was consumed;
a sample that comes later brings a mark of its own. A lock lets one recomputation run at a time:
of two at once, the one that saw less could have the last word.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import (
    REAL,
    BigInteger,
    ColumnElement,
    Insert,
    Subquery,
    and_,
    bindparam,
    case,
    cast,
    delete,
    func,
    literal,
    or_,
    select,
)
from sqlalchemy.dialects.postgresql import ARRAY, distinct_on, insert
from sqlalchemy.orm import Session

from flopwatch.metrics import SAMPLE_PERIOD_SECONDS
from flopwatch_server.database.base import UtcDateTime
from flopwatch_server.fleet.models import Device
from flopwatch_server.house import House
from flopwatch_server.settings import Thresholds
from flopwatch_server.telemetry.models import (
    MAX_COLUMNS,
    MEAN_COLUMNS,
    STATES,
    DirtyMark,
    device_minutes,
    samples,
)

_MATH = ("tensor_active", "fp64_active", "fp32_active", "fp16_active")
SAMPLES_PER_MINUTE = 60 // SAMPLE_PERIOD_SECONDS
_MINUTE = timedelta(minutes=1)
_MARKS_A_TURN = 20_000
_LOCK = 0x6D696E75
Mark = tuple[int, datetime]


def recompute_minutes(house: House) -> None:
    """Bring `device_minutes` up to date with the samples; returns when no mark is left."""
    statement = _upsert(house.settings.thresholds)
    marks: Sequence[Mark] | None = None
    while marks is None or marks:
        with house.database.session() as session:
            session.connection(execution_options={"isolation_level": "READ COMMITTED"})
            session.execute(select(func.pg_advisory_xact_lock(_LOCK)))
            marks = _take_marks(session)
            if marks:
                session.execute(statement, _parameters(marks))


def _take_marks(session: Session) -> Sequence[Mark]:
    """Delete the oldest marks and return the device-minutes they name, each once."""
    oldest = select(DirtyMark.id).order_by(DirtyMark.id).limit(_MARKS_A_TURN).scalar_subquery()
    taken = session.execute(
        delete(DirtyMark)
        .where(DirtyMark.id.in_(oldest))
        .returning(DirtyMark.device_id, DirtyMark.minute)
        .execution_options(synchronize_session=False)
    )
    return sorted({(device_id, minute) for device_id, minute in taken})


def _parameters(marks: Sequence[Mark]) -> dict[str, Any]:
    minutes = [minute for _, minute in marks]
    return {
        "devices": [device_id for device_id, _ in marks],
        "minutes": minutes,
        "begin": min(minutes),
        "end": max(minutes) + _MINUTE,
    }


def _upsert(thresholds: Thresholds) -> Insert:
    """INSERT ... SELECT of all marked minutes; a minute that is there already is replaced."""
    one = _intervals()
    columns: dict[str, ColumnElement[Any]] = {
        "device_id": one.c.device_id,
        "minute": one.c.minute,
        "state": _state(one, thresholds),
        "samples_received": func.count(),
        "samples_expected": literal(SAMPLES_PER_MINUTE),
        "samples_suspect": func.count().filter(_suspect(one, thresholds)),
        "energy_joules": cast(func.sum(one.c.energy_joules), REAL),
        "sm_min": func.min(one.c.sm_min),
        "sm_max": func.max(one.c.sm_max),
    }
    columns |= {name: cast(func.avg(one.c[name]), REAL) for name in MEAN_COLUMNS}
    columns |= {f"{name}_max": func.max(one.c[name]) for name in MAX_COLUMNS}
    aggregated = select(*columns.values()).group_by(one.c.device_id, one.c.minute)
    statement = insert(device_minutes).from_select(list(columns), aggregated)
    key = ("device_id", "minute")
    return statement.on_conflict_do_update(
        index_elements=key,
        set_={name: statement.excluded[name] for name in columns if name not in key},
    )


def _intervals() -> Subquery:
    """The samples of the marked minutes, with the board's power limit, one for each interval.

    Of an interval that two lives of an agent tell of (its clock stepped back), the later life has
    the word, so that nothing is counted twice.
    """
    marks = (
        func.unnest(
            bindparam("devices", type_=ARRAY(BigInteger)),
            bindparam("minutes", type_=ARRAY(UtcDateTime)),
        )
        .table_valued("device_id", "minute", name="marks")
        .render_derived()
    )
    return (
        select(marks.c.minute, samples, Device.power_limit_watts)
        .select_from(marks)
        .join(
            samples,
            and_(
                samples.c.device_id == marks.c.device_id,
                samples.c.ts > marks.c.minute,
                samples.c.ts <= marks.c.minute + literal(_MINUTE),
            ),
        )
        .join(Device, Device.id == samples.c.device_id)
        # Bounds known beforehand leave the partitions of other days alone.
        .where(samples.c.ts > bindparam("begin", type_=UtcDateTime))
        .where(samples.c.ts <= bindparam("end", type_=UtcDateTime))
        .ext(distinct_on(samples.c.device_id, samples.c.ts))
        .order_by(samples.c.device_id, samples.c.ts, samples.c.epoch_id.desc())
        .subquery("one")
    )


def _state(one: Subquery, thresholds: Thresholds) -> ColumnElement[int]:
    """The state of a minute, from its samples.

    A minute with a suspect sample is unknown. Coverage counts only samples that can tell: for idle
    those with SM activity or utilization, for low and active those with SM activity. Without SM
    activity a minute that is not idle is unknown, since utilization can't tell low from active.
    """
    enough = thresholds.coverage * SAMPLES_PER_MINUTE
    telling = func.count().filter(
        or_(one.c.sm_active.is_not(None), one.c.gpu_utilization.is_not(None))
    )
    idle = func.count().filter(_idle(one, thresholds))
    number = {name: position for position, name in enumerate(STATES)}
    return case(
        (func.count().filter(_suspect(one, thresholds)) > 0, number["unknown"]),
        (and_(telling >= enough, idle == telling), number["idle"]),
        (func.count(one.c.sm_active) < enough, number["unknown"]),
        (cast(func.avg(one.c.sm_active), REAL) < _real(thresholds.low_sm_active), number["low"]),
        else_=number["active"],
    )


def _idle(one: Subquery, thresholds: Thresholds) -> ColumnElement[bool]:
    """SM activity is under its threshold and utilization is 0, of those known, one at least."""
    sm_active, utilization = one.c.sm_active, one.c.gpu_utilization
    return and_(
        or_(sm_active.is_not(None), utilization.is_not(None)),
        func.coalesce(sm_active, 0) < _real(thresholds.idle_sm_active),
        func.coalesce(utilization, 0) == 0,
    )


def _suspect(one: Subquery, thresholds: Thresholds) -> ColumnElement[bool]:
    """The sample says idle, but something that can't be without SM activity says otherwise.

    That is power far above idle, or math of any kind. Utilization is otherwise at an activity of
    exactly 0 only: one small kernel that runs all the time fills it and less than 1 % of the SMs.
    """
    idle = _real(thresholds.idle_sm_active)
    return or_(
        and_(one.c.sm_active == 0, one.c.gpu_utilization >= _real(thresholds.suspect_utilization)),
        and_(
            func.coalesce(one.c.sm_active, one.c.gpu_utilization) < idle,
            or_(
                one.c.power_watts > thresholds.suspect_power_share * one.c.power_limit_watts,
                func.greatest(*(one.c[name] for name in _MATH)) >= idle,
            ),
        ),
    )


def _real(threshold: float) -> ColumnElement[float]:
    """A threshold as precise as the samples are: 0.01 as stored is not below 0.01."""
    return cast(literal(threshold), REAL)
