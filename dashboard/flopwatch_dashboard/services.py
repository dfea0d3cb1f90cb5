"""How a page reaches the server's services: `await call(function, *args)`, and in no other way.

The services are synchronous; Dash runs callbacks on the event loop. So each call gets a thread, a
session and the person who asks, whom the guard put into the scope of the request. The live hub has
threads of its own, in which it reads by `read_as`.
"""

import asyncio
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from typing import Concatenate, ParamSpec, TypeVar, cast

from sqlalchemy.orm import Session
from starlette.types import ASGIApp, Receive, Scope, Send

from flopwatch.gpus import PeakTable
from flopwatch_server.access.principal import Principal
from flopwatch_server.house import House
from flopwatch_server.settings import Settings

P = ParamSpec("P")
Answer = TypeVar("Answer")

_scope: ContextVar[Scope] = ContextVar("flopwatch_scope")


@dataclass(frozen=True, slots=True)
class Visit:
    """What one read needs: a session, who asks, what time it is, and what the server knows."""

    session: Session
    principal: Principal
    now: datetime
    peaks: PeakTable
    settings: Settings


async def call(
    read: Callable[Concatenate[Visit, P], Answer], *args: P.args, **kwargs: P.kwargs
) -> Answer:
    """What `read` answers to the person behind the current request, from a thread of its own."""
    scope = _scope.get()
    house = cast(House, scope["app"].state.house)
    principal = cast(Principal, scope["state"]["principal"])
    return await asyncio.to_thread(lambda: read_as(house, principal, read, *args, **kwargs))


def read_as(
    house: House,
    principal: Principal,
    read: Callable[Concatenate[Visit, P], Answer],
    *args: P.args,
    **kwargs: P.kwargs,
) -> Answer:
    """What `read` answers to `principal`, in a session of its own; blocks."""
    with house.database.session() as session:
        visit = Visit(session, principal, house.clock(), house.peaks, house.settings)
        return read(visit, *args, **kwargs)


def time_of(visit: Visit) -> datetime:
    """What time it is, by the server's clock."""
    return visit.now


def server_address() -> str:
    """The address under which the browser reached this server: "https://host:port"."""
    scope = _scope.get()
    host = next((value.decode() for name, value in scope["headers"] if name == b"host"), "")
    return f"{scope['scheme']}://{host}"


class RememberRequest:
    """ASGI middleware inside the guard: lets `call` find the request that it serves."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        token = _scope.set(scope)
        try:
            await self._app(scope, receive, send)
        finally:
            _scope.reset(token)
