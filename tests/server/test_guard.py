"""The door: who gets in, with what, and what an attacker hears."""

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from fastapi import FastAPI, Request, WebSocket
from sqlalchemy import select
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from flopwatch_server.access import endpoints, guard, sessions, tokens
from flopwatch_server.access.guard import COOKIE, MAX_PERSON_BODY_BYTES, Guard
from flopwatch_server.access.models import Token
from flopwatch_server.access.throttle import Throttle
from flopwatch_server.database.engine import Database
from flopwatch_server.fleet.repository.clusters import ensure_cluster
from flopwatch_server.house import House
from flopwatch_server.settings import Settings

NOW = datetime(2026, 3, 12, 9, 0, tzinfo=UTC)
PASSWORD = "correct horse battery"


class Now:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.time = NOW

    def __call__(self) -> datetime:
        return self.time


@pytest.fixture
def clock() -> Now:
    return Now()


def door(house: House, sign_in: str, clock: Now) -> TestClient:
    """A small application behind the guard that tells whom the guard let in."""
    app = FastAPI()
    app.state.house = house
    house.clock = clock
    app.include_router(endpoints.router)

    @app.api_route("/api/v1/who", methods=["GET", "POST"])
    async def who(request: Request) -> dict[str, int | str]:
        return {"name": request.scope["state"]["principal"].name,
                "bytes": len(await request.body())}  # fmt: skip

    @app.post("/api/v1/ingest")
    async def ingest(request: Request) -> dict[str, str | None]:
        return {"node": request.scope["state"]["machine"].node}

    @app.websocket("/live")
    async def live(socket: WebSocket) -> None:
        await socket.accept()
        await socket.send_text(socket.scope["state"]["principal"].name)

    settings = Settings(sign_in=sign_in)  # type: ignore[arg-type]
    app.add_middleware(Guard, database=house.database, settings=settings, clock=clock)
    return TestClient(app, base_url="http://localhost:8260", follow_redirects=False)


@pytest.fixture
def demo(house: House, clock: Now) -> Iterator[TestClient]:
    with door(house, "demo", clock) as client:
        yield client


@pytest.fixture
def local(house: House, clock: Now, monkeypatch: pytest.MonkeyPatch) -> Iterator[TestClient]:
    with house.database.session() as session:
        sessions.set_password(session, "ada", PASSWORD, NOW)
    monkeypatch.setattr(endpoints, "_throttle", Throttle(limit=5, window_seconds=900))
    with door(house, "local", clock) as client:
        yield client


def signed_in(client: TestClient) -> TestClient:
    answer = client.post("/sign-in", data={"name": "ada", "password": PASSWORD})
    assert answer.status_code == 303
    return client


def node_token(database: Database, node: str | None = None) -> str:
    with database.session() as session:
        return tokens.create(session, "node", ensure_cluster(session, "granite", NOW), node, NOW)


def test_demo_lets_everybody_in_on_this_machine(demo: TestClient) -> None:
    assert demo.get("/api/v1/who").json()["name"] == "demo"


@pytest.mark.parametrize(
    "host", ["evil.example:8260", "127.0.0.1.evil.example", "192.168.1.5:8260"]
)
def test_demo_answers_to_no_other_name(demo: TestClient, host: str) -> None:
    answer = demo.get("/api/v1/who", headers={"host": host})
    assert answer.status_code == 400
    assert "localhost only" in answer.json()["detail"]


@pytest.mark.parametrize(
    "host",
    ["", "[", "[::1", "localhost/..", "localhost#", "a@localhost", "localhost:x"],
)
def test_a_host_that_is_no_name_is_400(demo: TestClient, host: str) -> None:
    assert demo.get("/api/v1/who", headers={"host": host}).status_code == 400


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:8260", "[::1]:8260"])
def test_demo_answers_to_every_name_of_the_loopback(demo: TestClient, host: str) -> None:
    assert demo.get("/api/v1/who", headers={"host": host}).status_code == 200


def test_without_a_session_an_api_call_is_401_and_a_page_leads_to_the_form(
    local: TestClient,
) -> None:
    assert local.get("/api/v1/who").status_code == 401
    page = local.get("/jobs/granite/5", headers={"accept": "text/html"})
    assert (page.status_code, page.headers["location"]) == (303, "/sign-in?next=/jobs/granite/5")


def test_the_admin_signs_in_and_out(local: TestClient) -> None:
    signed_in(local)
    cookie = local.cookies[COOKIE]
    assert local.get("/api/v1/who").json()["name"] == "ada"
    local.post("/sign-out")
    local.cookies.set(COOKIE, cookie)  # the browser's back button
    assert local.get("/api/v1/who").status_code == 401


def test_the_cookie_is_out_of_reach_of_scripts_and_other_sites(local: TestClient) -> None:
    answer = local.post("/sign-in", data={"name": "ada", "password": PASSWORD})
    attributes = answer.headers["set-cookie"].lower()
    assert "httponly" in attributes
    assert "samesite=lax" in attributes


def test_a_wrong_name_and_a_wrong_password_sound_the_same(local: TestClient) -> None:
    wrong = local.post("/sign-in", data={"name": "ada", "password": "guess guess guess"})
    unknown = local.post("/sign-in", data={"name": "eve", "password": PASSWORD})
    assert (wrong.status_code, unknown.status_code) == (401, 401)
    assert wrong.text == unknown.text


def test_the_sixth_guess_is_not_even_looked_at(local: TestClient) -> None:
    for _ in range(5):
        local.post("/sign-in", data={"name": "ada", "password": "guess guess guess"})
    answer = local.post("/sign-in", data={"name": "ada", "password": PASSWORD})
    assert answer.status_code == 429


def test_guesses_are_forgotten_after_the_window() -> None:
    now = 0.0
    throttle = Throttle(limit=2, window_seconds=60, clock=lambda: now)
    throttle.count("10.0.0.1", "ada")
    throttle.count("10.0.0.2", "ada")
    assert not throttle.allows("10.0.0.3", "ada")
    assert throttle.allows("10.0.0.3", "bob")
    now = 61
    assert throttle.allows("10.0.0.1", "ada")


@pytest.mark.parametrize(
    ("wait", "status"),
    [(timedelta(hours=7, minutes=59), 200), (timedelta(hours=8, minutes=1), 401)],
)
def test_a_session_ends_after_8_idle_hours(
    local: TestClient, clock: Now, wait: timedelta, status: int
) -> None:
    signed_in(local)
    clock.time += wait
    assert local.get("/api/v1/who").status_code == status


def test_a_session_ends_after_24_hours_however_busy(local: TestClient, clock: Now) -> None:
    signed_in(local)
    for _ in range(24):
        clock.time += timedelta(minutes=59)
        assert local.get("/api/v1/who").status_code == 200
    clock.time += timedelta(minutes=30)
    assert local.get("/api/v1/who").status_code == 401


def test_a_new_password_ends_all_sessions(local: TestClient, house: House) -> None:
    signed_in(local)
    with house.database.session() as session:
        sessions.set_password(session, "ada", "another long one", NOW)
    assert local.get("/api/v1/who").status_code == 401


def test_a_short_password_is_refused_by_name_of_the_rule(database: Database) -> None:
    with database.session() as session, pytest.raises(ValueError, match="12 characters"):
        sessions.set_password(session, "ada", "short", NOW)


@pytest.mark.parametrize(
    ("target", "location"),
    [
        ("/jobs/granite/5", "/jobs/granite/5"), ("//evil.example", "/"), ("/\\evil.example", "/"),
        ("https://evil.example", "/"), ("https:evil", "/"), ("javascript:alert(1)", "/"),
        ("/a\\b", "/"), ("", "/"),
    ],
)  # fmt: skip
def test_signing_in_leads_to_a_page_of_this_server_only(
    local: TestClient, target: str, location: str
) -> None:
    form = {"name": "ada", "password": PASSWORD, "next": target}
    assert local.post("/sign-in", data=form).headers["location"] == location


def test_a_name_that_no_database_can_hold_is_refused(local: TestClient) -> None:
    answer = local.post("/sign-in", data={"name": "a\0b", "password": PASSWORD})
    assert answer.status_code == 422


def test_what_the_form_repeats_is_text(local: TestClient) -> None:
    page = local.get("/sign-in", params={"next": '/"><script>alert(1)</script>'}).text
    assert "<script" not in page


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "http://["},
        {"origin": "null"},
        {"origin": "localhost:8260"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
)
def test_what_another_sites_page_sends_is_refused(
    demo: TestClient, headers: dict[str, str]
) -> None:
    assert demo.post("/api/v1/who", headers=headers).status_code == 403


def test_this_sites_own_post_goes_through(demo: TestClient) -> None:
    headers = {"origin": "http://localhost:8260", "sec-fetch-site": "same-origin"}
    assert demo.post("/api/v1/who", headers=headers).status_code == 200


@pytest.mark.parametrize(
    "header", ["", "Bearer", "Bearer ", "Bearer fpn_wrong", "Basic abc", "Bearer " + "x" * 5000]
)
def test_a_machine_without_a_good_token_is_401(demo: TestClient, header: str) -> None:
    answer = demo.post("/api/v1/ingest", headers={"authorization": header})
    assert answer.status_code == 401
    assert "flopwatch token" in answer.json()["detail"]


def test_a_token_says_which_node_speaks_and_is_marked_as_used(
    demo: TestClient, house: House
) -> None:
    value = node_token(house.database, "g014")
    answer = demo.post("/api/v1/ingest", headers={"authorization": f"Bearer {value}"})
    assert answer.json() == {"node": "g014"}
    with house.database.session() as session:
        token = session.scalars(select(Token)).one()
        assert token.last_used_at == NOW
        assert value.encode() not in token.hash
        assert token.prefix == value[:8]


def test_while_the_database_is_gone_a_machine_is_told_to_come_again(house: House) -> None:
    gone = House(Database("postgresql://nobody@127.0.0.1:1/none"), house.settings, house.peaks)
    with door(gone, "demo", Now()) as client:
        answer = client.post("/api/v1/ingest", headers={"authorization": "Bearer fpn_any"})
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")


def test_a_revoked_token_is_401(demo: TestClient, house: House) -> None:
    value = node_token(house.database)
    with house.database.session() as session:
        session.scalars(select(Token)).one().revoked_at = NOW
    answer = demo.post("/api/v1/ingest", headers={"authorization": f"Bearer {value}"})
    assert answer.status_code == 401


def test_a_machines_token_opens_nothing_for_people(local: TestClient, house: House) -> None:
    value = node_token(house.database)
    answer = local.get("/api/v1/who", headers={"authorization": f"Bearer {value}"})
    assert answer.status_code == 401


def test_a_body_over_the_limit_is_413_by_its_announced_length(demo: TestClient) -> None:
    answer = demo.post("/api/v1/who", content=b"x" * (MAX_PERSON_BODY_BYTES + 1))
    assert answer.status_code == 413


def test_a_body_at_the_limit_is_read_whole(demo: TestClient) -> None:
    answer = demo.post("/api/v1/who", content=b"x" * MAX_PERSON_BODY_BYTES)
    assert answer.json()["bytes"] == MAX_PERSON_BODY_BYTES


def post_scope() -> dict[str, object]:
    """A request of a server that has read no more than the head, without the body's length."""
    return {
        "type": "http", "method": "POST", "path": "/api/v1/who", "raw_path": b"/api/v1/who",
        "query_string": b"", "scheme": "http", "http_version": "1.1", "root_path": "",
        "headers": [(b"host", b"localhost:8260")], "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 8260), "asgi": {"version": "3.0"},
    }  # fmt: skip


def test_a_body_without_a_length_is_413_before_it_is_read_whole(house: House, clock: Now) -> None:
    pulled = 0

    async def endless() -> AsyncIterator[dict[str, object]]:
        while True:
            yield {"type": "http.request", "body": b"x" * 65536, "more_body": True}

    chunks = endless()

    async def receive() -> dict[str, object]:
        nonlocal pulled
        pulled += 65536
        return await anext(chunks)

    sent: list[dict[str, object]] = []

    async def send(message: dict[str, object]) -> None:
        sent.append(message)

    app = door(house, "demo", clock).app
    asyncio.run(app(post_scope(), receive, send))  # type: ignore[arg-type]
    assert sent[0]["status"] == 413
    assert pulled <= MAX_PERSON_BODY_BYTES + 65536


def test_a_body_that_does_not_come_to_its_end_is_408(
    house: House, clock: Now, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard, "BODY_SECONDS", 0.2)
    sent: list[dict[str, Any]] = []
    pieces = [b"x" * 10, b"x" * 10]

    async def receive() -> dict[str, object]:
        if not pieces:
            await asyncio.Event().wait()  # the client sends nothing more and does not go away
        return {"type": "http.request", "body": pieces.pop(), "more_body": True}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    app = door(house, "demo", clock).app
    asyncio.run(app(post_scope(), receive, send))  # type: ignore[arg-type]
    assert (sent[0]["status"], (b"connection", b"close") in sent[0]["headers"]) == (408, True)


def test_a_websocket_needs_a_session_and_this_sites_origin(local: TestClient) -> None:
    own = {"origin": "http://localhost:8260"}
    with (
        pytest.raises(WebSocketDisconnect),
        local.websocket_connect("ws://localhost:8260/live", headers=own),
    ):
        pass
    signed_in(local)
    for headers in ({}, {"origin": "http://evil.example"}, {"origin": "http://["}):
        with (
            pytest.raises(WebSocketDisconnect),
            local.websocket_connect("ws://localhost:8260/live", headers=headers),
        ):
            pass
    with local.websocket_connect("ws://localhost:8260/live", headers=own) as socket:
        assert socket.receive_text() == "ada"


def test_every_answer_carries_the_headers_that_protect_a_browser(demo: TestClient) -> None:
    answers = [
        demo.get("/api/v1/who"),
        demo.get("/nothing"),
        demo.post("/api/v1/ingest"),
        demo.post("/api/v1/who", content=b"x" * (MAX_PERSON_BODY_BYTES + 1)),
        demo.get("/api/v1/who", headers={"host": "evil.example"}),
        demo.get("/sign-in"),
    ]
    assert [answer.status_code for answer in answers] == [200, 404, 401, 413, 400, 200]
    for answer in answers:
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["x-frame-options"] == "DENY"
        assert answer.headers["referrer-policy"] == "same-origin"
        assert re.search(r"frame-ancestors 'none'", answer.headers["content-security-policy"])


def test_a_request_with_two_host_headers_is_malformed(demo: TestClient) -> None:
    hosts = [("host", "localhost:8260"), ("host", "evil.example")]
    assert demo.get("/api/v1/who", headers=hosts).status_code == 400


def test_a_hundred_and_one_headers_are_too_many(demo: TestClient) -> None:
    headers = {f"x-{number}": "y" for number in range(101)}
    assert demo.get("/api/v1/who", headers=headers).status_code == 431
