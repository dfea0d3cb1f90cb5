"""Where agents post their batches."""

import asyncio
import re

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from flopwatch import wire
from flopwatch_server.access.tokens import MachineIdentity
from flopwatch_server.house import get_house, get_machine, require_kind
from flopwatch_server.telemetry import ingest
from flopwatch_server.telemetry.clocks import MAX_TIME
from flopwatch_server.telemetry.header import InvalidBatch
from flopwatch_server.telemetry.ingest import BodyTooLarge, BrokenBody, ValidatedBatch
from flopwatch_server.telemetry.writer import IngestWriter, NotStorable, Unavailable

_RETRY_AFTER_SECONDS = 5
_SMALL_BODY_BYTES = 4 * 1024
_SECONDS = re.compile(r"\d{1,12}(\.\d{1,9})?", re.ASCII)


class _ForeignNode(Exception):
    """A token of one node posts for another: 403."""


_REFUSALS = (
    BodyTooLarge,
    BrokenBody,
    ClientDisconnect,
    HTTPException,
    InvalidBatch,
    NotStorable,
    Unavailable,
    _ForeignNode,
)


class Ingest:
    """ASGI middleware just inside the guard; a POST to `path` brings a batch of an agent.

    The answer comes once the batch is durable: 200 {"accepted", "duplicates", "refused",
    "server_time"}; 4xx where the post is at fault and would be again; 503 where it should be sent
    again later. No route, since the way to one, made for pages, costs as much as reading a batch.
    """

    def __init__(self, app: ASGIApp, path: str) -> None:
        self._app = app
        self._path = path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a post; the guard has checked its token and bounds its body."""
        if scope["type"] != "http" or scope["path"] != self._path:
            await self._app(scope, receive, send)
            return
        try:
            answer = await _keep(Request(scope, receive))
        except _REFUSALS as error:
            answer = _refusal(error)
        await answer(scope, receive, send)


async def _keep(request: Request) -> Response:
    if request.method != "POST":
        raise HTTPException(405, "batches are posted", {"allow": "POST"})
    machine = await get_machine(request)
    require_kind(machine, "node")
    house = await get_house(request)
    writer: IngestWriter = request.app.state.writer
    content_type, encoding = _form(request)
    sent_at = _sent_at(request)
    body = await request.body()
    received_at = house.clock()

    def read() -> tuple[ValidatedBatch, int]:
        unpacked = ingest.unpack(body, encoding)
        batch, values = ingest.decode(unpacked, content_type)
        _admit(machine, batch)
        valid = ingest.validate(batch, values, machine.cluster_id, received_at, sent_at)
        return valid, len(unpacked)

    # A thread of its own costs more than reading a small body.
    small = len(body) < _SMALL_BODY_BYTES
    outcome = await writer.submit(*(read() if small else await asyncio.to_thread(read)))
    return Response(
        msgspec.json.encode(
            {
                "accepted": outcome.accepted,
                "duplicates": outcome.duplicates,
                "refused": outcome.refused,
                "server_time": house.clock().timestamp(),
            }
        ),
        media_type="application/json",
    )


def _form(request: Request) -> tuple[str, str]:
    """Content type and encoding of the body; 415 for what is not offered."""
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type not in (wire.BATCH_TYPE, "application/json"):
        raise HTTPException(415, f"send {wire.BATCH_TYPE} or application/json")
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("gzip", "identity"):
        raise HTTPException(415, "the only Content-Encoding is gzip")
    return content_type, encoding


def _sent_at(request: Request) -> float | None:
    """The sender's clock when it sent, if it says so; 400 for what is no time."""
    text = request.headers.get(wire.SENT_AT_HEADER)
    if text is None:
        return None
    if not _SECONDS.fullmatch(text) or float(text) > MAX_TIME:
        raise HTTPException(400, f"{wire.SENT_AT_HEADER} is not seconds since 1970: {text[:40]}")
    return float(text)


def _admit(machine: MachineIdentity, batch: wire.Batch) -> None:
    """Let a token of one node speak for that node alone, under no other name."""
    if machine.node is None:
        return
    if batch.node != machine.node:
        raise _ForeignNode(f"this token is for node {machine.node} only")
    batch.aliases = []


def _refusal(error: Exception) -> Response:
    match error:
        case BodyTooLarge():
            return JSONResponse({"detail": str(error)}, 413)
        case _ForeignNode():
            return JSONResponse({"detail": str(error)}, 403)
        case InvalidBatch(field=field, problem=problem):
            return JSONResponse({"detail": [{"field": field, "problem": problem}]}, 422)
        case HTTPException(status_code=status, detail=detail, headers=headers):
            return JSONResponse({"detail": detail}, status, headers)
        case NotStorable():
            return JSONResponse({"detail": [{"field": "$", "problem": str(error)}]}, 422)
        case Unavailable():
            retry = {"retry-after": str(_RETRY_AFTER_SECONDS)}
            return JSONResponse({"detail": f"{error}: send the batch again"}, 503, retry)
        case _:
            return JSONResponse({"detail": str(error)}, 400)
