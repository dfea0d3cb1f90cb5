"""Tokens are looked up once, and no revoked one is let in for longer than it is said to be."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from types import SimpleNamespace

import psycopg
import pytest
from sqlalchemy import event, select
from sqlalchemy.exc import OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.orm import Session

from flopwatch_server.access import known_tokens, tokens
from flopwatch_server.access.known_tokens import KnownTokens
from flopwatch_server.access.models import Token
from flopwatch_server.access.tokens import MachineIdentity
from flopwatch_server.database.engine import Database
from flopwatch_server.fleet.repository.clusters import ensure_cluster

NOW = datetime(2026, 3, 12, 9, 0, tzinfo=UTC)


class Machines:
    """Machines that show their tokens at times that a test sets."""

    def __init__(
        self, database: Database, loop: asyncio.Runner, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.database = database
        self._loop = loop
        self.seconds = 100.0
        self.now = NOW
        self.statements: list[str] = []
        self._known = KnownTokens(database, lambda: self.now)
        time = SimpleNamespace(monotonic=lambda: self.seconds)
        monkeypatch.setattr(known_tokens, "time", time)
        event.listen(
            database.engine, "before_cursor_execute",
            lambda connection, cursor, text, *rest: self.statements.append(text.split()[0]),
        )  # fmt: skip

    def token(self, node: str) -> str:
        with self.database.session() as session:
            cluster_id = ensure_cluster(session, "granite", NOW)
            return tokens.create(session, "node", cluster_id, node, NOW)

    async def try_all(self, *values: str) -> list[MachineIdentity | BaseException | None]:
        """What each token is answered, or what is raised for it."""
        answers = (self._known.identify(value) for value in values)
        return await asyncio.gather(*answers, return_exceptions=True)

    def show(self, *values: str) -> list[str | None]:
        """The node of each token, None for one that is refused."""
        self.statements.clear()

        async def identify() -> list[str | None]:
            found = await asyncio.gather(*(self._known.identify(value) for value in values))
            return [machine.node if machine else None for machine in found]

        return self._loop.run(identify())


@pytest.fixture
def loop() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture
def machines(database: Database, loop: asyncio.Runner, monkeypatch: pytest.MonkeyPatch) -> Machines:
    return Machines(database, loop, monkeypatch)


def _revoke(session: Session, token: Token) -> None:
    token.revoked_at = NOW


def _delete(session: Session, token: Token) -> None:
    session.delete(token)


@pytest.mark.parametrize("end", [_revoke, _delete], ids=["revoked", "deleted"])
def test_a_token_in_use_is_refused_5_seconds_after_its_end(
    machines: Machines, end: Callable[[Session, Token], None]
) -> None:
    ended, other = machines.token("g1"), machines.token("g2")
    assert machines.show(ended, other) == ["g1", "g2"]
    with machines.database.session() as session:
        end(session, session.scalars(select(Token).where(Token.node == "g1")).one())
    machines.seconds += 4.9
    assert machines.show(ended) == ["g1"]
    machines.seconds += 0.2
    assert machines.show(ended, other) == [None, "g2"]


def test_a_new_token_is_known_at_once(machines: Machines) -> None:
    assert machines.show("fpn_guess") == [None]
    assert machines.show(machines.token("g1")) == ["g1"]


def test_a_wrong_token_is_looked_up_once(machines: Machines) -> None:
    assert machines.show("fpn_guess") == [None]
    assert machines.show("fpn_guess") == [None]
    assert machines.statements == []


def test_all_who_wait_for_a_database_out_of_reach_are_told_by_one_attempt(
    machines: Machines, loop: asyncio.Runner
) -> None:
    attempts: list[int] = []

    def refuse(*connection: object) -> None:
        attempts.append(1)
        raise psycopg.OperationalError("connection refused")

    machines.database.dispose()
    event.listen(machines.database.engine, "do_connect", refuse)
    answers = loop.run(machines.try_all("fpn_1", "fpn_2", "fpn_3"))
    assert [type(answer) for answer in answers] == [OperationalError] * 3
    assert len(attempts) == 1
    event.remove(machines.database.engine, "do_connect", refuse)
    assert machines.show(machines.token("g1")) == ["g1"]


def test_a_database_that_hangs_is_not_waited_for_without_end(
    machines: Machines, loop: asyncio.Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(known_tokens, "_ANSWER_SECONDS", 0.05)
    given_up = threading.Event()

    def hang(*connection: object) -> None:
        given_up.wait(20)
        raise psycopg.OperationalError("the connection was lost")

    machines.database.dispose()
    event.listen(machines.database.engine, "do_connect", hang)
    answers = loop.run(machines.try_all("fpn_1", "fpn_2"))
    given_up.set()
    assert [type(answer) for answer in answers] == [PoolTimeout] * 2


def test_many_at_once_cost_one_query_in_5_seconds_and_are_marked_once_a_minute(
    machines: Machines,
) -> None:
    values = [machines.token(f"g{number}") for number in range(3)]
    machines.show(*values)
    assert sorted(machines.statements) == ["SELECT"] * 4 + ["UPDATE"] * 3
    machines.show(*values)
    assert machines.statements == []
    machines.seconds += 5.1
    machines.show(*values)
    assert machines.statements == ["SELECT"]
    machines.seconds += 60.1
    machines.now = datetime(2026, 3, 12, 9, 5, tzinfo=UTC)
    machines.show(*values)
    assert machines.statements == ["UPDATE", "SELECT"]
    with machines.database.session() as session:
        assert set(session.scalars(select(Token.last_used_at))) == {machines.now}
