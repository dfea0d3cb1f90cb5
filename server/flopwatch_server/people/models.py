"""People and accounts as the scheduler knows them, and their fair share over time.

Whoever the scheduler tells of no more stays, with `gone_at`: history belongs to somebody.
"""

from datetime import datetime

from sqlalchemy import Float, ForeignKey, Index, text
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.orm import Mapped, mapped_column
from sqlalchemy.types import Text

from flopwatch_server.database.base import Base, Key


class User(Base):
    """A user of a cluster. `admin_level` is the scheduler's word for what they may do to it.

    `coordinates` are the accounts that they look after, with those below.
    """

    __tablename__ = "users"
    cluster_id: Mapped[int] = mapped_column(ForeignKey("clusters.id"), primary_key=True)
    name: Mapped[str] = mapped_column(primary_key=True)
    admin_level: Mapped[str]
    coordinates: Mapped[list[str]] = mapped_column(ARRAY(Text))
    first_told_at: Mapped[datetime]
    gone_at: Mapped[datetime | None]


class Account(Base):
    """An account; `parent` is None at the root of the tree, and where no tree is told."""

    __tablename__ = "accounts"
    cluster_id: Mapped[int] = mapped_column(ForeignKey("clusters.id"), primary_key=True)
    name: Mapped[str] = mapped_column(primary_key=True)
    parent: Mapped[str | None]
    first_told_at: Mapped[datetime]
    gone_at: Mapped[datetime | None]


class Association(Base):
    """A user in an account, or with `user_name` None the account itself: what holds shares.

    `partition` is empty unless it is for one partition alone. `raw_shares` None means that it has
    none of its own.
    """

    __tablename__ = "associations"
    __table_args__ = (
        Index("ix_associations_key", "cluster_id", "account", "user_name", "partition",
              unique=True, postgresql_nulls_not_distinct=True),
    )  # fmt: skip
    id: Mapped[Key]
    cluster_id: Mapped[int] = mapped_column(ForeignKey("clusters.id"))
    account: Mapped[str]
    user_name: Mapped[str | None]
    partition: Mapped[str] = mapped_column(server_default=text("''"))
    raw_shares: Mapped[int | None]
    first_told_at: Mapped[datetime]
    gone_at: Mapped[datetime | None]


class Share(Base):
    """What was told last in one hour of the fair share of an association; `at` is when.

    An hour in which nothing changed has no row: a row holds until the next one. Usage decays, so
    the shares of all who have used anything change with every poll. 5,000 associations that are
    read every 5 minutes would make 1.4 million rows a day; by the hour they make 120,000 at most.
    After 90 days one a day is left (`service.thin_shares`).
    `level_fs` is infinite (as PostgreSQL and Python know it) while nothing has been used.
    """

    __tablename__ = "shares"
    association_id: Mapped[int] = mapped_column(
        ForeignKey("associations.id", ondelete="CASCADE"), primary_key=True
    )
    hour: Mapped[datetime] = mapped_column(primary_key=True)
    at: Mapped[datetime]
    norm_shares: Mapped[float | None] = mapped_column(Float)
    raw_usage: Mapped[int | None]
    effective_usage: Mapped[float | None] = mapped_column(Float)
    fair_share: Mapped[float | None] = mapped_column(Float)
    level_fs: Mapped[float | None] = mapped_column(Float)
