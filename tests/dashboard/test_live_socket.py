"""The doors of the live path: who is let in, what is refused, and what a socket costs."""

import json
import resource
import socket
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from flopwatch.gpus import PeakTable
from flopwatch_dashboard.address import Place
from flopwatch_dashboard.freshness import freshness
from flopwatch_dashboard.live.hub import MOST_SOCKETS_OF_A_SESSION, Hub
from flopwatch_dashboard.live.reading import Ask, Reading, as_json
from flopwatch_dashboard.live.socket import MOST_CHARACTERS, PATH, SIGNED_OUT, connect_live
from flopwatch_dashboard.pages import Page, Shown, all_pages
from flopwatch_dashboard.router import Router
from flopwatch_dashboard.services import Visit
from flopwatch_server.access import sessions
from flopwatch_server.access.guard import COOKIE
from flopwatch_server.access.principal import Principal
from flopwatch_server.house import House, NotFound
from flopwatch_server.settings import Settings
from tests.dashboard import cluster
from tests.dashboard.conftest import QUICK, Clock, Server, asked_by_hub, listening, serve
from tests.dashboard.screen import JOB
from tests.lab.postgres import DatabaseFactory
from tests.lab.processes import wait_for

PASSWORD = "correct horse battery"
SECONDS = 60


def follow(path: str, search: str = "", **more: Any) -> str:
    """A wish as a browser sends it."""
    return json.dumps({"type": "follow", "number": 1, "path": path, "search": search, **more})


@contextmanager
def live(server: Server, session_id: str | None = None, **says: str) -> Iterator[ClientConnection]:
    """An open socket of a browser that may have a session."""
    headers = {f"x-{name}": value for name, value in says.items()}
    if session_id:
        headers["cookie"] = f"{COOKIE}={session_id}"
    address = server.url.replace("http", "ws") + PATH
    with connect(address, origin=server.url, additional_headers=headers) as found:  # type: ignore[arg-type]
        yield found


def news(connection: ClientConnection) -> dict[str, Any]:
    """The next frame that is no mere sign of life."""
    end = time.monotonic() + SECONDS
    while True:
        frame: dict[str, Any] = json.loads(connection.recv(timeout=end - time.monotonic()))
        if "beat" not in frame:
            return frame


def drain(connection: ClientConnection) -> None:
    """Take what comes until the socket is closed."""
    while True:
        news(connection)


@pytest.fixture
def guarded(databases: DatabaseFactory, tmp_path: Path) -> Iterator[Server]:
    """A server that asks everybody to sign in, with an account for ada."""
    clock = Clock()
    with databases.database() as database:
        with database.session() as session:
            sessions.set_password(session, "ada", PASSWORD, clock.now)
        cluster.fill(database, clock.now)
        with serve(database, clock, tmp_path, "local") as running:
            yield running


def sign_in(server: Server) -> str:
    """The id of a new session of ada's."""
    with server.database.session() as session:
        found = sessions.sign_in(session, "ada", PASSWORD, server.clock.now)
    assert found
    return found


def test_a_socket_needs_a_session_and_this_server_as_its_origin(guarded: Server) -> None:
    with pytest.raises(InvalidStatus), live(guarded):
        pass
    elsewhere = Server("http://evil.example", guarded.database, guarded.clock)
    address = guarded.url.replace("http", "ws") + PATH
    cookie = {"Cookie": f"{COOKIE}={sign_in(guarded)}"}
    with (
        pytest.raises(InvalidStatus),
        connect(address, origin=elsewhere.url, additional_headers=cookie),  # type: ignore[arg-type]
    ):
        pass
    assert httpx.get(guarded.url + PATH, params={"wish": follow("/")}).status_code == 401


def test_the_socket_of_a_session_that_ended_is_closed_for_good(guarded: Server) -> None:
    mine, other = sign_in(guarded), sign_in(guarded)
    with live(guarded, mine) as ended, live(guarded, other) as going_on:
        for connection in (ended, going_on):
            connection.send(follow("/jobs"))
            news(connection)
        with guarded.database.session() as session:
            sessions.sign_out(session, mine)
        with pytest.raises(ConnectionClosed) as closed:
            drain(ended)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == SIGNED_OUT
        news(going_on)


def test_a_session_that_idles_out_is_not_kept_alive_by_its_socket(guarded: Server) -> None:
    with live(guarded, sign_in(guarded)) as connection:
        connection.send(follow("/jobs"))
        news(connection)
        guarded.clock.advance(7 * 3600)
        for _ in range(3):
            news(connection)
        guarded.clock.advance(2 * 3600)  # 9 h in all; 8 h may pass without a request
        with pytest.raises(ConnectionClosed):
            drain(connection)


def test_a_session_has_room_for_so_many_sockets_and_no_more(guarded: Server) -> None:
    mine, other = sign_in(guarded), sign_in(guarded)
    with ExitStack() as stack:
        for _ in range(MOST_SOCKETS_OF_A_SESSION):
            stack.enter_context(live(guarded, mine))
        with pytest.raises(InvalidStatus), live(guarded, mine):
            pass
        with live(guarded, other):
            pass


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("no JSON", 1008),
        ('{"type":"follow","number":1}', 1008),
        ('{"type":"follow","number":1,"path":"/","rows":["a",2]}', 1008),
        ('{"type":"listen"}', 1008),
        (b"\x00\x01", 1008),
        (follow("/" + "x" * MOST_CHARACTERS), 1009),
    ],
)
def test_what_is_no_wish_closes_the_socket(server: Server, message: str | bytes, code: int) -> None:
    with live(server) as connection:
        connection.send(message)
        with pytest.raises(ConnectionClosed) as closed:
            connection.recv(timeout=SECONDS)
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == code


@pytest.mark.parametrize(
    "path", ["/nope", "/jobs/granite/999", "/jobs/slate/481340", "/jobs/granite/\0", "no path"]
)
def test_what_is_not_there_is_told_to_be_gone(server: Server, path: str) -> None:
    with live(server) as connection:
        connection.send(follow(path))
        assert news(connection) == {"number": 1, "gone": True}
    polled = httpx.get(server.url + PATH, params={"wish": follow(path)}, timeout=SECONDS)
    assert (polled.status_code, polled.json()) == (404, {"number": 1, "gone": True})


def test_a_new_wish_takes_the_place_of_the_one_before(server: Server) -> None:
    with live(server) as connection:
        connection.send(follow("/"))
        assert news(connection)["news"]["shape"] == "measured granite"
        connection.send(follow("/jobs", number=2))
        frames = [news(connection) for _ in range(5)]
        of_new = [frame for frame in frames if frame["number"] == 2]
        assert len(of_new) >= 4  # one of the old may have been on its way
        assert {frame["news"]["shape"] for frame in of_new} == {"jobs"}


def test_the_other_door_answers_the_same_in_one_piece(server: Server) -> None:
    answer = httpx.get(server.url + PATH, params={"wish": follow(JOB)}, timeout=SECONDS)
    found = answer.json()["news"]
    assert answer.headers["cache-control"] == "private, no-store"
    assert found["charts"]["job-instrument"]["whole"] is True
    assert found["cursor"][0] == server.clock.now.timestamp()
    assert httpx.get(server.url + PATH, params={"wish": "{}"}).status_code == 422


def test_a_quiet_socket_gives_a_sign_of_life(databases: DatabaseFactory, tmp_path: Path) -> None:
    with (
        databases.database() as database,
        serve(database, Clock(), tmp_path, timing=replace(QUICK, beat=0.1)) as server,
        live(server) as connection,
    ):
        assert json.loads(connection.recv(timeout=SECONDS)) == {"beat": True}


@pytest.fixture
def statements(server: Server) -> Iterator[list[str]]:
    """A list that fills with what the hub asks of the database."""
    with asked_by_hub(server.database) as found:
        yield found


def test_ten_viewers_cost_the_database_what_one_costs(
    server: Server, statements: list[str]
) -> None:
    def cost_of_ten_frames(viewers: int) -> int:
        with ExitStack() as stack:
            connections = [stack.enter_context(live(server)) for _ in range(viewers)]
            for connection in connections:
                connection.send(follow("/jobs"))
            for connection in connections:
                news(connection)
            statements.clear()
            for _ in range(10):
                news(connections[0])
            return len(statements)

    alone, together = cost_of_ten_frames(1), cost_of_ten_frames(10)
    one_reading = alone / 10
    assert one_reading >= 1
    assert abs(together - alone) <= 2 * one_reading  # a reading may have begun before the count


def test_who_may_not_see_a_job_is_told_what_is_told_of_none(server: Server) -> None:
    house = House(server.database, Settings(), PeakTable.load(), server.clock)
    hub = Hub(house, QUICK)
    with listening(_open_house(house, hub, Router(all_pages()))) as url:
        there = Server(url, server.database, server.clock)
        owner, stranger = (
            {"role": "researcher", "name": "mchen"},
            {"role": "researcher", "name": "eve"},
        )
        with live(there, **owner) as mine, live(there, **stranger) as theirs:
            mine.send(follow(JOB))
            theirs.send(follow(JOB))
            assert news(mine)["news"]["shape"]["state"] == "RUNNING"
            assert news(theirs) == {"number": 1, "gone": True}
            mine.send(follow("/jobs", rows=[0, 100]))
            theirs.send(follow("/jobs", rows=[0, 100]))
            assert {row["user"] for row in news(mine)["news"]["rows"]["rows"]} == {"mchen"}
            assert news(theirs)["news"]["rows"]["rows"] == []


def test_who_never_reads_takes_no_memory_and_is_dropped(server: Server) -> None:
    house = House(server.database, Settings(), PeakTable.load(), server.clock)
    timing = replace(QUICK, tick=0.01, stuck=2.0)
    page = Page("Large", "/large", _never_shown, lambda _: None, live=_Large().read)
    app = _open_house(house, Hub(house, timing), Router([page]))
    with listening(app) as url, asked_by_hub(server.database) as statements:
        there = Server(url, server.database, server.clock)
        deaf = _deaf_browser(there, follow("/large"))
        with deaf, live(there) as other:
            other.send(follow("/large"))
            for _ in range(10):
                news(other)
            before = _resident_bytes()
            for _ in range(100):  # 90 MB, if it were kept
                news(other)
            assert _resident_bytes() - before < 30e6
            other.close()
            wait_for(lambda: _is_quiet(statements), "nobody is read for any more", SECONDS)


class _Large:
    """A page of 0.9 MB, other ones each time."""

    def __init__(self) -> None:
        self._reads = 0

    def read(self, visit: Visit, place: Place, ask: Ask) -> Reading:
        self._reads += 1
        text = f"{self._reads}" * (900_000 // len(str(self._reads)))
        return Reading("large", freshness(None, visit.now), as_json({"text": {"children": text}}))


async def _never_shown(place: Place) -> Shown:
    raise NotFound(place.address.path)


def _open_house(house: House, hub: Hub, router: Router) -> FastAPI:
    """The live path alone, behind a door that believes what a visitor says of himself."""

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        async with hub.running():
            yield

    app = FastAPI(lifespan=lifespan)
    app.state.house = house
    connect_live(app, router, hub)
    app.add_middleware(_Believing)
    return app


class _Believing:
    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope) if scope["type"] != "lifespan" else {}
        role: Any = headers.get("x-role", "admin")
        principal = Principal(headers.get("x-name", "ada"), role)
        scope.setdefault("state", {}).update(principal=principal, session_id=None)
        await self._app(scope, receive, send)


def _deaf_browser(server: Server, wish: str) -> socket.socket:
    """Opens a socket, follows a page, and never reads an answer."""
    port = int(server.url.rpartition(":")[2])
    found = socket.create_connection(("127.0.0.1", port))
    found.sendall(
        f"GET {PATH} HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\norigin: {server.url}\r\n"
        "upgrade: websocket\r\nconnection: upgrade\r\nsec-websocket-version: 13\r\n"
        "sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n".encode()
    )
    assert len(wish) < 126  # RFC 6455: a final text frame, masked with zeros
    found.sendall(b"\x81" + bytes([0x80 | len(wish)]) + bytes(4) + wish.encode())
    return found


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def _is_quiet(statements: list[str]) -> bool:
    statements.clear()
    time.sleep(0.5)  # many ticks
    return not statements
