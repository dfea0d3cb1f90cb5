"""Which job a process says it belongs to: its environment when it was started.

A user may write anything there, so this is weaker than a cgroup; it also works where the scheduler
keeps processes in no cgroup that tells the job. It is readable for root and for the process's own
user only.
"""

from pathlib import Path

from flopwatch_agent.ownership import job_id

JOB_VARIABLES = (b"FLOPWATCH_JOB_ID", b"SLURM_JOB_ID")
"""The first that holds an id counts. A site's own job-start hook sets the one, Slurm the other."""

_MOST_BYTES = 1 << 18  # far more than modules and MPI set; reading on costs milliseconds


def job_in(environ: bytes, slurmd_name: str | None) -> int | None:
    """The job id in the bytes of /proc/PID/environ, unless they name another slurmd's node."""
    node = _value(environ, b"SLURMD_NODENAME")
    if slurmd_name is not None and node is not None and node != slurmd_name.encode():
        return None
    told = (_value(environ, name) for name in JOB_VARIABLES)
    ids = (job_id.parse(value.decode(errors="replace")) for value in told if value is not None)
    return next((found for found in ids if found is not None), None)


def job_of(proc: Path, pid: int, slurmd_name: str | None) -> int | None:
    """The same of a running process; None where its environment can't be read."""
    try:
        with (proc / str(pid) / "environ").open("rb") as file:
            return job_in(file.read(_MOST_BYTES), slurmd_name)
    except OSError:
        return None


def _value(environ: bytes, name: bytes) -> bytes | None:
    """What a variable is set to. One that is cut off at the end is none: half an id is another.

    It is searched for: a table of all variables costs far more, and a user may set very many.
    """
    _, sign, rest = (b"\0" + environ).partition(b"\0" + name + b"=")
    value, end, _ = rest.partition(b"\0")
    return value if sign and end else None
