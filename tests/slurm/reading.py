"""What the reader says of jobs in a real queue."""

from collections.abc import Mapping, Sequence

from flopwatch_server.scheduler.records import JobRecord, NodeGpus, SchedulerError
from flopwatch_server.scheduler.slurm import Slurm
from flopwatch_server.scheduler.slurm.client import run_command
from tests.lab.slurm import SlurmLab


def gpus_of(slurm: Slurm, lab: SlurmLab, *job_ids: int) -> dict[int, tuple[NodeGpus, ...]]:
    """The GPUs of queued jobs, by JSON and by scontrol's text, which must tell the same."""
    started = queued(slurm, *job_ids)
    told = slurm.gpus(started)
    assert Slurm(lab.cluster, lab.environment, without_json).gpus(started) == told
    return told


def without_json(command: Sequence[str], environment: Mapping[str, str], deadline: float) -> str:
    """What a Slurm that was built without JSON answers."""
    if "--json" in command:
        raise SchedulerError("squeue: exit status 1: squeue: fatal: JSON support not available")
    return run_command(command, environment, deadline)


def queued(slurm: Slurm, *job_ids: int) -> list[JobRecord]:
    """The queue's records of these jobs, in their order."""
    records = {record.raw_job_id: record for record in slurm.queue()}
    return [records[job_id] for job_id in job_ids]
