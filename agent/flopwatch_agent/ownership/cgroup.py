"""Which Slurm job a process belongs to, by the path of its cgroup.

Three layouts exist (Slurm manual, cgroup v1 and v2; seen on 22.05 and in public reports):

* v1: `/slurm/uid_U/job_J/step_S/...`, or `/slurm_NODE/...` where several slurmd share a host;
* v2: `/system.slice/slurmstepd.scope/job_J/step_S/...`, or `NODE_slurmstepd.scope`;
* v2 from 26.05 on: the job's folder is named by its SLUID, such as `sEKNKTV3WPV500`.

The patterns are anchored: below a folder of their own users may make cgroups of any name.
"""

import re
from dataclasses import dataclass

_V1 = re.compile(r"/slurm(?:_(?P<node>[^/]+))?/uid_\d+/job_(?P<job>\d{1,10})(?:/|$)")
_V2 = re.compile(
    r"/system\.slice/(?:(?P<node>[^/]+)_)?slurmstepd\.scope/"
    r"(?:job_(?P<job>\d{1,10})|s[0-9A-Z]+)(?:/|$)"
)


@dataclass(frozen=True)
class CgroupJob:
    """A job's cgroup: its raw job id, or None where only a SLUID names it; the slurmd's node."""

    job_id: int | None
    node: str | None


def parse(text: str) -> CgroupJob | None:
    """The job in a /proc/PID/cgroup file; None where no line is of a Slurm job."""
    for line in text.splitlines():
        path = line.split(":", 2)[-1]
        match = _V1.match(path) or _V2.match(path)
        if match is not None:
            job = match["job"]
            return CgroupJob(None if job is None else int(job), match["node"])
    return None
