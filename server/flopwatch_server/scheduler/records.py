"""What any scheduler tells, in one form, and the interface that a scheduler implements.

A record is already normalised: times are aware UTC datetimes, states are Slurm's words in capitals,
a figure that the scheduler does not tell is None, never 0. Free text (names, comments) is hostile
and carried as it is.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from hashlib import blake2b
from typing import Literal, Protocol, runtime_checkable

import msgspec

RUNNING_STATES = frozenset(
    {"CONFIGURING", "RUNNING", "SUSPENDED", "STOPPED", "SIGNALING", "RESIZING", "COMPLETING"}
)
PENDING_STATES = frozenset({"PENDING", "REQUEUED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT"})
"""States in which a job holds GPUs, and in which it waits for them; every other state is an end."""

END_STATES = frozenset(
    {"BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "LAUNCH_FAILED", "NODE_FAIL",
     "OUT_OF_MEMORY", "PREEMPTED", "RECONFIG_FAIL", "REVOKED", "TIMEOUT"}
)  # fmt: skip
"""Slurm's words for a run that is over (squeue(1), JOB STATE CODES)."""

WORKING_STATES = frozenset({"RUNNING", "SIGNALING", "RESIZING"})
"""Those of the running states in which a job's own processes may use its GPUs. In the others they
have not been started, are held by the scheduler, or are over: idleness is not the job's."""

Service = Literal["serving", "reserved", "drained", "down", "unknown"]
"""What a node does for the queue, whatever runs on it."""

_SERVICE_WORDS: Mapping[Service, frozenset[str]] = {
    "down": frozenset({"DOWN", "ERROR", "FAIL", "FAILING", "INVAL", "INVALID_REG",
                       "NOT_RESPONDING", "REBOOT_ISSUED"}),
    "drained": frozenset({"DRAIN", "DRAINED", "DRAINING"}),
    "reserved": frozenset({"MAINT", "MAINTENANCE", "RESERVED", "RESV"}),
    "unknown": frozenset({"", "FUTURE", "UNKNOWN"}),
}  # fmt: skip


def service_of(state: str) -> Service:
    """What a node of this state and these flags ("MIXED+DRAIN") does: the worst of its words.

    A node that is powered down to save energy serves: the next job wakes it (Slurm's power saving
    guide). The words are those of sinfo(1), with and without the signs that it puts behind them.
    """
    words = {word.rstrip("*~#!%$@^-") for word in state.upper().split("+")}
    return next((service for service, those in _SERVICE_WORDS.items() if words & those), "serving")


@dataclass(frozen=True, slots=True)
class NodeGpus:
    """The GPUs that one job holds on one node.

    `ordinals` are positions in the node's GRES list (Slurm's IDX), None where only the `count` is
    known. `shared` marks shards, whose card other jobs may use at the same time.
    """

    node: str
    count: int
    ordinals: tuple[int, ...] | None = None
    gres_type: str | None = None
    shared: bool = False


@dataclass(frozen=True, slots=True)
class JobRecord:
    """One run of one job, as the scheduler describes it now.

    A run is (cluster, `raw_job_id`, `submitted_at`). `gpus` is None while the scheduler does not
    tell which GPUs are held; `gpu_count` is the number allocated (or requested, while pending).
    `time_limit_seconds` None means unlimited or unknown. `sluid` is the id that newer versions of
    Slurm give to each run.
    """

    raw_job_id: int
    submitted_at: datetime
    state: str
    name: str
    user: str
    account: str
    display_id: str
    partition: str = ""
    qos: str = ""
    reason: str = ""
    started_at: datetime | None = None
    ended_at: datetime | None = None
    time_limit_seconds: int | None = None
    suspended_seconds: int | None = None
    restarts: int | None = None
    exit_code: str | None = None
    gpu_count: int | None = None
    node_count: int | None = None
    nodes: tuple[str, ...] = ()
    gpus: tuple[NodeGpus, ...] | None = None
    array_job_id: int | None = None
    array_task_id: int | None = None
    het_job_id: int | None = None
    het_offset: int | None = None
    sluid: str | None = None

    @property
    def fingerprint(self) -> int:
        """64 bits that differ whenever anything in the record does, in every process alike."""
        try:
            told = msgspec.msgpack.encode(self)
        except UnicodeEncodeError:  # half a surrogate in a name; five times as slow
            told = repr(self).encode()
        digest = blake2b(told, digest_size=8).digest()
        return int.from_bytes(digest, "big", signed=True)


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """One node as the scheduler describes it; `state` is its base word with flags: IDLE+DRAIN."""

    name: str
    state: str
    reason: str = ""
    gpu_count: int | None = None
    gpu_type: str | None = None
    partitions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ReservationRecord:
    """Nodes that the scheduler keeps for some over [`starts_at`, `ends_at`).

    `is_whole` is False where only a part of each node is kept: which GPUs is not told.
    """

    name: str
    starts_at: datetime
    ends_at: datetime
    nodes: tuple[str, ...]
    is_whole: bool = True
    users: tuple[str, ...] = ()
    accounts: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PartitionRecord:
    """A partition. `qos` is the one that limits all of its jobs, if there is one.

    `max_time_seconds` None means that there is no limit. `preempt_mode` is Slurm's word in capitals
    for what happens to those of its jobs that are preempted.
    """

    name: str
    state: str
    is_default: bool
    max_time_seconds: int | None
    qos: str | None
    preempt_mode: str


@dataclass(frozen=True, slots=True)
class QosRecord:
    """A QOS: `preempts` are those whose jobs its own may preempt.

    `usage_factor` is what its usage is multiplied with. A limit that is None does not exist;
    `max_gpus_per_user` counts GPUs of all types.
    """

    name: str
    priority: int
    preempts: tuple[str, ...]
    preempt_mode: str
    usage_factor: float
    max_wall_seconds: int | None
    max_gpus_per_user: int | None


AdminLevel = Literal["None", "Operator", "Administrator"]
"""What a user may do to the scheduler, in Slurm's words."""


@dataclass(frozen=True, slots=True)
class AssociationRecord:
    """A user in an account or, with `user` None, the account itself: what holds shares.

    `parent` is the account above an account; a user's is their account. `raw_shares` None means
    that it has none of its own: its parent's count. `partition` is empty unless it is for one
    partition alone.
    """

    account: str
    user: str | None = None
    parent: str | None = None
    raw_shares: int | None = None
    partition: str = ""


@dataclass(frozen=True, slots=True)
class UserRecord:
    """A user, and the accounts that they look after (`coordinates`), with those below."""

    name: str
    admin_level: AdminLevel = "None"
    coordinates: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ShareRecord:
    """The fair share of an association now, as sshare(1) defines it; ratios are fractions.

    `norm_shares` is its part of the shares on its level of the tree, `effective_usage` of what was
    used there; `raw_usage` is in weighted resource-seconds and decays. `fair_share` is its factor
    in the priority of jobs, from 0 to 1. `level_fs` is the two parts' ratio: below 1 it has used
    more than its share. It is `math.inf` while nothing has been used, which is not unknown (None):
    nobody on its level comes before it.
    """

    account: str
    user: str | None = None
    partition: str = ""
    raw_shares: int | None = None
    norm_shares: float | None = None
    raw_usage: int | None = None
    effective_usage: float | None = None
    fair_share: float | None = None
    level_fs: float | None = None


@dataclass(frozen=True, slots=True)
class People:
    """Everybody on a cluster: all associations, and all users that have one."""

    associations: tuple[AssociationRecord, ...]
    users: tuple[UserRecord, ...]


@dataclass(frozen=True, slots=True)
class Refusal:
    """Records of unknown shape that were left out: how many of which call, for which field.

    `problem` shows what stood there in the newest of them.
    """

    call: str
    field: str
    problem: str
    count: int = 1


class SchedulerError(Exception):
    """A call to the scheduler failed or answered in an unknown shape; the text names which."""


class Scheduler(Protocol):
    """A batch scheduler that can be asked. Every call has a deadline and raises SchedulerError."""

    def queue(self) -> Sequence[JobRecord]:
        """All pending and running jobs, without `gpus`: the hot call of every poll."""
        ...

    def gpus(self, started: Sequence[JobRecord]) -> dict[int, tuple[NodeGpus, ...]]:
        """Which GPUs these running jobs hold, by raw job id. Asked once for every start, and told
        as long as the job runs: never again. One that is missing is asked for another time."""
        ...

    def ended(self, since: datetime, until: datetime | None = None) -> Sequence[JobRecord]:
        """Runs that ended after `since`, with their final state and times, each once.

        Of those that ended at or after `until` some may be missing.
        """
        ...

    def nodes(self) -> Sequence[NodeRecord]:
        """All nodes and their states."""
        ...

    def version(self) -> str:
        """The scheduler's own, as in "22.05.8"."""
        ...

    def refusals(self) -> Sequence[Refusal]:
        """What was left out since this was last asked."""
        ...


@runtime_checkable
class Reserving(Protocol):
    """A scheduler that tells of reservations, too."""

    def reservations(self) -> Sequence[ReservationRecord]:
        """All that are now and will be."""
        ...


@runtime_checkable
class FairShare(Protocol):
    """A scheduler that tells of people and their shares, too."""

    def people(self) -> People:
        """All associations and users."""
        ...

    def shares(self) -> Sequence[ShareRecord]:
        """The fair share of all associations."""
        ...


@runtime_checkable
class QueueRules(Protocol):
    """A scheduler that tells of the limits of its queues, too."""

    def partitions(self) -> Sequence[PartitionRecord]:
        """All partitions."""
        ...

    def qos(self) -> Sequence[QosRecord]:
        """All QOS."""
        ...
