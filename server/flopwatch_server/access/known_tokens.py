"""Whose token a machine shows, without a query for every post."""

import asyncio
import math
import time

from sqlalchemy.exc import TimeoutError as PoolTimeout

from flopwatch_server.access import repository, tokens
from flopwatch_server.access.repository import Standing
from flopwatch_server.access.tokens import MachineIdentity
from flopwatch_server.clock import Clock
from flopwatch_server.database.engine import Database

CHECK_SECONDS = 5.0
"""A token that is revoked or deleted works for this long at most. One that was tried before it was
made is known this much later; any other new one at once."""

_ANSWER_SECONDS = 10.0  # a connection that hangs may do so for a quarter of an hour
_TOUCH_SECONDS = 60.0
_MOST_TOKENS = 50_000  # a flood of made-up tokens must not fill the memory


class KnownTokens:
    """Remembers every token that was shown, right or wrong, until any token changes.

    One small query every CHECK_SECONDS tells whether one did; everybody waits for it, so that
    nobody is let in on an older word. When a token was used is written once a minute for all.
    """

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._identities: dict[str, MachineIdentity | None] = {}
        self._used: set[int] = set()
        self._standing: Standing | None = None
        self._checked_at = self._touched_at = -math.inf
        self._checking: asyncio.Task[None] | None = None

    async def identify(self, value: str) -> MachineIdentity | None:
        """Whose token this is; None for an unknown or revoked one.

        Raises one of the engine's UNREACHABLE where the database does not answer.
        """
        if self._is_stale():
            await self._checked()
        if value in self._identities:
            identity = self._identities[value]
        else:
            standing = self._standing
            identity = await asyncio.to_thread(self._look_up, value)
            if standing == self._standing:  # else it may have been revoked since it was read
                self._remember(value, identity)
        if identity is not None:
            self._used.add(identity.token_id)
        return identity

    def _is_stale(self) -> bool:
        return time.monotonic() - self._checked_at > CHECK_SECONDS

    async def _checked(self) -> None:
        """Wait for the one check that is going on; what it raises is raised to all who wait."""
        if self._checking is None or self._checking.done():
            self._checking = asyncio.create_task(self._check())
        await asyncio.shield(self._checking)  # one who goes away must not end it for the others

    async def _check(self) -> None:
        now = time.monotonic()
        used: set[int] = set()
        if now - self._touched_at > _TOUCH_SECONDS:
            used, self._used, self._touched_at = self._used, set(), now
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                standing = await asyncio.to_thread(self._read_standing, used)
        except TimeoutError as error:
            raise PoolTimeout("the database does not say whether tokens changed") from error
        if standing != self._standing:
            self._identities.clear()
            self._standing = standing
        self._checked_at = now

    def _read_standing(self, used: set[int]) -> Standing:
        with self._database.session() as session:
            if used:
                repository.touch_tokens(session, used, self._clock())
            return repository.token_standing(session)

    def _look_up(self, value: str) -> MachineIdentity | None:
        with self._database.session() as session:
            identity = tokens.identify(session, value)
            if identity is not None:
                repository.touch_tokens(session, {identity.token_id}, self._clock())
            return identity

    def _remember(self, value: str, identity: MachineIdentity | None) -> None:
        if len(self._identities) >= _MOST_TOKENS:
            self._identities.clear()
        self._identities[value] = identity
