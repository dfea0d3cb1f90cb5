"""When local runs were last seen."""

from datetime import datetime

from sqlalchemy import ForeignKey, Index
from sqlalchemy.orm import Mapped, mapped_column

from flopwatch_server.database.base import Base


class LocalSighting(Base):
    """The last word of an agent on a local run.

    `last_seen_at` is when it lived, by the agent's clock; `heard_at` when the server was told, by
    its own.
    """

    __tablename__ = "local_sightings"
    __table_args__ = (Index("ix_local_sightings_heard_at", "heard_at"),)
    run_id: Mapped[int] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True)
    node_id: Mapped[int] = mapped_column(ForeignKey("nodes.id"))
    last_seen_at: Mapped[datetime]
    heard_at: Mapped[datetime]
