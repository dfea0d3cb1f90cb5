"""How the conversation with each cluster's scheduler goes, and what it says of nodes over time."""

from datetime import datetime, timedelta

from sqlalchemy import Float, ForeignKey, Index, text
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.orm import Mapped, mapped_column
from sqlalchemy.types import Text

from flopwatch_server.database.base import Base

LOCAL = "local"
ASKED = frozenset({"slurm", "feed"})
TELL_HOLDINGS = ASKED | {LOCAL}
"""The kinds of source that tell which jobs hold GPUs: schedulers, and agents of workstations."""

LONGEST_REST = timedelta(minutes=5)
"""A scheduler that fails or is slow is asked again after so long at the latest."""

OUTAGE_AFTER = LONGEST_REST + timedelta(minutes=1)
"""A source that has not told anything for so long has an outage, whatever the reason."""


class SchedulerSource(Base):
    """One kind of question to a scheduler; `error` is None while the last one was answered.

    Before `rests_until` it is not asked again. Ended runs are known from `history_from` up to
    `closed_until`. `version` is the scheduler's own, as last told.
    """

    __tablename__ = "scheduler_sources"
    cluster_id: Mapped[int] = mapped_column(ForeignKey("clusters.id"), primary_key=True)
    kind: Mapped[str] = mapped_column(primary_key=True)
    last_success_at: Mapped[datetime | None]
    closed_until: Mapped[datetime | None]
    error: Mapped[str | None]
    error_since: Mapped[datetime | None]
    rests_until: Mapped[datetime | None]
    history_from: Mapped[datetime | None]
    version: Mapped[str | None]


class SchedulerRefusal(Base):
    """Records of one call that were left out since a field had an unknown shape.

    `problem` is what the newest said, `count` how often a record was left out, with each poll anew.
    """

    __tablename__ = "scheduler_refusals"
    cluster_id: Mapped[int] = mapped_column(ForeignKey("clusters.id"), primary_key=True)
    call: Mapped[str] = mapped_column(primary_key=True)
    field: Mapped[str] = mapped_column(primary_key=True)
    problem: Mapped[str]
    count: Mapped[int]
    first_at: Mapped[datetime]
    last_at: Mapped[datetime]


class SchedulerOutage(Base):
    """Over [valid_from, valid_to) a source that tells of holdings told nothing: what began and
    ended in it is not known. One that goes on has no row yet (`SchedulerSource.last_success_at`).
    """

    __tablename__ = "scheduler_outages"
    cluster_id: Mapped[int] = mapped_column(ForeignKey("clusters.id"), primary_key=True)
    kind: Mapped[str] = mapped_column(primary_key=True)
    valid_from: Mapped[datetime] = mapped_column(primary_key=True)
    valid_to: Mapped[datetime]


class NodeState(Base):
    """What a node did for the queue over [valid_from, valid_to), as `records.Service` has it."""

    __tablename__ = "node_states"
    __table_args__ = (
        Index("ix_node_states_now", "node_id", unique=True,
              postgresql_where=text("valid_to IS NULL")),
    )  # fmt: skip
    node_id: Mapped[int] = mapped_column(ForeignKey("nodes.id"), primary_key=True)
    valid_from: Mapped[datetime] = mapped_column(primary_key=True)
    valid_to: Mapped[datetime | None]
    service: Mapped[str]


class Reservation(Base):
    """These nodes are kept for some over [valid_from, valid_to), which may lie ahead.

    One that was changed while it was in force has several rows. `is_whole` as in
    `records.ReservationRecord`.
    """

    __tablename__ = "reservations"
    cluster_id: Mapped[int] = mapped_column(ForeignKey("clusters.id"), primary_key=True)
    name: Mapped[str] = mapped_column(primary_key=True)
    valid_from: Mapped[datetime] = mapped_column(primary_key=True)
    valid_to: Mapped[datetime]
    nodes: Mapped[list[str]] = mapped_column(ARRAY(Text))
    is_whole: Mapped[bool]
    users: Mapped[list[str]] = mapped_column(ARRAY(Text))
    accounts: Mapped[list[str]] = mapped_column(ARRAY(Text))
    flags: Mapped[list[str]] = mapped_column(ARRAY(Text))


class SchedulerPartition(Base):
    """A partition as told last (`records.PartitionRecord`); since `gone_at` there is none."""

    __tablename__ = "scheduler_partitions"
    cluster_id: Mapped[int] = mapped_column(ForeignKey("clusters.id"), primary_key=True)
    name: Mapped[str] = mapped_column(primary_key=True)
    state: Mapped[str]
    is_default: Mapped[bool]
    max_time_seconds: Mapped[int | None]
    qos: Mapped[str | None]
    preempt_mode: Mapped[str]
    gone_at: Mapped[datetime | None]


class Qos(Base):
    """A QOS as told last (`records.QosRecord`); since `gone_at` there is none."""

    __tablename__ = "qos"
    cluster_id: Mapped[int] = mapped_column(ForeignKey("clusters.id"), primary_key=True)
    name: Mapped[str] = mapped_column(primary_key=True)
    priority: Mapped[int]
    preempts: Mapped[list[str]] = mapped_column(ARRAY(Text))
    preempt_mode: Mapped[str]
    usage_factor: Mapped[float] = mapped_column(Float)
    max_wall_seconds: Mapped[int | None]
    max_gpus_per_user: Mapped[int | None]
    first_told_at: Mapped[datetime]
    gone_at: Mapped[datetime | None]
