"""What minutes say about allocations: seconds by state, means and maxima."""

from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import CTE, ColumnElement, Float, Integer, Result, Select, cast, func, select
from sqlalchemy.orm import Session

from flopwatch_server.efficiency.models import KNOWN_STATES
from flopwatch_server.telemetry.models import MAX_COLUMNS, MEAN_COLUMNS, STATES, device_minutes
from flopwatch_server.telemetry.repository import (
    MINUTE,
    AnyRow,
    epoch_seconds,
    held_by_run,
    instant,
    minute_counts,
    of_run,
)

GRACE = timedelta(seconds=20)
"""A minute counts as complete when its last sample (10 s) and its way to the server are past."""

_minute = device_minutes.c


def newest_minute(now: datetime) -> datetime:
    """The start of the newest complete minute: the last one that ended `GRACE` before `now`."""
    return (now - GRACE).replace(second=0, microsecond=0) - MINUTE


def in_state(state: str) -> ColumnElement[bool]:
    """Whether a device-minute has a state, by its word."""
    return _minute.state == STATES.index(state)


def mean(metric: str) -> ColumnElement[Any]:
    """Mean of a metric over minutes, without those whose counters contradict each other."""
    return func.avg(_minute[metric]).filter(_minute.samples_suspect == 0)


def allocated(holding: CTE, now: datetime, key: str) -> Select[Any]:
    """Per `key` of the allocations: (key, allocated seconds, shared seconds, whole minutes).

    Whole minutes are those of unshared allocations which are complete by now: what coverage
    compares the known ones with.
    """
    complete = func.least(holding.c.until, instant(newest_minute(now) + MINUTE))
    whole = func.floor(epoch_seconds(complete) / 60.0) - func.ceil(
        epoch_seconds(holding.c.valid_from) / 60
    )
    return select(
        holding.c[key].label("key"),
        func.sum(holding.c.seconds).label("seconds"),
        func.coalesce(func.sum(holding.c.seconds).filter(holding.c.shared), 0.0, type_=Float).label(
            "shared"
        ),
        cast(
            func.coalesce(func.sum(func.greatest(whole, 0)).filter(~holding.c.shared), 0), Integer
        ).label("whole_minutes"),
    ).group_by(holding.c[key])


def minute_figures(
    holding: CTE, now: datetime, key: str, means: tuple[str, ...], maxima: tuple[str, ...]
) -> Select[Any]:
    """Per `key` of the unshared allocations: minutes by state, energy, means and maxima.

    Of complete minutes only: one that is known before its time would count as more than expected.
    """
    return (
        select(
            holding.c[key].label("key"),
            *(func.count().filter(in_state(state)).label(state) for state in KNOWN_STATES),
            func.sum(_minute.energy_joules).label("energy_joules"),
            *(mean(metric).label(metric) for metric in means),
            *(
                func.max(_minute[f"{metric}_max"])
                .filter(_minute.samples_suspect == 0)
                .label(f"{metric}_max")
                for metric in maxima
            ),
        )
        .join(device_minutes, minute_counts(holding))
        .where(~holding.c.shared, _minute.minute <= instant(newest_minute(now)))
        .group_by(holding.c[key])
    )


def run_figures(session: Session, run_id: int, now: datetime) -> AnyRow | None:
    """Figures of a whole run; None if no allocation of it is known."""
    return _figures(session, run_id, now, "run_id").first()


def allocation_figures(session: Session, run_id: int, now: datetime) -> dict[int, AnyRow]:
    """Figures of each allocation of a run, by its id."""
    return {row.key: row for row in _figures(session, run_id, now, "id")}


def _figures(session: Session, run_id: int, now: datetime, key: str) -> Result[*tuple[Any, ...]]:
    holding = held_by_run()
    time = allocated(holding, now, key).cte("time")
    minutes = minute_figures(holding, now, key, MEAN_COLUMNS, MAX_COLUMNS).cte("minutes")
    return session.execute(
        select(time, *(column for column in minutes.c if column.key != "key")).outerjoin(
            minutes, minutes.c.key == time.c.key
        ),
        of_run(run_id, now),
    )
