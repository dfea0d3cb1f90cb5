"""Runs and nodes as lines of the scheduler feed."""

from typing import Any

from flopwatch_simulation.hardware import Split, kind_of, node_name
from flopwatch_simulation.job import Job


def run_line(job: Job, time: float) -> dict[str, Any]:
    """One run as the scheduler describes it at `time`."""
    state = job.state(time)
    line: dict[str, Any] = {
        "kind": "run",
        "raw_job_id": job.raw_job_id,
        "display_id": job.display_id,
        "submitted_at": job.submitted_at,
        "state": state,
        "name": job.name,
        "user": job.person.user,
        "account": job.person.account,
        "partition": job.character.partition,
        "qos": job.character.qos,
        "reason": job.character.reason if state == "PENDING" else "None",
        "time_limit_seconds": job.character.time_limit_seconds,
        "restarts": job.restarts,
        "gpu_count": job.gpu_count,
        "array_job_id": job.array_job_id,
        "array_task_id": job.array_task_id,
    }
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


def node_line(node: int, used: int, down: bool) -> dict[str, Any]:
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
