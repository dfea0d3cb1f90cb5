"""How device-minutes are made of samples: contract and thresholds of states stand here alone."""

from datetime import datetime, timedelta

from sqlalchemy import (
    REAL,
    ColumnElement,
    FromClause,
    Select,
    and_,
    case,
    cast,
    func,
    literal,
    or_,
    select,
)
from sqlalchemy.dialects.postgresql import distinct_on

from flopwatch.metrics import SAMPLE_PERIOD_SECONDS
from flopwatch_server.fleet.models import Device
from flopwatch_server.settings import Thresholds
from flopwatch_server.telemetry.models import (
    MAX_COLUMNS,
    STATES,
    STEP,
    device_minutes,
    dirty_hours,
    dirty_marks,
    dirty_steps,
    samples,
)
from flopwatch_server.telemetry.repository.rollups import Columns, Rollup, marked, measures

SAMPLES_PER_MINUTE = 60 // SAMPLE_PERIOD_SECONDS
_MATH = ("tensor_active", "fp64_active", "fp32_active", "fp16_active")
_MINUTE = timedelta(minutes=1)


def _samples(begin: datetime, end: datetime) -> Select[tuple[object, ...]]:
    """The samples of a marked minute, one for each interval.

    Of an interval that two lives of an agent tell of (its clock stepped back), the later life has
    the word, so that nothing is counted twice.
    """
    # The order is that of the primary key, read backwards, so nothing is sorted. The columns are
    # those of the table and all are used (`_number`), so rows pass as they are stored.
    return (
        select(samples)
        .where(
            samples.c.device_id == marked.c.device_id,
            samples.c.ts > marked.c.time,
            samples.c.ts <= marked.c.time + literal(_MINUTE),
            samples.c.ts > begin,
            samples.c.ts <= end,
        )
        .correlate(marked)
        .ext(distinct_on(samples.c.ts))
        .order_by(samples.c.ts.desc(), samples.c.epoch_id.desc())
    )


def _columns(one: FromClause, thresholds: Thresholds) -> Columns:
    return {
        "state": _state(one, thresholds),
        "samples_received": _number(one),
        "samples_expected": literal(SAMPLES_PER_MINUTE),
        "samples_suspect": func.count().filter(_suspect(one, thresholds)),
        **measures(one, {name: name for name in MAX_COLUMNS}),
    }


def _number(one: FromClause) -> ColumnElement[int]:
    """How many samples, said so that it names every column.

    In place of a column that nobody uses the planner puts NULL, for which each row is formed anew:
    that is more than a tenth of a turn. What is only named is not evaluated.
    """
    return func.count(func.coalesce(one.c.device_id, func.num_nonnulls(*one.c)))


def _state(one: FromClause, thresholds: Thresholds) -> ColumnElement[int]:
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


def _idle(one: FromClause, thresholds: Thresholds) -> ColumnElement[bool]:
    """SM activity is under its threshold and utilization is 0, of those known, one at least."""
    sm_active, utilization = one.c.sm_active, one.c.gpu_utilization
    return and_(
        or_(sm_active.is_not(None), utilization.is_not(None)),
        func.coalesce(sm_active, 0) < _real(thresholds.idle_sm_active),
        func.coalesce(utilization, 0) == 0,
    )


def _suspect(one: FromClause, thresholds: Thresholds) -> ColumnElement[bool]:
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
                one.c.power_watts > thresholds.suspect_power_share * Device.power_limit_watts,
                func.greatest(*(one.c[name] for name in _MATH)) >= idle,
            ),
        ),
    )


def _real(threshold: float) -> ColumnElement[float]:
    """A threshold as precise as the samples are: 0.01 as stored is not below 0.01."""
    return cast(literal(threshold), REAL)


MINUTES = Rollup(
    tier=device_minutes,
    marks=dirty_marks,
    length=_MINUTE,
    lock=0x6D696E75,
    marks_a_turn=60_000,
    made_of=_samples,
    columns=_columns,
    next_marks=((dirty_hours, timedelta(hours=1)), (dirty_steps, STEP)),
    parts=2,
)
