"""Who may come in: the local admin, browser sessions, tokens. Secrets are stored as hashes only."""

from datetime import datetime

from sqlalchemy import ForeignKey, LargeBinary
from sqlalchemy.orm import Mapped, mapped_column

from flopwatch_server.database.base import Base, Key


class LocalAccount(Base):
    """The local admin: its password as scrypt hash with salt."""

    __tablename__ = "local_accounts"
    name: Mapped[str] = mapped_column(primary_key=True)
    password_hash: Mapped[bytes] = mapped_column(LargeBinary)
    salt: Mapped[bytes] = mapped_column(LargeBinary)
    created_at: Mapped[datetime]


class BrowserSession(Base):
    """A signed-in browser: SHA-256 of its random id. Idle 8 h, absolute 24 h."""

    __tablename__ = "browser_sessions"
    id_hash: Mapped[bytes] = mapped_column(LargeBinary, primary_key=True)
    name: Mapped[str] = mapped_column(ForeignKey("local_accounts.name"))
    created_at: Mapped[datetime]
    last_used_at: Mapped[datetime]


class Token(Base):
    """A machine's token: `kind` "node" (posts batches) or "feed" (posts the scheduler feed).

    A node token belongs to a cluster and, with `node` set, to that one node. `prefix` is what may
    be shown of it.
    """

    __tablename__ = "tokens"
    id: Mapped[Key]
    kind: Mapped[str]
    hash: Mapped[bytes] = mapped_column(LargeBinary, unique=True)
    prefix: Mapped[str]
    cluster_id: Mapped[int] = mapped_column(ForeignKey("clusters.id"))
    node: Mapped[str | None]
    created_at: Mapped[datetime]
    last_used_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]
