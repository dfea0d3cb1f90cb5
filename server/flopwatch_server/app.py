"""The API as an ASGI application, behind the guard, with its background work."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request
from starlette.responses import JSONResponse, Response

import flopwatch_server.access.endpoints
import flopwatch_server.doctor.endpoints
import flopwatch_server.efficiency.endpoints
import flopwatch_server.fleet.endpoints
import flopwatch_server.jobs.endpoints
import flopwatch_server.jobs.feed_endpoints
import flopwatch_server.people.endpoints
import flopwatch_server.scheduler.endpoints
from flopwatch_server.access.guard import Guard
from flopwatch_server.database.engine import DATABASE_GONE, UNREACHABLE
from flopwatch_server.house import House, NotFound
from flopwatch_server.telemetry.endpoints import Ingest
from flopwatch_server.telemetry.openapi import describe_ingest
from flopwatch_server.telemetry.writer import IngestWriter
from flopwatch_server.work.runner import Runner
from flopwatch_server.work.schedule import periodic_tasks

_EVERY_METHOD = ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"]


def create_app(house: House, add_pages: Callable[[FastAPI], None] | None = None) -> FastAPI:
    """The whole API under /api/v1. The database must have been brought up to date before.

    `add_pages` puts pages on the same application. Whatever it adds stands behind the guard.
    """
    app = FastAPI(
        title="Flopwatch",
        description="What every batch job really gets out of its GPUs.",
        version="1",
        openapi_url="/api/v1/openapi.json",
        docs_url=None,  # the stock pages load scripts from outside
        redoc_url=None,
        # Nobody collects it, and every request would ask whether anybody does.
        telemetry={"tracing": False, "metrics": False, "logs": False},
        lifespan=_lifespan,
    )
    app.state.house = house
    app.include_router(flopwatch_server.access.endpoints.router)
    for module in (
        flopwatch_server.fleet.endpoints,
        flopwatch_server.jobs.feed_endpoints,
        flopwatch_server.jobs.endpoints,
        flopwatch_server.people.endpoints,
        flopwatch_server.scheduler.endpoints,
        flopwatch_server.efficiency.endpoints,
        flopwatch_server.doctor.endpoints,
    ):
        app.include_router(module.router, prefix="/api/v1")
    app.add_api_route("/api/v1/health", _health, methods=["GET"])
    # Without this, the pages' catch-all would answer an unknown API path with a web page.
    app.add_api_route("/api/{path:path}", _unknown, methods=_EVERY_METHOD, include_in_schema=False)
    app.add_exception_handler(NotFound, _not_found)
    for error in UNREACHABLE:
        app.add_exception_handler(error, _database_gone)
    app.openapi = lambda: _described(app)  # type: ignore[method-assign]
    if add_pages is not None:
        add_pages(app)
    app.add_middleware(Ingest, path="/api/v1/ingest")
    app.add_middleware(Guard, database=house.database, settings=house.settings, clock=house.clock)
    return app


def _described(app: FastAPI) -> dict[str, Any]:
    """FastAPI's own description, completed once by what it can't see."""
    if app.openapi_schema is None:
        document = FastAPI.openapi(app)
        describe_ingest(document)
        schemes = document["components"].setdefault("securitySchemes", {})
        schemes["token"] = {"type": "http", "scheme": "bearer"}
    return app.openapi_schema or {}


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    house: House = app.state.house
    app.state.writer = writer = IngestWriter(house)
    in_process = house.settings.work == "in_process"
    runner = Runner(periodic_tasks(house.settings) if in_process else [], house)
    writer.start()
    runner.start()
    try:
        yield
    finally:
        writer.stop()
        runner.stop()
        house.database.dispose()


def _health() -> dict[str, str]:
    """Says that the server runs; needs no sign-in and tells nothing else."""
    return {"status": "ok"}


def _unknown(path: str) -> Response:
    return JSONResponse({"detail": f"there is no /api/{path}"}, 404)


def _not_found(request: Request, error: Exception) -> Response:
    return JSONResponse({"detail": str(error)}, 404)


def _database_gone(request: Request, error: Exception) -> Response:
    return JSONResponse({"detail": DATABASE_GONE}, 503, {"retry-after": "5"})
