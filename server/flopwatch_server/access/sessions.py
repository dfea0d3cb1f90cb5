"""The local admin and signed-in browsers."""

import hashlib
import hmac
import secrets
from collections.abc import Collection, Sequence
from datetime import datetime, timedelta

from sqlalchemy.orm import Session

from flopwatch_server.access import repository
from flopwatch_server.access.models import BrowserSession, LocalAccount
from flopwatch_server.access.principal import Principal

IDLE = timedelta(hours=8)
ABSOLUTE = timedelta(hours=24)
MINIMUM_PASSWORD_LENGTH = 12


def set_password(session: Session, name: str, password: str, now: datetime) -> None:
    """Create the local admin or give it a new password, which ends all its sessions.

    Raises ValueError for a password shorter than 12 characters.
    """
    if len(password) < MINIMUM_PASSWORD_LENGTH:
        raise ValueError(f"a password needs {MINIMUM_PASSWORD_LENGTH} characters at least")
    salt = secrets.token_bytes(16)
    session.merge(
        LocalAccount(name=name, password_hash=_hash(password, salt), salt=salt, created_at=now)
    )
    repository.end_sessions_of(session, name)


def sign_in(session: Session, name: str, password: str, now: datetime) -> str | None:
    """Open a session and return its id for the cookie; None if name or password is wrong."""
    account = session.get(LocalAccount, name)
    # An unknown name costs the same time as a wrong password.
    salt = account.salt if account else bytes(16)
    expected = account.password_hash if account else bytes(64)
    if not hmac.compare_digest(_hash(password, salt), expected) or account is None:
        return None
    session_id = secrets.token_urlsafe(32)
    session.add(
        BrowserSession(id_hash=_digest(session_id), name=name, created_at=now, last_used_at=now)
    )
    return session_id


def sign_out(session: Session, session_id: str) -> None:
    """End a session."""
    repository.end_session(session, _digest(session_id))


def principal_of(session: Session, session_id: str, now: datetime) -> Principal | None:
    """Whose session this is; None if it has ended, idled for 8 h or begun 24 h ago."""
    alive = _alive(session, [_digest(session_id)], now)
    if not alive:
        return None
    [found] = alive
    if now - found.last_used_at > timedelta(minutes=1):
        found.last_used_at = now
    return _principal(found)


def principals_of(
    session: Session, session_ids: Collection[str], now: datetime
) -> dict[str, Principal]:
    """Whose sessions these are, without those that have ended. To look is no use of a session."""
    ids = {_digest(session_id): session_id for session_id in session_ids}
    return {ids[found.id_hash]: _principal(found) for found in _alive(session, ids, now)}


def _alive(session: Session, hashes: Collection[bytes], now: datetime) -> Sequence[BrowserSession]:
    return repository.sessions(session, hashes, now - ABSOLUTE, now - IDLE)


def _principal(found: BrowserSession) -> Principal:
    return Principal(found.name, "admin")


def _hash(password: str, salt: bytes) -> bytes:
    return hashlib.scrypt(password.encode(), salt=salt, n=2**14, r=8, p=1, dklen=64)


def _digest(session_id: str) -> bytes:
    return hashlib.sha256(session_id.encode()).digest()
