"""What of a job's signs can be seen on this node: told to the server, whose doctor says what to do.

Each fact is a word: see `flopwatch.wire.Batch.capabilities`.
"""

from collections.abc import Iterator
from pathlib import Path

from flopwatch_agent.ownership import cgroup

PERIOD_SECONDS = 60
_V2_JOBS = "system.slice/*slurmstepd.scope/*"
_V1_JOBS = "slurm*/uid_*/job_*"


def look(root: Path) -> list[dict[str, str]]:
    """What is mounted at `root`, where cgroups should be, and how those of jobs are named there."""
    form = _form(root)
    ids = {job.job_id is not None for job in _jobs(root, form)}
    named = "job id" if True in ids else "SLUID" if ids else "none"
    return [{"cgroup": form, "job_cgroups": named}]


def _form(root: Path) -> str:
    if (root / "cgroup.controllers").exists():
        return "v2"
    return "v1" if any(root.glob("*/cgroup.procs")) else "none"


def _jobs(root: Path, form: str) -> Iterator[cgroup.CgroupJob]:
    """The jobs that have a cgroup now, by its path, which in v1 begins at a controller."""
    trees = [root] if form == "v2" else [tree.parent for tree in root.glob("*/cgroup.procs")]
    for tree in trees:
        for folder in tree.glob(_V2_JOBS if form == "v2" else _V1_JOBS):
            job = cgroup.parse(f"0::/{folder.relative_to(tree)}")
            if job is not None:
                yield job
