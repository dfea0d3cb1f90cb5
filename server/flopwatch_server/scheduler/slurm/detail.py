"""Which GPUs a running job holds: the `gres_detail` of its JSON record.

The keys that are read here are the same from Slurm 21.08 to 25.11 and in slurmrestd's answers,
however the rest changes. JSON costs 3 KB a job, so it is asked for at starts only. A Slurm that was
built without it is asked in text (detail_text).
"""

from collections.abc import Iterable, Sequence

import msgspec

from flopwatch_server.scheduler.records import JobRecord, NodeGpus
from flopwatch_server.scheduler.slurm import documents
from flopwatch_server.scheduler.slurm.client import Client
from flopwatch_server.scheduler.slurm.fields import FieldError, node_names
from flopwatch_server.scheduler.slurm.gres import node_gpus, tres_gpu_count
from flopwatch_server.scheduler.slurm.table import Answer

JobGpus = tuple[int, tuple[NodeGpus, ...]]

_TELLING = frozenset({"RUNNING", "SUSPENDED"})


class _Identity(msgspec.Struct):
    job_id: int


class _Job(_Identity):
    job_state: str | list[str]  # a list from 23.11 on
    nodes: str
    gres_detail: list[str]
    tres_alloc_str: str


def read_gpus(client: Client, started: Iterable[JobRecord]) -> Answer[JobGpus]:
    """The GPUs of these jobs; those of which Slurm does not tell (any more) are left out."""
    ids = [job.raw_job_id for job in started]
    return parse_document(client.ask("squeue", "--all", "--local", "--json"), ids)


def parse_document(text: str, raw_job_ids: Iterable[int]) -> Answer[JobGpus]:
    """The answer of `squeue --json` or of slurmrestd's jobs.

    Raises SchedulerError when it is no such document or tells of an error.
    """
    wanted = frozenset(raw_job_ids)
    answer: Answer[JobGpus] = Answer()
    for raw in documents.records(text, "jobs", "squeue --json"):
        try:
            if documents.read(raw, _Identity).job_id not in wanted:
                continue
            job = documents.read(raw, _Job)
            if are_told(job.job_state, job.gres_detail, job.tres_alloc_str):
                answer.records.append(
                    (job.job_id, gpus_by_node(job.job_id, job.nodes, job.gres_detail))
                )
        except FieldError as error:
            answer.refused.append(error)
    return answer


def are_told(state: str | Sequence[str], details: Sequence[str], tres: str) -> bool:
    """Whether these details say which GPUs a job in this state holds, so that none means none.

    While COMPLETING the list is empty already, though the GPUs are still held. `tres` is what is
    allocated, and counts GPUs that the details may not name.
    """
    if documents.state(state, "job_state") not in _TELLING:
        return False
    return any(details) or not tres_gpu_count({"TRES": tres}, "TRES")


def gpus_by_node(job_id: int, host_list: str, details: Sequence[str]) -> tuple[NodeGpus, ...]:
    """One string for each node, in the order of the host list (as scontrol pairs them too)."""
    nodes = node_names({"nodes": host_list}, "nodes")
    if details and len(details) != len(nodes):
        raise FieldError("gres_detail", details, f"job {job_id} on {len(nodes)} nodes")
    return tuple(
        held
        for node, detail in zip(nodes, details, strict=False)
        for held in node_gpus({"gres_detail": detail}, "gres_detail", node)
    )
