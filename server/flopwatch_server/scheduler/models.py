"""How the conversation with each cluster's scheduler goes."""

from datetime import datetime

from sqlalchemy import ForeignKey
from sqlalchemy.orm import Mapped, mapped_column

from flopwatch_server.database.base import Base


class SchedulerSource(Base):
    """One source of runs, "slurm" or "feed"; `error` is None while the last call worked."""

    __tablename__ = "scheduler_sources"
    cluster_id: Mapped[int] = mapped_column(ForeignKey("clusters.id"), primary_key=True)
    kind: Mapped[str] = mapped_column(primary_key=True)
    last_success_at: Mapped[datetime | None]
    closed_until: Mapped[datetime | None]
    error: Mapped[str | None]
    error_since: Mapped[datetime | None]
