"""SQL over runs and allocations. Every read of runs starts from `visible_runs`."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec
from sqlalchemy import (
    JSON,
    BigInteger,
    ColumnElement,
    Row,
    Select,
    SQLColumnExpression,
    TableValuedAlias,
    Text,
    all_,
    and_,
    any_,
    case,
    cast,
    column,
    func,
    literal,
    or_,
    select,
    true,
    update,
)
from sqlalchemy.dialects.postgresql import ARRAY, aggregate_order_by, insert
from sqlalchemy.orm import Session

from flopwatch_server.access.principal import Principal
from flopwatch_server.access.visibility import may_see
from flopwatch_server.fleet.models import Cluster, Device, Node, Placement
from flopwatch_server.fleet.service import GRES_CONF
from flopwatch_server.jobs import identity
from flopwatch_server.jobs.models import Allocation, Run
from flopwatch_server.jobs.schemas import RunView
from flopwatch_server.scheduler.records import PENDING_STATES

_END = func.coalesce(Run.ended_at, Run.vanished_at)
_NAMESAKES = 8  # jobs that answer to one id: Slurm uses ids again, and a task may be in a rest
Holding = Row[int, int, int, int, datetime | None, bool]
Key = tuple[int, datetime]
Known = Row[int, datetime, int, datetime | None, datetime | None, int | None]
"""A run: (raw job id, submit time, id, ended at, vanished at, told)."""
_PENDING = literal(sorted(PENDING_STATES), ARRAY(Text))

_held = (
    select(
        func.min(Device.model).label("gpu_model"),
        func.array_agg(aggregate_order_by(Node.name.distinct(), Node.name)).label("nodes"),
    )
    .select_from(Allocation)
    .join(Node, Node.id == Allocation.node_id)
    .outerjoin(Device, Device.id == Allocation.device_id)
    .where(Allocation.run_id == Run.id)
    .correlate(Run)
    .lateral("held")
)


def visible_runs(principal: Principal) -> Select[tuple[Run, str, bool, str | None, list[str]]]:
    """The runs that `principal` may see: (run, cluster name, simulated, GPU model, node names)."""
    return (
        select(Run, Cluster.name, Cluster.simulated, _held.c.gpu_model, _held.c.nodes)
        .join(Cluster, Cluster.id == Run.cluster_id)
        .outerjoin(_held, true())
        .where(may_see(principal, Run.user_name, Run.account))
    )  # fmt: skip


def to_view(row: Row[Any], now: datetime) -> RunView:
    """One row of `visible_runs` as API and pages show it."""
    run, cluster, simulated, gpu_model, nodes = tuple(row)[:5]
    ended_at = run.ended_at or run.vanished_at
    elapsed = None
    if run.started_at is not None:
        elapsed = ((ended_at or now) - run.started_at).total_seconds()
        elapsed -= run.suspended_seconds or 0
    return RunView(
        id=run.id, cluster=cluster, simulated=simulated, job_id=run.display_id,
        raw_job_id=run.raw_job_id, name=run.name, user=run.user_name, account=run.account,
        partition=run.partition, qos=run.qos, state=run.state, reason=run.reason,
        submitted_at=run.submitted_at, started_at=run.started_at, ended_at=ended_at,
        elapsed_seconds=elapsed, time_limit_seconds=run.time_limit_seconds,
        restarts=run.restarts, exit_code=run.exit_code, gpus=run.gpu_count,
        gpu_model=gpu_model, nodes=list(nodes or []), local=run.local,
    )  # fmt: skip


def newest_run(
    session: Session, principal: Principal, cluster: str, job_id: str
) -> Row[Any] | None:
    """The newest visible run of the job that `job_id` names, in any of the forms of `identity`.

    Where several answer to it, the one that shows this very id comes first, then the one of this
    raw id: the last task of an array has the array's own.
    """
    runs = visible_runs(principal).where(Cluster.name == cluster)
    shown = identity.without_step(job_id)
    named = identity.parse(shown)
    by_raw_id = () if named is None else ((Run.raw_job_id == named.first).desc(),)
    newest = runs.where(is_named(shown)).order_by(
        (Run.display_id == shown).desc(), *by_raw_id, Run.submitted_at.desc()
    )
    rows = session.execute(newest.limit(_NAMESAKES))
    return next(
        (row for row in rows if row.Run.display_id == shown or _holds(row.Run, named)), None
    )


def _holds(run: Run, named: identity.JobId | None) -> bool:
    """Whether a run that answers to an id is of its task, where it asks for one."""
    if named is None or named.task is None or run.array_task_id is not None:
        return True
    return any(named.task in some for some in identity.waiting_tasks(run.display_id) or ())


def is_named(job_id: str) -> ColumnElement[bool]:
    """Whether a run is of the job that this id names. A task that still waits is in the rest."""
    named = identity.parse(job_id)
    shows_it = Run.display_id == job_id
    match named:
        case None:
            return or_(shows_it, Run.sluid == job_id)
        case identity.JobId(task=int(task)):
            ours = or_(Run.array_task_id == task, Run.array_task_id.is_(None))
            return or_(shows_it, and_(Run.array_job_id == named.first, ours))
        case identity.JobId(offset=int(offset)):
            return or_(shows_it, and_(Run.het_job_id == named.first, Run.het_offset == offset))
        case identity.JobId(is_rest=True):
            is_rest = Run.array_task_id.is_(None)
            return or_(shows_it, and_(Run.array_job_id == named.first, is_rest))
        case _:
            ids = (Run.raw_job_id, Run.array_job_id, Run.het_job_id)
            return or_(shows_it, *(id_ == named.first for id_ in ids))


def waiting(
    session: Session, principal: Principal, cluster_id: int
) -> Sequence[Row[str, str, int | None, str | None, int]]:
    """The runs that wait and that `principal` may see, those that are alike together.

    Gives (reason, account, GPUs of each, id of the rest of an array or None, how many).
    """
    is_rest = Run.array_job_id.is_not(None) & Run.array_task_id.is_(None)
    alike = (Run.reason, Run.account, Run.gpu_count, case((is_rest, Run.display_id)))
    return session.execute(
        select(*alike, func.count())
        .where(
            _scheduled(cluster_id),
            Run.state == any_(_PENDING),
            Run.ended_at.is_(None),
            Run.vanished_at.is_(None),
            Run.gpu_count.is_distinct_from(0),
            may_see(principal, Run.user_name, Run.account),
        )
        .group_by(*alike)
    ).all()


def open_runs(session: Session, cluster_id: int) -> dict[Key, Known]:
    """What is known of the runs of a cluster that have no end, by raw job id and submit time."""
    return _known(session, cluster_id, Run.ended_at.is_(None))


def runs_of(session: Session, cluster_id: int, raw_job_ids: Iterable[int]) -> dict[Key, Known]:
    """What is known of all runs of these jobs, by raw job id and submit time."""
    return _known(session, cluster_id, _one_of(Run.raw_job_id, raw_job_ids))


def _known(session: Session, cluster_id: int, which: ColumnElement[bool]) -> dict[Key, Known]:
    # Columns of the table, not of the class: of many thousand rows the ORM's share is the most.
    run = Run.__table__.c
    rows = session.execute(
        select(
            run.raw_job_id, run.submitted_at, run.id, run.ended_at, run.vanished_at, run.told
        ).where(_scheduled(cluster_id), which)
    )
    return {(row[0], row[1]): row for row in rows}


def upsert_runs(session: Session, rows: Sequence[dict[str, Any]]) -> dict[Key, int]:
    """Insert runs, or update what the scheduler says of those that are known.

    Gives the ids of those that were written, by raw job id and submit time. An end is never taken
    back, and a start or a count that is told no more stays, but for the start of a run that waits
    again. The name stays when a run ends: Slurm's accounting has "?" in place of each letter that
    is not Latin.
    """
    if not rows:
        return {}
    told = _recordset(rows)
    statement = insert(Run).from_select(list(told.c.keys()), select(told))
    new = statement.excluded
    kept = (
        "ended_at", "gpu_count", "node_count", "exit_code", "time_limit_seconds",
        "suspended_seconds", "restarts", "sluid",
    )  # fmt: skip
    identity = ("id", "cluster_id", "raw_job_id", "submitted_at")
    changes: dict[str, Any] = {
        column.name: func.coalesce(new[column.name], column) if column.name in kept
        else new[column.name]
        for column in Run.__table__.columns if column.name not in identity
    }  # fmt: skip
    changes["name"] = case((new.ended_at.is_(None), new.name), else_=Run.name)
    started = new.ended_at.is_not(None) | (new.state != all_(_PENDING))
    changes["started_at"] = case((started, func.coalesce(new.started_at, Run.started_at)))
    written = session.execute(
        statement.on_conflict_do_update(
            index_elements=["cluster_id", "raw_job_id", "submitted_at"],
            set_=changes,
            # A queue that was read before the end must not reopen the run.
            where=Run.ended_at.is_(None) | new.ended_at.is_not(None),
        ).returning(Run.raw_job_id, Run.submitted_at, Run.id)
    )
    return {(raw, at): run_id for raw, at, run_id in written}


def _recordset(rows: Sequence[dict[str, Any]]) -> TableValuedAlias:
    """Rows of runs as a table that PostgreSQL makes of one document.

    One parameter, however many rows: a statement can't have more than 65,535, and each costs.
    """
    columns = [Run.__table__.c[name] for name in rows[0]]
    document = literal(msgspec.json.encode(rows).decode(), Text)
    return (
        func.json_to_recordset(cast(document, JSON))
        .table_valued(*(column(each.name, each.type) for each in columns))
        .render_derived("told", with_types=True)
    )


def _one_of(column: SQLColumnExpression[int], values: Iterable[int]) -> ColumnElement[bool]:
    """Whether a column is among any number of values, as one parameter."""
    return column == any_(literal(list(values), ARRAY(BigInteger)))


def _scheduled(cluster_id: int) -> ColumnElement[bool]:
    """The runs that a cluster's scheduler tells of: local ones are none of its business."""
    return (Run.cluster_id == cluster_id) & ~Run.local


def mark_vanished(session: Session, ids: Iterable[int], now: datetime) -> None:
    """These runs left the queue, unless they have ended since."""
    session.execute(
        update(Run).where(_one_of(Run.id, ids), Run.ended_at.is_(None)).values(vanished_at=now)
    )


def add_allocations(session: Session, rows: Sequence[dict[str, Any]]) -> None:
    """Insert allocations that are not known yet; a known one keeps what it has."""
    if rows:
        session.execute(insert(Allocation).on_conflict_do_nothing(), list(rows))


def move_ends(session: Session, before: Mapping[int, datetime]) -> None:
    """Let allocations that ended with their run, at the time `before`, end where it ends now."""
    now = session.execute(select(Run.id, _END).where(_one_of(Run.id, before)))
    for run_id, end in now:
        if end != before[run_id]:
            session.execute(
                update(Allocation)
                .where(Allocation.run_id == run_id, Allocation.valid_to == before[run_id])
                .values(valid_to=end and func.greatest(Allocation.valid_from, end))
            )


def close_allocations(session: Session, cluster_id: int) -> None:
    """Let what is held to the last end with its run: its end, or when it left the queue."""
    session.execute(
        update(Allocation)
        .where(
            Allocation.run_id == Run.id,
            _scheduled(cluster_id),
            Allocation.valid_to.is_(None),
            _END.is_not(None),
        )
        .values(valid_to=func.greatest(Allocation.valid_from, _END))
    )


def holdings(session: Session, run_ids: Iterable[int]) -> Sequence[Holding]:
    """Allocations of these runs: (id, run id, node id, place, end, whether held to the last)."""
    return session.execute(
        select(
            Allocation.id, Allocation.run_id, Allocation.node_id, Allocation.place,
            Allocation.valid_to,
            Allocation.valid_to.is_not_distinct_from(_END).label("held_to_the_last"),
        )
        .join(Run, Run.id == Allocation.run_id)
        .where(_one_of(Allocation.run_id, run_ids))
    ).all()  # fmt: skip


def release(session: Session, allocation_ids: Iterable[int], now: datetime) -> None:
    """These GPUs are held no more, while their run goes on."""
    session.execute(
        update(Allocation)
        .where(_one_of(Allocation.id, allocation_ids))
        .values(valid_to=func.greatest(Allocation.valid_from, now))
    )


def unresolved(session: Session, cluster_id: int, since: datetime) -> Sequence[Allocation]:
    """Allocations of a known ordinal, begun after `since`, whose device is not known."""
    return session.scalars(
        select(Allocation)
        .join(Node)
        .where(
            Node.cluster_id == cluster_id,
            Allocation.valid_from >= since,
            Allocation.device_id.is_(None),
            Allocation.gres_ordinal.is_not(None),
        )
    ).all()


def unseat(session: Session, cluster_id: int) -> None:
    """Forget the device of what is held now, where gres.conf says that it sits at another ordinal.

    So it does of one that was found by the order of minors, before the agent could read the file.
    What processes have proved stays, and so does a device that is no longer in the node: which one
    sits there now says nothing of the time before.
    """
    elsewhere = (
        select(Placement.device_id)
        .where(
            Placement.device_id == Allocation.device_id,
            Placement.node_id == Allocation.node_id,
            Placement.valid_to.is_(None),
            Placement.ordinal_source == GRES_CONF,
            Placement.gres_ordinal != Allocation.gres_ordinal,
        )
        .correlate(Allocation)
    )
    session.execute(
        update(Allocation)
        .where(
            Allocation.valid_to.is_(None),
            Allocation.confidence.in_(("likely", "disputed", "assumed")),
            Allocation.run_id == Run.id,
            _scheduled(cluster_id),
            elsewhere.exists(),
        )
        .values(device_id=None, confidence="unknown")
        .execution_options(synchronize_session=False)
    )


def with_allocations(session: Session, wanted: Iterable[int]) -> set[int]:
    """Those of these run ids that have an allocation."""
    held = select(Allocation.run_id).where(_one_of(Allocation.run_id, wanted))
    return set(session.scalars(held.distinct()))
