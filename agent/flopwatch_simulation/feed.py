"""Runs and nodes as lines of the scheduler feed."""

from typing import Any

from flopwatch_simulation.cast import CAST, GPUS_PER_NODE, NODES_PER_BLOCK
from flopwatch_simulation.schedule import Job


def node_name(node: int) -> str:
    """Nodes count from gpu001, however many there are."""
    return f"gpu{node + 1:03d}"


def run_line(job: Job, time: float) -> dict[str, Any]:
    """One run as the scheduler describes it at `time`."""
    state = job.state(time)
    started = job.started_at is not None and job.started_at <= time
    line: dict[str, Any] = {
        "kind": "run",
        "raw_job_id": job.raw_job_id,
        "display_id": job.display_id,
        "submitted_at": job.submitted_at,
        "state": state,
        "name": job.name,
        "user": job.user,
        "account": job.account,
        "partition": job.character.partition,
        "qos": job.character.qos,
        "reason": job.character.reason if state == "PENDING" else "None",
        "time_limit_seconds": job.character.time_limit_seconds,
        "gpu_count": job.character.gpu_count,
        "array_job_id": job.array_job_id,
        "array_task_id": job.array_task_id,
    }
    if started:
        line["started_at"] = job.started_at
        line["node_count"] = len(job.places)
        line["gpus"] = [
            {"node": node_name(node), "count": len(ordinals), "ordinals": ordinals, "type": "h100"}
            for node, ordinals in job.places
        ]
    if time >= job.ended_at:
        line["ended_at"] = job.ended_at
        line["exit_code"] = job.exit_code
    return line


def node_line(node: int, used: int) -> dict[str, Any]:
    """One node of which `used` GPUs are allocated."""
    interactive = any(
        place == node % NODES_PER_BLOCK and character.partition == "interactive"
        for character in CAST
        for place, _ in character.places
    )
    return {
        "kind": "node",
        "name": node_name(node),
        "state": "ALLOCATED" if used == GPUS_PER_NODE else "MIXED" if used else "IDLE",
        "gpu_count": GPUS_PER_NODE,
        "gpu_type": "h100",
        "partitions": ["gpu", "interactive"] if interactive else ["gpu"],
    }
