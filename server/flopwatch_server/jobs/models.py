"""Runs, what they were allocated, and the evidence of who really held it."""

from datetime import datetime

from sqlalchemy import ForeignKey, Index, Integer, UniqueConstraint, text
from sqlalchemy.orm import Mapped, mapped_column

from flopwatch_server.database.base import Base, Key


class Run(Base):
    """One run of one job: (cluster, raw job id, submit time). A requeue is another run.

    `ended_at` is set by the scheduler's word alone; `vanished_at` is when the run was missing from
    the queue before accounting closed it. `told` is the fingerprint of what the scheduler said last
    (`JobRecord.fingerprint`). `local` marks a process tree on a machine that no
    scheduler shares out: fair use stays away from it.
    """

    __tablename__ = "runs"
    __table_args__ = (
        UniqueConstraint("cluster_id", "raw_job_id", "submitted_at"),
        Index("ix_runs_open", "cluster_id", postgresql_where=text("ended_at IS NULL")),
        Index("ix_runs_ended_at", "ended_at"),
        Index("ix_runs_display", "cluster_id", "display_id"),
        Index(
            "ix_runs_array",
            "cluster_id",
            "array_job_id",
            postgresql_where=text("array_job_id IS NOT NULL"),
        ),
        Index(
            "ix_runs_het",
            "cluster_id",
            "het_job_id",
            postgresql_where=text("het_job_id IS NOT NULL"),
        ),
        Index("ix_runs_sluid", "cluster_id", "sluid", postgresql_where=text("sluid IS NOT NULL")),
    )
    id: Mapped[Key]
    cluster_id: Mapped[int] = mapped_column(ForeignKey("clusters.id"))
    raw_job_id: Mapped[int]
    submitted_at: Mapped[datetime]
    display_id: Mapped[str]
    array_job_id: Mapped[int | None]
    array_task_id: Mapped[int | None]
    het_job_id: Mapped[int | None]
    het_offset: Mapped[int | None]
    sluid: Mapped[str | None]
    name: Mapped[str]
    user_name: Mapped[str] = mapped_column(index=True)
    account: Mapped[str] = mapped_column(index=True)
    partition: Mapped[str]
    qos: Mapped[str]
    state: Mapped[str]
    reason: Mapped[str]
    started_at: Mapped[datetime | None]
    ended_at: Mapped[datetime | None]
    vanished_at: Mapped[datetime | None]
    time_limit_seconds: Mapped[int | None]
    suspended_seconds: Mapped[int | None]
    restarts: Mapped[int | None]
    exit_code: Mapped[str | None]
    gpu_count: Mapped[int | None]
    node_count: Mapped[int | None]
    local: Mapped[bool] = mapped_column(server_default=text("false"))
    told: Mapped[int | None]


class Allocation(Base):
    """[valid_from, valid_to) of one GRES ordinal of one node, resolved to a device when known.

    `valid_to` None means it is still held. `gres_ordinal` None means that the scheduler told only
    how many GPUs are held on the node: `place` numbers them. `confidence` is "certain", "likely",
    "assumed", "disputed" or "unknown": about the device, not about the fact that a GPU is held.
    """

    __tablename__ = "allocations"
    __table_args__ = (
        UniqueConstraint("run_id", "node_id", "place", "valid_from"),
        Index("ix_allocations_device", "device_id", "valid_from"),
        Index("ix_allocations_open", "node_id", postgresql_where=text("valid_to IS NULL")),
        Index("ix_allocations_ended", "valid_to"),
    )
    id: Mapped[Key]
    run_id: Mapped[int] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"))
    node_id: Mapped[int] = mapped_column(ForeignKey("nodes.id"))
    place: Mapped[int] = mapped_column(Integer)
    gres_ordinal: Mapped[int | None] = mapped_column(Integer)
    gres_type: Mapped[str | None]
    device_id: Mapped[int | None] = mapped_column(ForeignKey("devices.id"))
    valid_from: Mapped[datetime]
    valid_to: Mapped[datetime | None]
    shared: Mapped[bool]
    source: Mapped[str]
    confidence: Mapped[str]


class AllocationMark(Base):
    """Who held a device, or for which account, has changed since then: count its use again.

    `device_id` None means a device that is not known. Append-only, consumed by DELETE ... RETURNING
    as all marks are. Triggers of `allocations` and `runs` leave them (migration 0003), so that no
    writer can forget to.
    """

    __tablename__ = "allocation_marks"
    id: Mapped[Key]
    device_id: Mapped[int | None]
    since: Mapped[datetime]


class Evidence(Base):
    """An agent saw a sign that a job holds a device: a prolog file, a process's cgroup or environ.

    `ordinals` is a comma-separated list of GRES ordinals, from prolog files; `device_id` comes from
    processes. The scheduler decides what is allocated; this only confirms or disputes it.
    """

    __tablename__ = "evidence"
    __table_args__ = (
        Index("ix_evidence_key", "node_id", "kind", "raw_job_id", "device_id", "pid", "ordinals",
              "first_seen_at", unique=True, postgresql_nulls_not_distinct=True),
    )  # fmt: skip
    id: Mapped[Key]
    node_id: Mapped[int] = mapped_column(ForeignKey("nodes.id"))
    kind: Mapped[str]
    raw_job_id: Mapped[int]
    device_id: Mapped[int | None] = mapped_column(ForeignKey("devices.id"))
    ordinals: Mapped[str | None]
    pid: Mapped[int | None]
    uid: Mapped[int | None]
    first_seen_at: Mapped[datetime]
    last_seen_at: Mapped[datetime]
