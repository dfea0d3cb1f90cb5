"""Which GPUs a running job holds: the `gres_detail` of its JSON record.

The keys that are read here are the same from Slurm 21.08 to 25.11 and in slurmrestd's answers,
however the rest changes. JSON costs 3 KB a job, so it is asked for at starts only. A Slurm that was
built without it is asked in text (detail_text).
"""

import re
from collections.abc import Iterable, Sequence

import msgspec

from flopwatch_server.scheduler.records import JobRecord, NodeGpus, SchedulerError
from flopwatch_server.scheduler.slurm.client import Client
from flopwatch_server.scheduler.slurm.fields import FieldError, node_names
from flopwatch_server.scheduler.slurm.gres import node_gpus, tres_gpu_count
from flopwatch_server.scheduler.slurm.table import Answer

JobGpus = tuple[int, tuple[NodeGpus, ...]]

_TELLING = frozenset({"RUNNING", "SUSPENDED"})
_FIELD = re.compile(r"(?:- at `\$\.|field `)(\w+)")


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


def read_gpus(client: Client, started: Iterable[JobRecord]) -> Answer[JobGpus]:
    """The GPUs of these jobs; those of which Slurm does not tell (any more) are left out."""
    ids = [job.raw_job_id for job in started]
    return parse_document(client.ask("squeue", "--all", "--local", "--json"), ids)


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
            states = [job.job_state] if isinstance(job.job_state, str) else job.job_state
            if are_told(states, job.gres_detail, job.tres_alloc_str):
                answer.records.append((job.job_id, _gpus(job)))
        except msgspec.ValidationError as error:
            answer.refused.append(_unreadable(error, raw))
        except FieldError as error:
            answer.refused.append(error)
    return answer


def are_told(states: Sequence[str], details: Sequence[str], tres: str) -> bool:
    """Whether these details say which GPUs a job in these states holds, so that none means none.

    While COMPLETING the list is empty already, though the GPUs are still held. `tres` is what is
    allocated, and counts GPUs that the details may not name.
    """
    if "COMPLETING" in states or not _TELLING.intersection(states):
        return False
    return any(details) or not tres_gpu_count({"TRES": tres}, "TRES")


def _gpus(job: _Job) -> tuple[NodeGpus, ...]:
    """One string for each node, in the order of the host list (as scontrol pairs them too)."""
    nodes = node_names({"nodes": job.nodes}, "nodes")
    if job.gres_detail and len(job.gres_detail) != len(nodes):
        of = f"job {job.job_id} on {len(nodes)} nodes"
        raise FieldError("gres_detail", job.gres_detail, of)
    return tuple(
        held
        for node, detail in zip(nodes, job.gres_detail, strict=False)
        for held in node_gpus({"gres_detail": detail}, "gres_detail", node)
    )


def _unreadable(error: msgspec.ValidationError, record: msgspec.Raw) -> FieldError:
    """The field that msgspec could not take, with what stands there."""
    found = _FIELD.search(str(error))
    content = msgspec.json.decode(record)
    if found is None or not isinstance(content, dict):
        return FieldError("jobs", content)
    return FieldError(found[1], content.get(found[1]))
