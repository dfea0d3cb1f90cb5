"""Runs as API and pages show them."""

from datetime import datetime

from pydantic import BaseModel

from flopwatch_server.jobs.pending import PendingClass


class RunView(BaseModel):
    """One run. `job_id` is the id that its owner knows (array 123_4, het 10+1).

    `local` says that it is a process tree on a machine without a scheduler; its id is its pid.
    """

    id: int
    cluster: str
    simulated: bool
    job_id: str
    raw_job_id: int
    name: str
    user: str
    account: str
    partition: str
    qos: str
    state: str
    reason: str
    submitted_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    elapsed_seconds: float | None
    time_limit_seconds: int | None
    restarts: int | None
    exit_code: str | None
    gpus: int | None
    gpu_model: str | None
    nodes: list[str]
    local: bool = False


class AllocationView(BaseModel):
    """One GPU held by one run, with its state in the newest complete minute.

    `since` is when that state began, as far back as minutes tell without a break.
    """

    id: int
    cluster: str
    job_id: str
    user: str
    account: str
    node: str
    gres_ordinal: int | None
    device_uuid: str | None
    model: str | None
    state: str
    since: datetime | None
    allocated_from: datetime
    source: str
    confidence: str


class WaitingGroup(BaseModel):
    """What waits for reasons of one class in one account.

    `tasks` counts each waiting task of an array, where Slurm tells them all; `gpus` is what they
    ask for. `unknown_runs` are those of `runs` that are not in it: nobody told how many GPUs, or
    how many tasks.
    """

    pending_class: PendingClass
    account: str
    runs: int = 0
    tasks: int = 0
    gpus: int = 0
    unknown_runs: int = 0


class WaitingDemand(BaseModel):
    """All that waits on a cluster, by class and account, told last at `told_at`: None if no
    scheduler ever told of jobs.
    """

    cluster: str
    told_at: datetime | None
    groups: list[WaitingGroup]
