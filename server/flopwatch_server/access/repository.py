"""Accounts, sessions and tokens in the database. What identifies is looked up by its hash."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import delete, func, select, update
from sqlalchemy.orm import Session

from flopwatch_server.access.models import BrowserSession, LocalAccount, Token


@dataclass(frozen=True, slots=True)
class Standing:
    """What all tokens are at one time, in three figures: how many hold, which is the newest, and
    when one was last revoked."""

    valid: int
    newest_id: int | None
    revoked_at: datetime | None


def has_account(session: Session) -> bool:
    """Whether anybody can sign in."""
    return session.scalar(select(LocalAccount.name).limit(1)) is not None


def sessions(
    session: Session, hashes: Collection[bytes], made_after: datetime, used_after: datetime
) -> Sequence[BrowserSession]:
    """Those of the sessions that were made and used after these times."""
    return session.scalars(
        select(BrowserSession).where(
            BrowserSession.id_hash.in_(hashes),
            BrowserSession.created_at > made_after,
            BrowserSession.last_used_at > used_after,
        )
    ).all()


def end_session(session: Session, id_hash: bytes) -> None:
    """Delete one session."""
    session.execute(delete(BrowserSession).where(BrowserSession.id_hash == id_hash))


def end_sessions_of(session: Session, name: str) -> None:
    """Delete all sessions of one account."""
    session.execute(delete(BrowserSession).where(BrowserSession.name == name))


def valid_token(session: Session, token_hash: bytes) -> Token | None:
    """The token with this hash, unless it was revoked."""
    return session.scalar(select(Token).where(Token.hash == token_hash, Token.revoked_at.is_(None)))


def token_standing(session: Session) -> Standing:
    """What changes whenever a token is made, revoked or deleted."""
    valid = func.count().filter(Token.revoked_at.is_(None))
    return Standing(
        *session.execute(select(valid, func.max(Token.id), func.max(Token.revoked_at))).one()
    )


def touch_tokens(session: Session, token_ids: Collection[int], now: datetime) -> None:
    """Remember that these tokens were used."""
    session.execute(update(Token).where(Token.id.in_(token_ids)).values(last_used_at=now))
