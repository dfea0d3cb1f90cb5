"""Reports of training processes, read by run.

A run has few processes and each has very many reports, so none of these reads touches them all:
they step through the index (cluster, job, process, time) from process to process.
"""

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta

from sqlalchemy import CTE, ColumnElement, Row, and_, func, select, true, tuple_
from sqlalchemy.orm import Session
from sqlalchemy.sql.selectable import LateralFromClause

from flopwatch_server.database.base import UtcDateTime
from flopwatch_server.jobs.models import Run
from flopwatch_server.telemetry.models import HookCounter
from flopwatch_server.telemetry.repository import instant, interval

_PROCESS = (HookCounter.node_id, HookCounter.boot, HookCounter.rank)


def newest_reports(
    session: Session, run_ids: Collection[int], now: datetime
) -> dict[int, list[HookCounter]]:
    """The newest report of each process of these runs, by run id; counters are cumulative."""
    process = _processes(run_ids, now)
    rows = session.execute(
        select(process.c.run_id, HookCounter)
        .join(HookCounter, and_(_same_process(process), HookCounter.sequence == process.c.sequence))
        .order_by(process.c.run_id, *_PROCESS)
    )
    found: dict[int, list[HookCounter]] = {}
    for run_id, report in rows:
        found.setdefault(run_id, []).append(report)
    return found


def reports_by_step(
    session: Session, run_id: int, step: timedelta, start: datetime, end: datetime
) -> Sequence[Row[datetime, HookCounter]]:
    """The last report of each process in each step of (start, end]: (end of the step, report).

    Ordered by process and time.
    """
    process = _processes([run_id], end)
    times = func.generate_series(
        instant(start + step), instant(end), interval(step), type_=UtcDateTime
    )
    steps = select(times.label("time")).cte("steps")
    last = (
        select(HookCounter.node_id, HookCounter.boot, HookCounter.rank, HookCounter.sequence)
        .where(
            HookCounter.cluster_id == Run.cluster_id,
            HookCounter.raw_job_id == Run.raw_job_id,
            _same_process(process),
            HookCounter.received_at > steps.c.time - interval(step),
            HookCounter.received_at <= steps.c.time,
        )
        .order_by(HookCounter.received_at.desc())
        .limit(1)
        .correlate(Run, process, steps)
        .lateral("last")
    )
    return session.execute(
        select(steps.c.time, HookCounter)
        .select_from(process)
        .join(Run, Run.id == process.c.run_id)
        .join(steps, true())
        .join(last, true())
        .join(HookCounter, and_(_same_process(last), HookCounter.sequence == last.c.sequence))
        .order_by(*_PROCESS, steps.c.time)
    ).all()


def _processes(run_ids: Collection[int], now: datetime) -> CTE:
    """The processes of these runs, each with its newest report: (run id, process, sequence).

    A report belongs to a run if it came for its job while the run was running.
    """
    newest = _next_report(now)
    found = (
        select(Run.id.label("run_id"), newest)
        .join(newest, true())
        .where(Run.id.in_(run_ids))
        .cte("processes", recursive=True)
    )
    following = _next_report(now, found)
    return found.union_all(
        select(found.c.run_id, following)
        .join(Run, Run.id == found.c.run_id)
        .join(following, true())
    )  # fmt: skip


def _next_report(now: datetime, before: CTE | None = None) -> LateralFromClause:
    """The newest report of the last process of a run, or of the one that precedes `before`."""
    end = func.coalesce(Run.ended_at, Run.vanished_at, instant(now))
    query = (
        select(*_PROCESS, HookCounter.sequence)
        .where(
            HookCounter.cluster_id == Run.cluster_id,
            HookCounter.raw_job_id == Run.raw_job_id,
            HookCounter.received_at >= Run.started_at,
            HookCounter.received_at <= end,
        )
        .order_by(*(column.desc() for column in _PROCESS), HookCounter.received_at.desc())
        .limit(1)
    )
    if before is None:
        return query.correlate(Run).lateral()
    preceding = tuple_(*_PROCESS) < tuple_(before.c.node_id, before.c.boot, before.c.rank)
    return query.where(preceding).correlate(Run, before).lateral()


def _same_process(table: CTE | LateralFromClause) -> ColumnElement[bool]:
    return and_(*(column == table.c[column.key] for column in _PROCESS))
