"""What the API says of a scheduler's partitions and QOS. A limit that is null does not exist."""

from datetime import datetime

from pydantic import BaseModel, ConfigDict


class Partition(BaseModel):
    """A partition; `qos` is the one that limits all of its jobs."""

    model_config = ConfigDict(from_attributes=True)
    name: str
    state: str
    is_default: bool
    max_time_seconds: int | None
    qos: str | None
    preempt_mode: str


class Qos(BaseModel):
    """A QOS: whom its jobs may preempt, how its usage counts, and what its users may hold."""

    model_config = ConfigDict(from_attributes=True)
    name: str
    priority: int
    preempts: list[str]
    preempt_mode: str
    usage_factor: float
    max_wall_seconds: int | None
    max_gpus_per_user: int | None
    first_told_at: datetime


class Told(BaseModel):
    """How well it is known: told last at `told_at`, None if no scheduler ever told it.

    `error` says why it is not told any more, since `error_since`.
    """

    cluster: str
    told_at: datetime | None
    error: str | None
    error_since: datetime | None


class Partitions(Told):
    """The partitions of a cluster."""

    partitions: list[Partition]


class QosOfCluster(Told):
    """The QOS of a cluster, the highest priority first."""

    qos: list[Qos]
