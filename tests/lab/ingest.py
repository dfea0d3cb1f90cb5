"""Batches as an agent would post them, and the ingest endpoint alone behind a made-up guard."""

from array import array
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from typing import Any

from fastapi import FastAPI
from httpx import Response
from sqlalchemy import text
from starlette.testclient import TestClient
from starlette.types import ASGIApp, Receive, Scope, Send

from flopwatch import wire
from flopwatch.metrics import COLUMNS
from flopwatch_server.access.tokens import MachineIdentity
from flopwatch_server.database.engine import Database
from flopwatch_server.fleet.repository.clusters import ensure_cluster
from flopwatch_server.house import House
from flopwatch_server.telemetry.endpoints import Ingest
from flopwatch_server.telemetry.writer import IngestWriter

NOW = datetime(2025, 3, 10, 12, 0, 0, tzinfo=UTC)
"""The time at the server in these tests; 12:00:00, so a minute and a sample end here."""

NOW_SECONDS = int(NOW.timestamp())
NAN = float("nan")


def device(number: int = 0, **changes: Any) -> wire.Device:
    """The GPU with minor `number` of its node."""
    fields: dict[str, Any] = {
        "uuid": f"GPU-00000000-0000-0000-0000-{number:012d}",
        "model": "NVIDIA H100 80GB HBM3",
        "memory_mib": 81559.0,
        "minor": number,
        "pci_bus_id": f"00000000:{number + 1:02X}:00.0",
        "power_limit_watts": 700.0,
    }
    return wire.Device(**fields | changes)


def batch(**changes: Any) -> wire.Batch:
    """A batch of one device and no samples, with some fields changed."""
    fields: dict[str, Any] = {
        "node": "gpu01",
        "epoch": wire.Epoch("boot-a", 1, NOW_SECONDS - 3600.0, "0.1.0"),
        "devices": [device()],
    }
    return wire.Batch(**fields | changes)


def sampled(
    rows: Sequence[tuple[int, int, dict[str, float]]],
    columns: Sequence[str] = COLUMNS,
    **changes: Any,
) -> tuple[wire.Batch, "array[float]"]:
    """A batch with samples (device index, time, known values) and its block of values."""
    samples = wire.Samples(
        columns=list(columns), device=[row[0] for row in rows], time=[row[1] for row in rows]
    )
    known = (row[2] for row in rows)
    values = array("f", [cells.get(name, NAN) for cells in known for name in columns])
    return batch(samples=samples, **changes), values


class _Door:
    """What the guard does for machines, without a token."""

    def __init__(self, app: ASGIApp, machine: MachineIdentity) -> None:
        self._app = app
        self._machine = machine

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope.setdefault("state", {})["machine"] = self._machine
        await self._app(scope, receive, send)


def ingest_app(house: House, node: str | None = None, kind: str = "node") -> FastAPI:
    """The ingest endpoint for a token of cluster "alpha", of one node or of all."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        app.state.writer = writer = IngestWriter(house)
        writer.start()
        try:
            yield
        finally:
            writer.stop()

    app = FastAPI(lifespan=lifespan)
    app.state.house = house
    machine = MachineIdentity(1, kind, cluster(house.database), node)
    app.add_middleware(Ingest, path="/ingest")
    app.add_middleware(_Door, machine=machine)
    return app


def cluster(database: Database) -> int:
    """Id of the cluster "alpha"."""
    with database.session() as session:
        return ensure_cluster(session, "alpha", NOW)


class IngestClient:
    """Posts as an agent does."""

    def __init__(self, http: TestClient, database: Database) -> None:
        self.http = http
        self.database = database

    def post(
        self, message: wire.Batch, values: "array[float] | None" = None, **headers: str
    ) -> Response:
        """Post a batch with its block of values."""
        body = wire.encode_batch(message, values or array("f"))
        return self.raw(body, wire.BATCH_TYPE, **headers)

    def raw(
        self, body: bytes, content_type: str, encoding: str | None = None, **more: str
    ) -> Response:
        """Post any bytes at all."""
        headers = {"content-type": content_type, **more}
        if encoding:
            headers["content-encoding"] = encoding
        answer: Response = self.http.post("/ingest", content=body, headers=headers)
        return answer


@contextmanager
def ingest_client(
    house: House, node: str | None = None, kind: str = "node"
) -> Iterator[IngestClient]:
    """A client of the running endpoint."""
    with TestClient(ingest_app(house, node, kind)) as http:
        yield IngestClient(http, house.database)


def query(database: Database, statement: str, **parameters: Any) -> list[tuple[Any, ...]]:
    """What the database holds, as plain tuples."""
    with database.session() as session:
        return [tuple(row) for row in session.execute(text(statement), parameters)]
