"""Which GPUs a running job holds: the `gres_detail` of its JSON record.

JSON and not `scontrol show job -d`: there the names, commands and comments that users choose stand
in the same key=value text as the answer, and nothing tells a forged "GRES=" from a real one. JSON
costs more bytes (3 KB a job), but is asked for at starts only, and the keys that are read here are
the same from Slurm 21.08 to 25.11 and in slurmrestd's answers, however the rest changes.
"""

from collections.abc import Iterable

import msgspec

from flopwatch_server.scheduler.records import NodeGpus, SchedulerError
from flopwatch_server.scheduler.slurm.client import Client
from flopwatch_server.scheduler.slurm.fields import FieldError, node_names
from flopwatch_server.scheduler.slurm.gres import node_gpus, tres_gpu_count
from flopwatch_server.scheduler.slurm.table import Answer

TELLING = frozenset({"RUNNING", "SUSPENDED"})
"""Only in these states does Slurm tell the GPUs: while COMPLETING the list is empty already."""

JobGpus = tuple[int, tuple[NodeGpus, ...]]


class _Document(msgspec.Struct):
    jobs: list[msgspec.Raw]
    errors: list[msgspec.Raw] = []


class _Identity(msgspec.Struct):
    job_id: int


class _Job(_Identity):
    job_state: str | list[str]  # a list from 23.11 on
    nodes: str
    gres_detail: list[str]
    tres_alloc_str: str


def read_gpus(client: Client, raw_job_ids: Iterable[int]) -> Answer[JobGpus]:
    """The GPUs of these jobs; those of which Slurm does not tell (any more) are left out."""
    return parse_document(client.ask("squeue", "--all", "--local", "--json"), raw_job_ids)


def parse_document(text: str, raw_job_ids: Iterable[int]) -> Answer[JobGpus]:
    """The answer of `squeue --json` or of slurmrestd's jobs.

    Raises SchedulerError when it is no such document or tells of an error.
    """
    wanted = frozenset(raw_job_ids)
    try:
        document = msgspec.json.decode(text, type=_Document)
    except msgspec.DecodeError as error:
        raise SchedulerError(f"squeue --json: {error}") from error
    if document.errors:
        raise SchedulerError(f"squeue --json: errors reads {bytes(document.errors[0])[:200]!r}")
    answer: Answer[JobGpus] = Answer()
    for raw in document.jobs:
        try:
            if msgspec.json.decode(raw, type=_Identity).job_id not in wanted:
                continue
            job = msgspec.json.decode(raw, type=_Job)
            if _is_told(job):
                answer.records.append((job.job_id, _gpus(job)))
        except (msgspec.ValidationError, FieldError) as error:
            answer.refused.append(str(error))
    return answer


def _is_told(job: _Job) -> bool:
    """Whether an empty list means no GPUs."""
    states = {job.job_state} if isinstance(job.job_state, str) else set(job.job_state)
    if "COMPLETING" in states or not states & TELLING:
        return False
    field = "tres_alloc_str"
    return bool(job.gres_detail) or not tres_gpu_count({field: job.tres_alloc_str}, field)


def _gpus(job: _Job) -> tuple[NodeGpus, ...]:
    """One string for each node, in the order of the host list (as scontrol pairs them too)."""
    nodes = node_names({"nodes": job.nodes}, "nodes")
    if job.gres_detail and len(job.gres_detail) != len(nodes):
        raise FieldError(f"gres_detail of job {job.job_id} on {len(nodes)} nodes", job.gres_detail)
    return tuple(
        held
        for node, detail in zip(nodes, job.gres_detail, strict=False)
        for held in node_gpus({"gres_detail": detail}, "gres_detail", node)
    )
