"""Whose job a report is: never on its sender's word alone.

A cgroup of Slurm's proves it, and nothing overrides that. A process in no such cgroup, or in one
that is named by a SLUID, is believed the job that its environment claims where root says that the
job is that user's: where the job's prolog has left a drop file with the sender's uid. So a user may
mix up jobs of his own, and nobody can claim another user's.
"""

from dataclasses import dataclass
from pathlib import Path

from flopwatch_agent.ownership import prolog
from flopwatch_agent.ownership.process import owner_of


@dataclass(frozen=True)
class Claims:
    """What is claimed on this node, and what is believed of it."""

    proc: Path
    prolog_dir: Path
    booted_at: float
    slurmd_name: str | None

    def job_of(self, pid: int, uid: int) -> int | None:
        """The job of a process by which the kernel says that a user sent something just now.

        Read anew each time: three small files, a quarter of a millisecond together.
        """
        owner = owner_of(self.proc, pid, self.slurmd_name)
        if owner is None:
            return None
        if owner.kind == "cgroup":
            return owner.job_id
        confirmed = prolog.of_job(self.prolog_dir, owner.job_id, self.booted_at)
        return owner.job_id if confirmed is not None and confirmed.uid == uid else None
