"""Which job and user a process belongs to."""

from dataclasses import dataclass
from pathlib import Path

from flopwatch_agent.ownership import cgroup, environ


@dataclass(frozen=True)
class ProcessOwner:
    """`kind` says where the job id comes from: "cgroup" or "environ"."""

    kind: str
    job_id: int
    uid: int | None


def owner_of(proc: Path, pid: int, slurmd_name: str | None) -> ProcessOwner | None:
    """The owner of a process, or None: it is gone, in no job, or in a job of another slurmd.

    With `slurmd_name` only cgroups of that slurmd count, where several share a host.
    """
    job = _cgroup_job(proc, pid)
    if job is not None and slurmd_name is not None and job.node != slurmd_name:
        return None
    if job is not None and job.job_id is not None:
        return ProcessOwner("cgroup", job.job_id, _uid(proc, pid))
    # Without a cgroup of Slurm, or with one that has only a SLUID, the environment has to do.
    job_id = environ.job_of(proc, pid, slurmd_name)
    return None if job_id is None else ProcessOwner("environ", job_id, _uid(proc, pid))


def proven_job(proc: Path, pid: int, slurmd_name: str | None) -> int | None:
    """The job that the process's cgroup proves: nothing that the process itself may claim."""
    job = _cgroup_job(proc, pid)
    if job is None or (slurmd_name is not None and job.node != slurmd_name):
        return None
    return job.job_id


def _cgroup_job(proc: Path, pid: int) -> cgroup.CgroupJob | None:
    try:
        return cgroup.parse((proc / str(pid) / "cgroup").read_text(errors="replace"))
    except OSError:
        return None


def _uid(proc: Path, pid: int) -> int | None:
    try:
        return (proc / str(pid)).stat().st_uid
    except OSError:
        return None
