"""Tokens of machines: 32 random bytes behind a prefix that tells the kind, stored as SHA-256."""

import hashlib
import os
import secrets
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Literal

from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from flopwatch_server.access.models import Token

Kind = Literal["node", "feed"]
_PREFIXES: dict[Kind, str] = {"node": "fpn_", "feed": "fpf_"}


@dataclass(frozen=True, slots=True)
class MachineIdentity:
    """What a valid token stands for. `node` None means any node of the cluster."""

    token_id: int
    kind: str
    cluster_id: int
    node: str | None


@dataclass(frozen=True, slots=True)
class Standing:
    """What all tokens are at one time, in three figures: how many hold, which is the newest, and
    when one was last revoked."""

    valid: int
    newest_id: int | None
    revoked_at: datetime | None


def create(session: Session, kind: Kind, cluster_id: int, node: str | None, now: datetime) -> str:
    """Make a token and return its value: the only time that it can be seen."""
    value = _PREFIXES[kind] + secrets.token_urlsafe(32)
    session.add(
        Token(kind=kind, hash=_digest(value), prefix=value[:8], cluster_id=cluster_id, node=node,
              created_at=now)
    )  # fmt: skip
    return value


def identify(session: Session, value: str) -> MachineIdentity | None:
    """Whose token this is; None for an unknown or revoked one. Looked up by its hash."""
    token = session.scalar(
        select(Token).where(Token.hash == _digest(value), Token.revoked_at.is_(None))
    )
    if token is None:
        return None
    return MachineIdentity(token.id, token.kind, token.cluster_id, token.node)


def standing(session: Session) -> Standing:
    """What changes whenever a token is made, revoked or deleted."""
    valid = func.count().filter(Token.revoked_at.is_(None))
    return Standing(
        *session.execute(select(valid, func.max(Token.id), func.max(Token.revoked_at))).one()
    )


def touch(session: Session, token_ids: set[int], now: datetime) -> None:
    """Remember that these tokens were used."""
    session.execute(update(Token).where(Token.id.in_(token_ids)).values(last_used_at=now))


def _digest(value: str) -> bytes:
    return hashlib.sha256(value.encode()).digest()


def write(path: Path, value: str) -> None:
    """Put a token into a file that only its owner can read, whatever was there before."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".new")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(value + "\n")
    temporary.replace(path)
