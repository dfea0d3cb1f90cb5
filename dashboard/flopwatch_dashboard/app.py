"""The composition root: the API and the pages as one ASGI application."""

import logging
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, NoReturn

from dash import Dash, dash_table
from fastapi import FastAPI
from starlette.middleware.gzip import GZipMiddleware

from flopwatch_dashboard import shell
from flopwatch_dashboard.documents import Documents
from flopwatch_dashboard.live.hub import Hub, Timing
from flopwatch_dashboard.live.socket import connect_live
from flopwatch_dashboard.pages import all_pages
from flopwatch_dashboard.router import Router
from flopwatch_dashboard.services import RememberRequest
from flopwatch_dashboard.static import ASSETS, OurFiles, StaticFiles, our_files
from flopwatch_server.app import create_app
from flopwatch_server.house import House

_SMALLEST_COMPRESSED_BYTES = 1000
_logger = logging.getLogger(__name__)


def create(house: House, timing: Timing | None = None) -> FastAPI:
    """The whole server. The database must have been brought up to date before.

    `timing` is the pace of the live path, its own unless told.

    From outside in: files, the guard, compression, the request that `call` reads, documents,
    and then Dash and the API.
    """
    ours = our_files()
    hub = Hub(house, timing or Timing())
    app = create_app(house, lambda api: _add_pages(api, ours, hub))
    app.add_middleware(StaticFiles, given=ours.files, cache=house.settings.data_dir / "static")
    return app


def _add_pages(app: FastAPI, ours: OurFiles, hub: Hub) -> None:
    """Everything behind the guard: Dash reads a request's body before its own routes do."""
    pages = all_pages()
    router = Router(pages)
    dash = Dash(
        "flopwatch_dashboard",
        server=app,
        assets_folder=str(ASSETS),
        include_assets_files=False,
        title="Flopwatch",
        update_title="",
        index_string=shell.index_string(ours),
        suppress_callback_exceptions=True,
        on_error=_report,
    )
    # No page uses Dash's own websocket; left on, every browser would hold one open.
    dash.backend.websocket_capability = False
    dash.layout = shell.layout(pages)
    router.connect(dash)
    connect_live(app, router, hub)
    app.add_middleware(Documents, exists=router.exists, script_hashes=dash.csp_hashes())
    app.add_middleware(RememberRequest)
    app.add_middleware(GZipMiddleware, minimum_size=_SMALLEST_COMPRESSED_BYTES)
    app.router.lifespan_context = _with_set_up(dash, app, hub)


def _with_set_up(dash: Dash, app: FastAPI, hub: Hub) -> Any:
    """The API's lifespan, after Dash's set-up and with the hub in it.

    Dash sets itself up at the first request to one of its own paths. After a restart an open page
    may send a callback first, which would then be unknown.
    """
    inner = app.router.lifespan_context

    @asynccontextmanager
    async def lifespan(server: FastAPI) -> AsyncIterator[Any]:
        dash._setup_server()
        within: AbstractAsyncContextManager[Any] = inner(server)
        async with within as state, hub.running():
            yield state

    return lifespan


def _report(error: Exception) -> NoReturn:
    """Dash would answer 500 without a word in the log."""
    _logger.error("a callback failed", exc_info=error)
    raise error


dash_table._js_dist.clear()  # nothing here uses it, and every first visit would load it
