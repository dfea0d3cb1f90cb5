"""The door: a pure ASGI middleware that every request and every websocket passes.

It stands before Dash, whose own hooks see neither deep links nor websockets. It finds out who asks
and puts the answer into the scope's state as `principal` or `machine`: there is no other source.
`session_id` stands beside a principal, for what outlives its handshake and has to ask again.
"""

import asyncio
import re
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import quote

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from flopwatch.wire import MAX_BODY_BYTES
from flopwatch_server.access import sessions
from flopwatch_server.access.known_tokens import KnownTokens
from flopwatch_server.access.principal import Principal
from flopwatch_server.access.tokens import MachineIdentity
from flopwatch_server.clock import Clock
from flopwatch_server.database.engine import DATABASE_GONE, UNREACHABLE, Database
from flopwatch_server.settings import Settings

OPEN_PATHS = frozenset({"/api/v1/health", "/sign-in", "/robots.txt", "/favicon.ico"})
OPEN_PREFIXES = ("/assets/", "/_favicon")
MACHINE_PATHS = frozenset({"/api/v1/ingest", "/api/v1/feed"})
COOKIE = "flopwatch_session"
MAX_PERSON_BODY_BYTES = 1024 * 1024
BODY_SECONDS = 30.0
"""So long the whole body of a request may take."""

MAX_HEADERS = 100
_HOST = re.compile(r"(?P<name>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::[0-9]{1,5})?")
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})
_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"same-origin"),
    (b"x-frame-options", b"DENY"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"cache-control", b"private, no-store"),
)
_CLOSE = {"connection": "close"}  # what is left of the body would be taken for the next request


class Guard:
    """Let in whom `settings.sign_in` allows; answer everybody else here.

    `demo` makes every visitor an admin, and so answers loopback names only: a page of another site
    that got a name of its own to point here is refused. `local` asks for the local admin's
    session. Machines need a token on their own paths and get nowhere else with it.
    """

    def __init__(self, app: ASGIApp, database: Database, settings: Settings, clock: Clock) -> None:
        self._app = app
        self._database = database
        self._settings = settings
        self._clock = clock
        self._tokens = KnownTokens(database, clock)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        state = scope.setdefault("state", {})
        refusal = self._malformed(scope, headers)
        if refusal is None:
            try:
                refusal = await self._identify(scope, headers, state)
            except UNREACHABLE:
                refusal = _error(503, DATABASE_GONE, {"retry-after": "5"})
        if scope["type"] == "websocket":
            await self._websocket(refusal, scope, receive, send)
            return
        limit = MAX_BODY_BYTES if scope["path"] in MACHINE_PATHS else MAX_PERSON_BODY_BYTES
        refusal = refusal or _announced_length(headers, limit)
        await (refusal or self._app)(scope, _bounded(receive, limit), _with_headers(send))

    async def _websocket(
        self, refusal: Response | None, scope: Scope, receive: Receive, send: Send
    ) -> None:
        if refusal is None and not _same_origin(Headers(scope=scope)):
            refusal = _error(403, "a websocket needs the Origin of this server")
        if refusal is None:
            await self._app(scope, receive, send)
        else:
            await receive()
            await send({"type": "websocket.close", "code": 4401})  # before accept: HTTP 403

    def _malformed(self, scope: Scope, headers: Headers) -> Response | None:
        if len(scope["headers"]) > MAX_HEADERS:
            return _error(431, f"more than {MAX_HEADERS} headers")
        hosts = headers.getlist("host")
        host = _HOST.fullmatch(hosts[0]) if len(hosts) == 1 else None
        if host is None:
            return _error(400, "exactly one Host header with a name is needed")
        if self._settings.sign_in == "demo" and host["name"].lower() not in _LOOPBACK:
            return _error(400, "without sign-in this server answers on localhost only")
        return None

    async def _identify(
        self, scope: Scope, headers: Headers, state: dict[str, Any]
    ) -> Response | None:
        path = scope["path"]
        if path in OPEN_PATHS or path.startswith(OPEN_PREFIXES):
            return _cross_site(scope, headers)
        if path in MACHINE_PATHS:
            state["machine"] = await self._machine(headers)
            if state["machine"] is None:
                return _error(
                    401,
                    "the token is unknown or revoked: make one with 'flopwatch token'",
                    {"www-authenticate": "Bearer"},
                )
            return None
        state["session_id"] = self._session_id(headers)
        state["principal"] = await self._person(state["session_id"])
        if state["principal"] is None:
            return _sign_in_first(scope, headers)
        return _cross_site(scope, headers)

    async def _machine(self, headers: Headers) -> MachineIdentity | None:
        scheme, _, value = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not value.isascii() or len(value) > 200:
            return None
        return await self._tokens.identify(value)

    def _session_id(self, headers: Headers) -> str | None:
        """The session that a person comes with; nobody has one where nobody signs in."""
        return None if self._settings.sign_in == "demo" else cookie(headers)

    async def _person(self, session_id: str | None) -> Principal | None:
        if self._settings.sign_in == "demo":
            return Principal("demo", "admin")
        if not session_id:
            return None
        return await asyncio.to_thread(self._session, session_id)

    def _session(self, session_id: str) -> Principal | None:
        with self._database.session() as session:
            return sessions.principal_of(session, session_id, self._clock())


def cookie(headers: Headers) -> str | None:
    """The session id that the browser sent, if any."""
    try:
        jar = SimpleCookie(headers.get("cookie", ""))
    except CookieError:
        return None
    return jar[COOKIE].value if COOKIE in jar else None


def _cross_site(scope: Scope, headers: Headers) -> Response | None:
    """Refuse what another site's page sends in the name of a person who is signed in."""
    if scope["type"] != "http" or scope["method"] in ("GET", "HEAD", "OPTIONS"):
        return None
    site = headers.get("sec-fetch-site", "same-origin")
    if site in ("same-origin", "none") and ("origin" not in headers or _same_origin(headers)):
        return None
    return _error(403, "requests from another site are refused")


def _same_origin(headers: Headers) -> bool:
    _, separator, host = headers.get("origin", "").partition("://")
    return bool(separator) and host == headers["host"]


def _sign_in_first(scope: Scope, headers: Headers) -> Response:
    wants_page = scope["type"] == "http" and scope["method"] == "GET"
    if wants_page and "text/html" in headers.get("accept", ""):
        return RedirectResponse(f"/sign-in?next={quote(scope['path'])}", 303)
    return _error(401, "sign in first")


def _error(status: int, detail: str, headers: dict[str, str] | None = None) -> Response:
    return JSONResponse({"detail": detail}, status, headers)


def _with_headers(send: Send) -> Send:
    """Add the security headers that an answer does not set itself."""

    async def sender(message: Message) -> None:
        if message["type"] == "http.response.start":
            own = message.get("headers", [])
            names = {name for name, _ in own}
            message["headers"] = [*own, *(pair for pair in _HEADERS if pair[0] not in names)]
        await send(message)

    return sender


def _announced_length(headers: Headers, limit: int) -> Response | None:
    """Refuse a body by its Content-Length, before anything of it is read."""
    length = headers.get("content-length", "0")
    if not (length.isascii() and length.isdigit()):
        return _error(400, "Content-Length is not a number", _CLOSE)
    if int(length) > limit:
        return _error(413, _too_large(limit), _CLOSE)
    return None


def _bounded(receive: Receive, limit: int) -> Receive:
    """The pieces of a body, as long as it is within `limit` bytes and BODY_SECONDS.

    Else the application that asks for the next piece is raised a 413 or a 408, which it answers.
    """
    deadline = asyncio.get_running_loop().time() + BODY_SECONDS
    received = 0
    complete = False

    async def receiver() -> Message:
        nonlocal received, complete
        if complete:  # what comes is the end of the connection, whenever that is
            return await receive()
        try:
            async with asyncio.timeout_at(deadline):
                message = await receive()
        except TimeoutError:
            raise HTTPException(408, f"the body took over {BODY_SECONDS:g} s", _CLOSE) from None
        received += len(message.get("body", b""))
        complete = not message.get("more_body", False)
        if received > limit:
            raise HTTPException(413, _too_large(limit), _CLOSE)
        return message

    return receiver


def _too_large(limit: int) -> str:
    return f"the body is over {limit} bytes: send less at a time"
