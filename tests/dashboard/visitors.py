"""The product as somebody else than the local admin sees it."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from starlette.middleware import Middleware
from starlette.types import ASGIApp, Receive, Scope, Send

from flopwatch.gpus import PeakTable
from flopwatch_dashboard.app import create
from flopwatch_server.access.guard import Guard
from flopwatch_server.access.principal import Principal
from flopwatch_server.house import House
from flopwatch_server.settings import Settings
from tests.dashboard.conftest import QUICK, Server, listening


@contextmanager
def served_to(
    principal: Principal, server: Server, folders: pytest.TempPathFactory
) -> Iterator[Server]:
    """The database of `server` behind a door that takes every visitor for `principal`.

    All have one folder for their data, so that files are compressed once.
    """
    settings = Settings(data_dir=folders.getbasetemp() / "served")
    house = House(server.database, settings, PeakTable.load(), server.clock)
    app = create(house, QUICK)
    guard = [layer.cls for layer in app.user_middleware].index(Guard)
    app.user_middleware.insert(guard + 1, Middleware(_TakenFor, principal=principal))
    with listening(app) as url:
        yield Server(url, server.database, server.clock)


class _TakenFor:
    def __init__(self, app: ASGIApp, principal: Principal) -> None:
        self._app = app
        self._principal = principal

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "lifespan":
            scope["state"]["principal"] = self._principal
        await self._app(scope, receive, send)
