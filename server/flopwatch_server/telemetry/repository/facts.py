"""What a batch tells beside samples: reasons for missing values, gaps, reports, hosts."""

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import ColumnElement, exists, func, literal, select, update
from sqlalchemy.dialects.postgresql import Insert, insert
from sqlalchemy.orm import Session

from flopwatch import wire
from flopwatch_server.database.base import Base
from flopwatch_server.fleet.registration import Registration
from flopwatch_server.fleet.repository import agents
from flopwatch_server.telemetry.ingest import Implausible, ValidatedBatch
from flopwatch_server.telemetry.models import Gap, HookCounter, MetricState, NodeMinute, RunMinute

Row = dict[str, Any]
_How = Callable[[ColumnElement[Any], ColumnElement[Any]], ColumnElement[Any]]
Registered = tuple[ValidatedBatch, Registration]
_REPORT_COLUMNS = (
    "boot", "rank", "sequence", "world_size", "device_name", "device_uuid", "train_flops",
    "forward_only_flops", "train_seconds", "elapsed_seconds", "steps", "phase_seconds",
    "convention", "reason", "dropped",
)  # fmt: skip


def instant(seconds: float) -> datetime:
    """Seconds since 1970 as a time."""
    return datetime.fromtimestamp(seconds, UTC)


def minute_of(time: Any) -> Any:
    """The start of the minute that an interval which ends at `time` belongs to."""
    return (time - 1) // 60 * 60


class MetricStates:
    """Why metrics of devices have no value, over time.

    Remembers the last word on each metric, since agents repeat themselves. `forget` it when a
    transaction is rolled back.
    """

    def __init__(self) -> None:
        self._last: dict[tuple[int, str], tuple[float, str | None]] = {}

    def forget(self) -> None:
        """Remember nothing."""
        self._last.clear()

    def tell(self, session: Session, device_id: int, entry: wire.Missing) -> None:
        """`entry.metric` has no value since `entry.since`, or with no reason has one again."""
        key = device_id, entry.metric
        since, reason = self._last.get(key, (entry.since, None))
        if entry.since < since:  # older than what is known: a piece of the past
            if entry.reason is not None:
                _insert_state(session, key, entry.reason, entry.since, since)
        elif key not in self._last or entry.reason != reason:
            _close_state(session, key, entry.reason, entry.since)
            if entry.reason is not None:
                _insert_state(session, key, entry.reason, entry.since, None)
            self._last[key] = entry.since, entry.reason


def _close_state(session: Session, key: tuple[int, str], reason: str | None, at: float) -> None:
    """End what was open at `at`, unless it is for the same reason."""
    session.execute(
        update(MetricState)
        .where(
            MetricState.device_id == key[0],
            MetricState.metric == key[1],
            MetricState.valid_to.is_(None),
            MetricState.valid_from < instant(at),
            MetricState.reason != (reason or ""),
        )
        .values(valid_to=instant(at))
        .execution_options(synchronize_session=False)
    )


def _insert_state(
    session: Session, key: tuple[int, str], reason: str, start: float, end: float | None
) -> None:
    """Add [start, end); one that is open only where no other is."""
    open_already = exists().where(
        MetricState.device_id == key[0],
        MetricState.metric == key[1],
        MetricState.valid_to.is_(None),
    )
    row = select(
        literal(key[0]),
        literal(key[1]),
        literal(instant(start)),
        literal(None if end is None else instant(end), MetricState.valid_to.type),
        literal(reason),
    )
    session.execute(
        insert(MetricState)
        .from_select(
            ["device_id", "metric", "valid_from", "valid_to", "reason"],
            row if end is not None else row.where(~open_already),
        )
        .on_conflict_do_nothing()
    )


def tell_implausible(session: Session, device_id: int, entry: Implausible) -> None:
    """Record that values were implausible over (start, end], as one stretch with what it joins."""
    start, end = instant(entry.start), instant(entry.end)
    joined = session.execute(
        update(MetricState)
        .where(
            MetricState.device_id == device_id,
            MetricState.metric == entry.metric,
            MetricState.reason == "implausible",
            MetricState.valid_from < start,
            MetricState.valid_to.between(start, end),
        )
        .values(valid_to=end)
        .returning(MetricState.valid_from)
        .execution_options(synchronize_session=False)
    ).first()
    if joined is None:
        statement = insert(MetricState).values(
            device_id=device_id, metric=entry.metric, valid_from=start, valid_to=end,
            reason="implausible",
        )  # fmt: skip
        session.execute(
            statement.on_conflict_do_update(
                index_elements=["device_id", "metric", "valid_from"],
                set_={"valid_to": func.greatest(MetricState.valid_to, end)},
                where=MetricState.reason == "implausible",
            )
        )


def write_gaps(session: Session, registered: Iterable[Registered]) -> None:
    """Record lost stretches; one without a device is about every device of the node."""
    rows = [
        {"device_id": device_id, "valid_from": instant(gap.start), "valid_to": instant(gap.end),
         "cause": gap.cause}
        for batch, ids in registered
        for gap in batch.header.gaps
        for device_id in _devices_of(session, gap, ids)
    ]  # fmt: skip
    _execute(session, _UPSERT_GAP, rows)


def _devices_of(session: Session, gap: wire.Gap, ids: Registration) -> Sequence[int]:
    if gap.device is not None:
        return [int(ids.device_ids[gap.device])]
    if len(ids.device_ids):
        return [int(id_) for id_ in ids.device_ids]
    return [place.device_id for place in agents.current_placements(session, [ids.node_id])]


def write_reports(session: Session, registered: Iterable[Registered]) -> None:
    """Keep what training processes reported; their counters are cumulative, so once is enough."""
    rows: list[Row] = [
        {
            "node_id": ids.node_id,
            "cluster_id": batch.cluster_id,
            "raw_job_id": entry.job_id,
            "received_at": instant(entry.received_at),
            "pid": entry.pid,
            "uid": entry.uid,
            **{name: getattr(entry.report, name) for name in _REPORT_COLUMNS},
        }
        for batch, ids in registered
        for entry in batch.header.reports
    ]
    _execute(session, _INSERT_REPORT, rows)


def write_host_usage(session: Session, registered: Iterable[Registered]) -> None:
    """Keep CPU and memory of nodes and of jobs, a row a minute; the last word counts."""
    nodes: list[Row] = []
    runs: list[Row] = []
    for batch, ids in registered:
        for usage in batch.header.host:
            row = {
                "node_id": ids.node_id,
                "minute": instant(minute_of(usage.time)),
                "cpu_seconds": usage.cpu_seconds,
                "cpu_count": usage.cpu_count,
                "memory_used_mib": usage.memory_used_mib,
                "memory_total_mib": usage.memory_total_mib,
            }
            if usage.job_id is None:
                nodes.append(row)
            else:
                runs.append(row | {"raw_job_id": usage.job_id})
    _execute(session, _UPSERT_NODE_MINUTE, nodes)
    _execute(session, _UPSERT_RUN_MINUTE, runs)


def _execute(session: Session, statement: Insert, rows: list[Row]) -> None:
    if rows:
        session.execute(statement, rows)


def _upsert(model: type[Base], key: list[str], replaced: Sequence[str], how: _How) -> Insert:
    """INSERT of a row that, where its key is there already, replaces some columns."""
    statement = insert(model)
    columns = model.__table__.c
    return statement.on_conflict_do_update(
        index_elements=key,
        set_={name: how(columns[name], statement.excluded[name]) for name in replaced},
    )


def _greatest(old: ColumnElement[Any], new: ColumnElement[Any]) -> ColumnElement[Any]:
    return func.greatest(old, new)


def _newest(old: ColumnElement[Any], new: ColumnElement[Any]) -> ColumnElement[Any]:
    return new


# Built once: building a statement costs more than running it.
_USAGE = ("cpu_seconds", "cpu_count", "memory_used_mib", "memory_total_mib")
_UPSERT_GAP = _upsert(Gap, ["device_id", "valid_from"], ["valid_to"], _greatest)
_UPSERT_NODE_MINUTE = _upsert(NodeMinute, ["node_id", "minute"], _USAGE, _newest)
_UPSERT_RUN_MINUTE = _upsert(RunMinute, ["node_id", "raw_job_id", "minute"], _USAGE, _newest)
_INSERT_REPORT = insert(HookCounter).on_conflict_do_nothing()
