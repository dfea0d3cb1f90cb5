"""The jobs list: which runs match, in which order, and what each got out of its GPUs."""

from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import (
    CTE,
    BigInteger,
    ColumnElement,
    Float,
    Integer,
    Select,
    TableValuedAlias,
    Text,
    case,
    cast,
    column,
    func,
    literal,
    or_,
    select,
    tuple_,
)
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.orm import Session

from flopwatch_server.access.principal import Principal, may_see
from flopwatch_server.efficiency.repository.figures import (
    mean,
    minute_figures,
    newest_minute,
)
from flopwatch_server.efficiency.schemas import JobQuery
from flopwatch_server.fleet.models import Cluster
from flopwatch_server.jobs.models import Run
from flopwatch_server.jobs.repository import visible_runs
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
_MEANS = ("sm_active", "tensor_active", "dram_active", "power_watts")
_RUN_SORTS: dict[str, ColumnElement[Any]] = {
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
}


def matching(principal: Principal, query: JobQuery, now: datetime) -> Select[int]:
    """Ids of the visible runs that a query asks for."""
    runs = (
        select(Run.id)
        .join(Cluster, Cluster.id == Run.cluster_id)
        .where(may_see(principal, Run.user_name, Run.account))
        .where(or_(Run.ended_at.is_(None), Run.ended_at >= instant(now - timedelta(query.days))))
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
        runs = runs.where(or_(*(text.icontains(query.text, autoescape=True) for text in texts)))
    return runs


def totals(session: Session, ids: Select[int]) -> tuple[int, int]:
    """How many runs these are, and how many GPUs they have together."""
    row = session.execute(
        select(func.count(), cast(func.coalesce(func.sum(Run.gpu_count), 0), BigInteger)).where(
            Run.id.in_(ids)
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
            select(*fields, count)
            .where(Run.id.in_(ids))
            .group_by(func.grouping_sets(*(tuple_(field) for field in fields)))
            .order_by(count.desc(), *fields)
        ).all()
    )


def rows(
    session: Session, principal: Principal, ids: Select[int], sort: str, offset: int, limit: int,
    now: datetime, mfu: Mapping[int, float | None],
) -> list[AnyRow]:  # fmt: skip
    """One block of these runs in order: a row of `visible_runs`, then its figures by name.

    Figures are computed for all runs only if the order asks for them; `mfu` gives the MFU of each
    run where it is sorted by that.
    """
    name, descending = sort.removeprefix("-"), sort.startswith("-")
    by_run = _RUN_SORTS | {"elapsed": _elapsed(now)}
    if name in by_run:
        ids = _in_order(ids, by_run[name], descending).offset(offset).limit(limit)
        offset = 0
    scope = ids.cte("scope")
    figures = _figures(scope, now)
    key = by_run.get(name)
    query = select(Run.id, *(item for item in figures.c if item.key != "run_id")).outerjoin(
        figures, figures.c.run_id == Run.id
    )
    if name == "mfu":
        values = _values(mfu)
        query, key = query.outerjoin(values, values.c.run_id == Run.id), values.c.mfu
    elif key is None:
        key = figures.c[name]
    ranked = (
        _in_order(query.where(Run.id.in_(select(scope.c.id))), key, descending)
        .add_columns(func.row_number().over(order_by=_order(key, descending)).label("position"))
        .offset(offset)
        .limit(limit)
        .cte("ranked")
    )
    return list(
        session.execute(
            visible_runs(principal)
            .join(ranked, ranked.c.id == Run.id)
            .add_columns(*(item for item in ranked.c if item.key != "id"))
            .order_by(ranked.c.position)
        ).all()
    )


def _order(key: ColumnElement[Any], descending: bool) -> list[ColumnElement[Any]]:
    """Unknown last either way; the newest run first among equals."""
    ordered = key.desc() if descending else key.asc()
    return [ordered.nulls_last(), Run.submitted_at.desc(), Run.id.desc()]


def _in_order(query: Select[Any], key: ColumnElement[Any], descending: bool) -> Select[Any]:
    return query.order_by(*_order(key, descending))


def _elapsed(now: datetime) -> ColumnElement[float]:
    end = func.coalesce(Run.ended_at, Run.vanished_at, instant(now))
    return epoch_seconds(end - Run.started_at) - func.coalesce(Run.suspended_seconds, 0)


def _figures(scope: CTE, now: datetime) -> CTE:
    """By run of the scope: means, and GPU-hours in idle minutes, None if no minute is known."""
    holding = held(now, Run.id.in_(select(scope.c.id)))
    minutes = minute_figures(holding, now, "run_id", _MEANS, ()).cte("minutes")
    known = minutes.c.active + minutes.c.low + minutes.c.idle
    return select(
        minutes.c.key.label("run_id"),
        *(minutes.c[name] for name in _MEANS),
        case((known > 0, cast(minutes.c.idle, Float) / 60.0)).label("idle_gpu_hours"),
    ).cte("figures")


def _values(mfu: Mapping[int, float | None]) -> TableValuedAlias:
    """MFU by run as a table (run_id, mfu)."""
    table = func.unnest(
        literal(list(mfu), ARRAY(BigInteger)), literal(list(mfu.values()), ARRAY(Float))
    ).table_valued(column("run_id", BigInteger), column("mfu", Float), name="by_mfu")
    return table.render_derived()


def sparks(
    session: Session, run_ids: Collection[int], now: datetime
) -> dict[int, list[float | None]]:
    """Mean tensor activity over the last hour of each run, oldest first, in steps of 2 minutes."""
    holding = held(now, Run.id.in_(run_ids))
    complete = func.least(holding.c.until, instant(newest_minute(now) + MINUTE))
    last = func.max(complete).over(partition_by=holding.c.run_id)
    ends = select(holding, last.label("last")).where(~holding.c.shared).cte("ends")
    end = func.ceil(epoch_seconds(ends.c.last) / SPARK_STEP_SECONDS) * SPARK_STEP_SECONDS
    minute_end = epoch_seconds(device_minutes.c.minute) + 60.0
    back = cast(func.floor((end - minute_end) / SPARK_STEP_SECONDS), Integer)
    hour = interval(timedelta(seconds=SPARK_STEP_SECONDS * SPARK_POINTS))
    found: dict[int, list[float | None]] = {run_id: [None] * SPARK_POINTS for run_id in run_ids}
    for run_id, place, value in session.execute(
        select(ends.c.run_id, back, mean("tensor_active"))
        .join(device_minutes, minute_counts(ends))
        .where(device_minutes.c.minute >= ends.c.last - hour, back.between(0, SPARK_POINTS - 1))
        .group_by(ends.c.run_id, back)
    ):
        found[run_id][SPARK_POINTS - 1 - place] = value
    return found
