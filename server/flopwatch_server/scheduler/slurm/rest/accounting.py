"""Ended runs, as slurmrestd's slurmdb writes them."""

from datetime import datetime
from typing import Any

import msgspec

from flopwatch_server.scheduler.records import JobRecord
from flopwatch_server.scheduler.slurm import documents
from flopwatch_server.scheduler.slurm.documents import Number, Optional
from flopwatch_server.scheduler.slurm.fields import FieldError, node_names
from flopwatch_server.scheduler.slurm.queue import display_id
from flopwatch_server.scheduler.slurm.table import Answer, read_each


class _Time(msgspec.Struct):
    submission: Optional
    start: Optional
    end: Optional
    suspended: Optional
    limit: Optional


class _State(msgspec.Struct):
    current: str | list[str]
    reason: str | None


class _Tres(msgspec.Struct):
    type: str
    name: str | None
    count: int | None


class _AllTres(msgspec.Struct):
    allocated: list[_Tres]
    requested: list[_Tres]


class _Array(msgspec.Struct):
    job_id: int
    task_id: Optional
    task: str | None


class _Het(msgspec.Struct):
    job_id: int
    job_offset: Optional


class _Run(msgspec.Struct):
    job_id: int
    name: str
    user: str | None
    account: str | None
    partition: str
    qos: str | None
    nodes: str | None
    allocation_nodes: Optional
    state: _State
    time: _Time
    tres: _AllTres
    array: _Array
    het: _Het
    exit_code: dict[str, Any]


def parse_ended(text: str, since: datetime) -> Answer[JobRecord]:
    """Runs of an answer that ended at or after `since`; one that has no partition yet is told by a
    later answer (accounting.read_ended says why)."""
    answer = read_each(documents.records(text, "jobs", "slurmdb/jobs"), parse_run)
    answer.records = [
        run
        for run in answer.records
        if run.partition and run.ended_at is not None and run.ended_at >= since
    ]
    return answer


def parse_run(raw: msgspec.Raw) -> JobRecord:
    """One run, whose end is None if it is not over; raises FieldError naming the field."""
    run = documents.read(raw, _Run)
    nodes = node_names({"nodes": run.nodes or ""}, "nodes")
    limit = documents.whole(run.time.limit)
    task = documents.whole(run.array.task_id)
    tasks = run.array.task or ("" if task is None else str(task))
    array = documents.identity(run.array.job_id) if tasks else None
    het = documents.identity(run.het.job_id)
    offset = None if het is None else documents.whole(run.het.job_offset)
    allocated = _gpu_count(run.tres.allocated)
    return JobRecord(
        raw_job_id=run.job_id,
        submitted_at=documents.required_moment(run.time.submission, "submission"),
        state=documents.state(run.state.current, "state"),
        name=run.name,
        user=run.user or "",
        account=run.account or "",
        display_id=display_id(run.job_id, array, tasks, het, offset),
        partition=run.partition,
        qos=run.qos or "",
        reason="" if run.state.reason in (None, "None") else run.state.reason,
        # A job cancelled while it waited may have its end as its start, but never a node.
        started_at=documents.moment(run.time.start) if nodes else None,
        ended_at=documents.moment(run.time.end),
        time_limit_seconds=None if limit is None else limit * 60,
        suspended_seconds=documents.whole(run.time.suspended),
        exit_code=_exit_code(run.exit_code),
        gpu_count=_gpu_count(run.tres.requested) if allocated is None else allocated,
        node_count=documents.identity(run.allocation_nodes),  # 0 of what never started
        nodes=nodes,
        array_job_id=array,
        array_task_id=task if array is not None else None,
        het_job_id=het,
        het_offset=offset,
    )


def _gpu_count(tres: list[_Tres]) -> int | None:
    """As gres.tres_gpu_count: the untyped entry, else the sum of the typed ones; -2 is no count."""
    counts = {
        one.name: one.count
        for one in tres
        if one.type == "gres" and one.name and one.count is not None and one.count >= 0
    }
    if "gpu" in counts:
        return counts["gpu"]
    typed = [count for name, count in counts.items() if name.startswith("gpu:")]
    return sum(typed) if typed else None


def _exit_code(told: dict[str, Any]) -> str | None:
    """ "3:0", code and signal; None before 23.11, which tells success even of what failed."""
    signal = told.get("signal")
    if signal is None or (isinstance(signal, dict) and "signal_id" in signal):
        return None
    try:
        code = msgspec.convert(told["return_code"], Optional)
        number = msgspec.convert(signal["id"], Number)
    except (KeyError, TypeError, msgspec.ValidationError):
        raise FieldError("exit_code", told) from None
    return f"{documents.whole(code) or 0}:{documents.whole(number) or 0}"
