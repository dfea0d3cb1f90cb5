"""Tokens of machines: 32 random bytes behind a prefix that tells the kind, stored as SHA-256."""

import hashlib
import os
import secrets
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Literal

from sqlalchemy.orm import Session

from flopwatch_server.access import repository
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
    token = repository.valid_token(session, _digest(value))
    if token is None:
        return None
    return MachineIdentity(token.id, token.kind, token.cluster_id, token.node)


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
