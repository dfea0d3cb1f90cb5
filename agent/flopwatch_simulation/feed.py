"""Runs and nodes as lines of the scheduler feed, and lines as bodies that a server takes."""

from collections.abc import Iterator, Sequence
from typing import Any

from flopwatch_simulation.hardware import Split, kind_of, node_name
from flopwatch_simulation.job import Job

MOST_LINES = 10_000
"""A body has no more, but for the snapshot, which must be whole."""

Line = dict[str, Any]


def bodies(lines: Sequence[Line]) -> Iterator[Sequence[Line]]:
    """The lines in one body or, if they are many, the snapshot with all that is in the queue
    and all shares, and the rest after it."""
    if len(lines) <= MOST_LINES:
        yield lines
        return
    rest = [line for line in lines if line["kind"] == "node" or "ended_at" in line]
    yield [line for line in lines if line["kind"] != "node" and "ended_at" not in line]
    for first in range(0, len(rest), MOST_LINES):
        yield rest[first : first + MOST_LINES]


def run_line(job: Job, time: float) -> Line:
    """One run as the scheduler describes it at `time`."""
    state = job.state(time)
    line: Line = {
        "kind": "run",
        "raw_job_id": job.raw_job_id,
        "submitted_at": job.submitted_at,
        "state": state,
        "name": job.name,
        "user": job.person.user,
        "account": job.person.account,
        "partition": job.character.partition,
        "qos": job.character.qos,
        "time_limit_seconds": job.character.time_limit_seconds,
        "gpu_count": job.gpu_count,
    }
    if job.array_job_id is not None:
        line["display_id"] = job.display_id
        line["array_job_id"] = job.array_job_id
        line["array_task_id"] = job.array_task_id
    if job.restarts:
        line["restarts"] = job.restarts
    if state == "PENDING":
        line["reason"] = job.character.reason
    if job.started_at is not None and job.started_at <= time:
        line["started_at"] = job.started_at
        line["node_count"] = len(job.places)
        line["gpus"] = [
            {"node": node_name(node), "count": len(ordinals), "ordinals": ordinals,
             "type": _gres_type(node)}
            for node, ordinals in job.places
        ]  # fmt: skip
    if time >= job.ended_at:
        line["ended_at"] = job.ended_at
        line["exit_code"] = job.exit_code
    return line


def node_line(node: int, used: int, down: bool) -> Line:
    """One node of which `used` GPUs or instances are allocated."""
    kind = kind_of(node)
    state = "ALLOCATED" if used == kind.places else "MIXED" if used else "IDLE"
    return {
        "kind": "node",
        "name": node_name(node),
        "state": "DOWN" if down else state,
        "reason": "Not responding" if down else "",
        "gpu_count": kind.places,
        "gpu_type": _gres_type(node),
        "partitions": kind.partitions,
    }


def _gres_type(node: int) -> str:
    """As Slurm's AutoDetect names it: `h100`, or `h100_3g.40gb` for an instance."""
    kind = kind_of(node)
    match kind.split:
        case Split(profile=profile):
            return f"{kind.gpu.gres_type}_{profile}"
        case _:
            return kind.gpu.gres_type
