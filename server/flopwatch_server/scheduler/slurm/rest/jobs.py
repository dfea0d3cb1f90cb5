"""Jobs of the queue, as slurmrestd and `squeue --json` write them."""

import msgspec

from flopwatch_server.scheduler.records import PENDING_STATES, RUNNING_STATES, JobRecord
from flopwatch_server.scheduler.slurm import documents
from flopwatch_server.scheduler.slurm.detail import are_told, gpus_by_node
from flopwatch_server.scheduler.slurm.documents import Optional
from flopwatch_server.scheduler.slurm.fields import node_names, sluid
from flopwatch_server.scheduler.slurm.gres import tres_gpu_count
from flopwatch_server.scheduler.slurm.queue import display_id
from flopwatch_server.scheduler.slurm.table import Answer, read_each


class _StepId(msgspec.Struct):
    sluid: str | None = None


class _Job(msgspec.Struct):
    job_id: int
    submit_time: Optional
    job_state: str | list[str]
    name: str | None
    user_name: str
    account: str | None
    partition: str
    qos: str | None
    state_reason: str
    start_time: Optional
    time_limit: Optional
    restart_cnt: int
    tres_alloc_str: str
    tres_req_str: str
    node_count: Optional
    nodes: str | None
    gres_detail: list[str]
    array_job_id: Optional
    array_task_id: Optional
    array_task_string: str | None
    het_job_id: Optional
    het_job_offset: Optional
    step_id: _StepId | None = None  # of the whole job, from 25.11 on


def parse_queue(text: str) -> Answer[JobRecord]:
    """All jobs of an answer that wait or hold GPUs, with the GPUs as far as they are told."""
    answer = read_each(documents.records(text, "jobs", "jobs"), parse_job)
    states = RUNNING_STATES | PENDING_STATES
    answer.records = [record for record in answer.records if record.state in states]
    return answer


def parse_job(raw: msgspec.Raw) -> JobRecord:
    """One record; raises FieldError naming the field of unknown shape."""
    job = documents.read(raw, _Job)
    state = documents.state(job.job_state, "job_state")
    nodes = job.nodes or ""
    told = are_told(job.job_state, job.gres_detail, job.tres_alloc_str)
    gpus = gpus_by_node(job.job_id, nodes, job.gres_detail) if told else None
    tres = {"tres": job.tres_alloc_str or job.tres_req_str}
    gpu_count = tres_gpu_count(tres, "tres")
    if gpu_count is None and gpus is not None:
        gpu_count = sum(held.count for held in gpus)
    limit = documents.whole(job.time_limit)
    task = documents.whole(job.array_task_id)
    tasks = job.array_task_string or ("" if task is None else str(task))
    array = documents.identity(job.array_job_id) if tasks else None
    het = documents.identity(job.het_job_id)
    offset = None if het is None else documents.whole(job.het_job_offset)
    return JobRecord(
        raw_job_id=job.job_id,
        submitted_at=documents.required_moment(job.submit_time, "submit_time"),
        state=state,
        name=job.name or "",
        user=job.user_name,
        account=job.account or "",
        display_id=display_id(job.job_id, array, tasks, het, offset),
        partition=job.partition,
        qos=job.qos or "",
        reason="" if job.state_reason == "None" else job.state_reason,
        # While a job waits this is when the scheduler hopes to start it.
        started_at=documents.moment(job.start_time) if state in RUNNING_STATES else None,
        time_limit_seconds=None if limit is None else limit * 60,
        restarts=job.restart_cnt,
        gpu_count=gpu_count,
        node_count=documents.whole(job.node_count),
        nodes=node_names({"nodes": nodes}, "nodes"),
        gpus=gpus,
        array_job_id=array,
        array_task_id=task if array is not None else None,
        het_job_id=het,
        het_offset=offset,
        sluid=None if job.step_id is None else sluid(job.step_id.sluid),
    )
