"""What a batch tells beside samples and states of metrics: gaps, reports, hosts."""

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import ColumnElement, func
from sqlalchemy.dialects.postgresql import Insert, insert
from sqlalchemy.orm import Session

from flopwatch import wire
from flopwatch_server.database.base import Base
from flopwatch_server.fleet.registration import Registration
from flopwatch_server.fleet.repository import agents
from flopwatch_server.telemetry.ingest import ValidatedBatch
from flopwatch_server.telemetry.models import Gap, HookCounter, NodeMinute, RunMinute

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
