"""The jobs list: which runs match, in which order, and what each got out of its GPUs."""

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from functools import cache
from typing import Any

from sqlalchemy import (
    ARRAY,
    BigInteger,
    ColumnElement,
    Integer,
    Select,
    Text,
    any_,
    bindparam,
    cast,
    func,
    or_,
    select,
    tuple_,
)
from sqlalchemy.orm import Session

from flopwatch_server.access.principal import Principal
from flopwatch_server.access.visibility import may_see
from flopwatch_server.database.base import UtcDateTime
from flopwatch_server.efficiency.models import MEAN_COLUMNS, run_figures
from flopwatch_server.efficiency.repository.figures import mean, newest_minute
from flopwatch_server.efficiency.schemas import JobQuery
from flopwatch_server.fleet.models import Cluster
from flopwatch_server.jobs.identity import without_step
from flopwatch_server.jobs.models import Run
from flopwatch_server.jobs.repository import is_named, visible_runs
from flopwatch_server.telemetry.models import device_minutes
from flopwatch_server.telemetry.repository import (
    MINUTE,
    AnyRow,
    epoch_seconds,
    held,
    instant,
    interval,
    minute_counts,
)

SPARK_STEP_SECONDS = 120
SPARK_POINTS = 30
_FIGURES = ("idle_gpu_hours", *MEAN_COLUMNS, "mfu")
_SORTS: dict[str, ColumnElement[Any]] = {
    "job_id": Run.raw_job_id.expression,
    "name": func.lower(Run.name),
    "user": func.lower(Run.user_name),
    "account": func.lower(Run.account),
    "partition": func.lower(Run.partition),
    "state": Run.state.expression,
    "submitted_at": Run.submitted_at.expression,
    "started_at": Run.started_at.expression,
    "ended_at": func.coalesce(Run.ended_at, Run.vanished_at),
    "gpus": Run.gpu_count.expression,
    **{name: run_figures.c[name] for name in _FIGURES},
}


def matching(principal: Principal, query: JobQuery, now: datetime) -> Select[int]:
    """Ids of the visible runs that a query asks for."""
    runs = (
        select(Run.id)
        .join(Cluster, Cluster.id == Run.cluster_id)
        .where(may_see(principal, Run.user_name, Run.account))
        .where(*_not_over_by(now - timedelta(query.days)))
    )
    if query.cluster is not None:
        runs = runs.where(Cluster.name == query.cluster)
    if query.gpus_min is not None:
        runs = runs.where(Run.gpu_count >= query.gpus_min)
    facets = (
        (Run.state, query.states),
        (Run.user_name, query.users),
        (Run.account, query.accounts),
        (Run.partition, query.partitions),
    )
    for field, values in facets:
        if values:
            runs = runs.where(field.in_(values))
    if query.text:
        texts = (Run.name, Run.user_name, Run.display_id, cast(Run.raw_job_id, Text))
        holds_text = (text.icontains(query.text, autoescape=True) for text in texts)
        runs = runs.where(or_(is_named(without_step(query.text)), *holds_text))
    return runs


def totals(session: Session, ids: Select[int]) -> tuple[int, int]:
    """How many runs these are, and how many GPUs they have together."""
    row = session.execute(
        ids.with_only_columns(
            func.count(), cast(func.coalesce(func.sum(Run.gpu_count), 0), BigInteger)
        )
    ).one()
    return row[0], row[1]


def facets(session: Session, ids: Select[int]) -> list[AnyRow]:
    """How many of these runs carry each value: (state, user, account, partition, count).

    All but one of the four are None in each row; most first.
    """
    fields = (Run.state, Run.user_name, Run.account, Run.partition)
    count = func.count()
    return list(
        session.execute(
            ids.with_only_columns(*fields, count)
            .group_by(func.grouping_sets(*(tuple_(field) for field in fields)))
            .order_by(count.desc(), *fields)
        ).all()
    )


def rows(
    session: Session, principal: Principal, ids: Select[int], sort: str, offset: int, limit: int,
    now: datetime,
) -> list[AnyRow]:  # fmt: skip
    """One block of these runs in order: a row of `visible_runs`, then its figures by name."""
    name, descending = sort.removeprefix("-"), sort.startswith("-")
    key = _elapsed(now) if name == "elapsed" else _SORTS[name]
    ranked = (
        ids.outerjoin(run_figures, run_figures.c.run_id == Run.id)
        .add_columns(key.label("key"), *(run_figures.c[name] for name in _FIGURES))
        .order_by(*_order(key, descending))
        .offset(offset)
        .limit(limit)
        .cte("ranked")
    )
    return list(
        session.execute(
            visible_runs(principal)
            .join(ranked, ranked.c.id == Run.id)
            .add_columns(*(ranked.c[name] for name in _FIGURES))
            .order_by(*_order(ranked.c.key, descending))
        ).all()
    )


def _order(key: ColumnElement[Any], descending: bool) -> list[ColumnElement[Any]]:
    """Unknown last either way; the newest run first among equals."""
    ordered = key.desc() if descending else key.asc()
    return [ordered.nulls_last(), Run.submitted_at.desc(), Run.id.desc()]


def _elapsed(now: datetime) -> ColumnElement[float]:
    end = func.coalesce(Run.ended_at, Run.vanished_at, instant(now))
    return epoch_seconds(end - Run.started_at) - func.coalesce(Run.suspended_seconds, 0)


def sparks(
    session: Session, run_ids: Collection[int], now: datetime
) -> dict[int, list[float | None]]:
    """Mean tensor activity over the last hour of each run, oldest first, in steps of 2 minutes."""
    found: dict[int, list[float | None]] = {run_id: [None] * SPARK_POINTS for run_id in run_ids}
    complete = newest_minute(now) + MINUTE
    for run_id, place, value in session.execute(
        _sparks(), {"now": now, "complete": complete, "run_ids": list(run_ids)}
    ):
        found[run_id][SPARK_POINTS - 1 - place] = value
    return found


@cache
def _sparks() -> Select[Any]:
    now, complete = (bindparam(name, type_=UtcDateTime) for name in ("now", "complete"))
    holding = held(now, Run.id == any_(bindparam("run_ids", type_=ARRAY(BigInteger))))
    until = func.least(holding.c.until, complete)
    last = func.max(until).over(partition_by=holding.c.run_id)
    ends = select(holding, last.label("last")).where(~holding.c.shared).cte("ends")
    end = func.ceil(epoch_seconds(ends.c.last) / SPARK_STEP_SECONDS) * SPARK_STEP_SECONDS
    minute_end = epoch_seconds(device_minutes.c.minute) + 60.0
    back = cast(func.floor((end - minute_end) / SPARK_STEP_SECONDS), Integer)
    hour = interval(timedelta(seconds=SPARK_STEP_SECONDS * SPARK_POINTS))
    return (
        select(ends.c.run_id, back, mean("tensor_active"))
        .join(device_minutes, minute_counts(ends))
        .where(device_minutes.c.minute >= ends.c.last - hour, back.between(0, SPARK_POINTS - 1))
        .group_by(ends.c.run_id, back)
    )


def reporting_runs(session: Session, since: datetime) -> Sequence[int]:
    """Ids of GPU runs whose processes may report: those that run, or have not ended by `since`."""
    return session.scalars(
        select(Run.id).where(
            Run.started_at.is_not(None), Run.gpu_count >= 1, *_not_over_by(since)
        )
    ).all()  # fmt: skip


def _not_over_by(time: datetime) -> tuple[ColumnElement[bool], ...]:
    """Runs that go on, or were not over yet at `time`, as far as is known.

    The second condition says it; the first is what the index on `ended_at` can answer.
    """
    ends = (Run.ended_at.expression, func.coalesce(Run.ended_at, Run.vanished_at))
    return tuple(or_(end.is_(None), end >= instant(time)) for end in ends)
