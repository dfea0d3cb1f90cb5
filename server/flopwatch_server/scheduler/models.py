"""How the conversation with each cluster's scheduler goes."""

from datetime import datetime

from sqlalchemy import ForeignKey
from sqlalchemy.orm import Mapped, mapped_column

from flopwatch_server.database.base import Base

TELL_HOLDINGS = frozenset({"slurm", "feed", "local"})
"""The kinds of source that tell which jobs hold GPUs."""


class SchedulerSource(Base):
    """One kind of question to a scheduler; `error` is None while the last one was answered.

    Before `rests_until` it is not asked again. Ended runs are known from `history_from` up to
    `closed_until`.
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
