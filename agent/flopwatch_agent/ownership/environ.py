"""Which Slurm job a process says it belongs to: its environment when it was started.

A user may write anything there, so this is weaker than a cgroup; it also works where Slurm tracks
processes without cgroups. It is readable for root and for the process's own user only.
"""

from pathlib import Path

_MOST_BYTES = 1 << 20


def job_in(environ: bytes, slurmd_name: str | None) -> int | None:
    """The job id in the bytes of /proc/PID/environ, unless they name another slurmd's node."""
    variables = dict(entry.split(b"=", 1) for entry in environ.split(b"\0") if b"=" in entry)
    node = variables.get(b"SLURMD_NODENAME")
    if slurmd_name is not None and node is not None and node != slurmd_name.encode():
        return None
    job = variables.get(b"SLURM_JOB_ID", b"")
    return int(job) if job.isdigit() and len(job) <= 10 else None


def job_of(proc: Path, pid: int, slurmd_name: str | None) -> int | None:
    """The same of a running process; None where its environment can't be read."""
    try:
        with (proc / str(pid) / "environ").open("rb") as file:
            return job_in(file.read(_MOST_BYTES), slurmd_name)
    except OSError:
        return None
