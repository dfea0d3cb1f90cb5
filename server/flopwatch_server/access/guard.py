"""The door: a pure ASGI middleware that every request and every websocket passes.

It stands before Dash, whose own hooks see neither deep links nor websockets. It finds out who asks
and puts the answer into the scope's state as `principal` or `machine`: there is no other source.
`session_id` stands beside a principal, for what outlives its handshake and has to ask again.
"""

import asyncio
import re
import time
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import quote

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from flopwatch.wire import MAX_BODY_BYTES
from flopwatch_server.access import sessions, tokens
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
MAX_HEADERS = 100
_HOST = re.compile(r"(?P<name>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::[0-9]{1,5})?")
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})
_TOKEN_CACHE_SECONDS = 5.0
_HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "x-frame-options": "DENY",
    "cross-origin-opener-policy": "same-origin",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "cache-control": "private, no-store",
}


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
        self._tokens: dict[str, tuple[float, MachineIdentity | None]] = {}

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
        elif refusal is not None:
            await refusal(scope, receive, _with_headers(send))
        else:
            limit = MAX_BODY_BYTES if scope["path"] in MACHINE_PATHS else MAX_PERSON_BODY_BYTES
            await _limited(self._app, limit, scope, headers, receive, _with_headers(send))

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
        asked_at, identity = self._tokens.get(value, (-_TOKEN_CACHE_SECONDS, None))
        if time.monotonic() - asked_at > _TOKEN_CACHE_SECONDS:
            identity = await asyncio.to_thread(self._look_up, value)
            if len(self._tokens) > 50_000:  # a flood of made-up tokens must not fill the memory
                self._tokens.clear()
            self._tokens[value] = (time.monotonic(), identity)
        return identity

    def _look_up(self, value: str) -> MachineIdentity | None:
        with self._database.session() as session:
            identity = tokens.identify(session, value)
            if identity is not None:
                tokens.touch(session, {identity.token_id}, self._clock())
            return identity

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
            headers = MutableHeaders(scope=message)
            for name, value in _HEADERS.items():
                headers.setdefault(name, value)
        await send(message)

    return sender


class _TooLargeError(Exception):
    """The body went over its limit while it was read."""


async def _limited(
    app: ASGIApp, limit: int, scope: Scope, headers: Headers, receive: Receive, send: Send
) -> None:
    """Run `app` on a body of at most `limit` bytes; 413 before a larger one is read whole."""
    too_large = _error(413, f"the body is over {limit} bytes: send less at a time")
    length = headers.get("content-length", "0")
    if not (length.isascii() and length.isdigit()):
        await _error(400, "Content-Length is not a number")(scope, receive, send)
        return
    if int(length) > limit:
        await too_large(scope, receive, send)
        return
    started = False
    received = 0

    async def receiver() -> Message:
        nonlocal received
        message = await receive()
        received += len(message.get("body", b""))
        if received > limit:
            raise _TooLargeError
        return message

    async def sender(message: Message) -> None:
        nonlocal started
        started = True
        await send(message)

    try:
        await app(scope, receiver, sender)
    except _TooLargeError:
        if started:
            raise
        await too_large(scope, receive, send)
