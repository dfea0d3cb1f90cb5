"""Which GPUs a running job holds, from `scontrol show job -d`: for a Slurm that has no JSON.

Names, commands and comments that users choose stand in the same text, and one may look like the
line that tells the GPUs. What users choose before that line are the name and, where Slurm does not
check them, account, partition and QOS. All of these are known from the queue: so the text has to
begin with this job's id and name, none of the others may hold a line break, and only what follows
up to the end of the resources is read. A name that has changed since is refused this time.
"""

import re
from collections.abc import Iterator, Sequence

from flopwatch_server.scheduler.records import JobRecord, NodeGpus, SchedulerError
from flopwatch_server.scheduler.slurm.client import Client
from flopwatch_server.scheduler.slurm.detail import JobGpus, are_told
from flopwatch_server.scheduler.slurm.fields import FieldError, node_names
from flopwatch_server.scheduler.slurm.gres import node_gpus
from flopwatch_server.scheduler.slurm.table import Answer

MOST_JOBS = 100
"""So many jobs are asked about at a time: each costs a command, of some 20 ms."""

_NO_SUCH_JOB = "Invalid job id"  # it ended a minute ago; slurm_errno.h has the words
_ID = "JobId={} "
_NAME = " JobName="
_AFTER_NAME = re.compile(r"(?:\n   HetJobIdSet=[0-9,-]+)?\n   UserId=")
_END = "\n   MinCPUsNode="
_STATE = re.compile(r"\n   JobState=(\S+)")
_TRES = re.compile(r"\n   (?:Alloc)?TRES=(\S*)")  # AllocTRES since 23.02
_HELD = re.compile(r"\n     Nodes=(\S+) CPU_IDs=\S* Mem=\S* GRES=(\S*)")


def read_gpus(client: Client, started: Sequence[JobRecord]) -> Answer[JobGpus]:
    """The GPUs of the first MOST_JOBS of these jobs; those that are not told are left out."""
    answer: Answer[JobGpus] = Answer()
    for job in started[:MOST_JOBS]:
        try:
            text = client.ask("scontrol", "--details", "show", "job", _scontrol_id(job))
        except SchedulerError as error:
            if _NO_SUCH_JOB in str(error):
                continue
            raise
        try:
            answer.records += parse_job(text, job)
        except FieldError as error:
            answer.refused.append(error)
    return answer


def parse_job(text: str, job: JobRecord) -> Iterator[JobGpus]:
    """The GPUs of this job, if its text tells them; raises FieldError naming the field."""
    for field in ("account", "partition", "qos"):
        if "\n" in getattr(job, field):
            raise FieldError(field, getattr(job, field), f"job {job.raw_job_id}")
    before, _, rest = text.partition(_NAME)
    if not f"{before} ".startswith(_ID.format(job.raw_job_id)):
        raise FieldError("JobId", before, f"job {job.raw_job_id}")
    begin = _AFTER_NAME.match(rest, len(job.name)) if rest.startswith(job.name) else None
    if begin is None:
        raise FieldError("JobName", rest.partition("\n")[0], f"job {job.raw_job_id}")
    told, end, _ = rest[begin.end() :].partition(_END)
    state, tres = _STATE.search(told), _TRES.search(told)
    if not end or state is None or tres is None:
        raise FieldError("JobState", told, f"job {job.raw_job_id}")
    lines = _HELD.findall(told)
    if are_told(state[1], [gres for _, gres in lines], tres[1]):
        yield job.raw_job_id, tuple(_gpus(lines))


def _scontrol_id(job: JobRecord) -> str:
    """The id of this job alone: an array's own id means all of its tasks, and comes last."""
    if job.array_task_id is not None:
        return f"{job.array_job_id}_{job.array_task_id}"
    return str(job.raw_job_id)


def _gpus(lines: Sequence[tuple[str, str]]) -> Iterator[NodeGpus]:
    """Nodes with equal shares stand in one line."""
    for nodes, gres in lines:
        for node in node_names({"Nodes": nodes}, "Nodes"):
            yield from node_gpus({"GRES": gres}, "GRES", node)
