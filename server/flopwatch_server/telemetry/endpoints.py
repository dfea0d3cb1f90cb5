"""Where agents post their batches."""

import asyncio
import re
from datetime import datetime

import msgspec
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from flopwatch import wire
from flopwatch_server.access.tokens import MachineIdentity
from flopwatch_server.house import House, require_kind
from flopwatch_server.telemetry import ingest
from flopwatch_server.telemetry.clocks import MAX_TIME
from flopwatch_server.telemetry.header import InvalidBatch
from flopwatch_server.telemetry.ingest import BodyTooLarge, BrokenBody, ValidatedBatch
from flopwatch_server.telemetry.store import Outcome
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
            outcome, now = await _keep(scope, receive)
        except _REFUSALS as error:
            await _refusal(error)(scope, receive, send)
            return
        answer = {
            "accepted": outcome.accepted,
            "duplicates": outcome.duplicates,
            "refused": outcome.refused,
            "server_time": now.timestamp(),
        }
        body = msgspec.json.encode(answer)
        length = b"%d" % len(body)
        headers = [(b"content-type", b"application/json"), (b"content-length", length)]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})


async def _keep(scope: Scope, receive: Receive) -> tuple[Outcome, datetime]:
    """What became of the batch in the body, and the time after it did."""
    if scope["method"] != "POST":
        raise HTTPException(405, "batches are posted", {"allow": "POST"})
    machine: MachineIdentity = scope["state"]["machine"]
    require_kind(machine, "node")
    house: House = scope["app"].state.house
    writer: IngestWriter = scope["app"].state.writer
    headers = Headers(scope=scope)
    content_type, encoding = _form(headers)
    sent_at = _sent_at(headers)
    body = await _body(receive)
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
    return outcome, house.clock()


async def _body(receive: Receive) -> bytes:
    """The whole body, which the guard bounds."""
    pieces = []
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        pieces.append(message.get("body", b""))
        more = message.get("more_body", False)
    return b"".join(pieces)


def _form(headers: Headers) -> tuple[str, str]:
    """Content type and encoding of the body; 415 for what is not offered."""
    content_type = headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type not in (wire.BATCH_TYPE, "application/json"):
        raise HTTPException(415, f"send {wire.BATCH_TYPE} or application/json")
    encoding = headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("gzip", "identity"):
        raise HTTPException(415, "the only Content-Encoding is gzip")
    return content_type, encoding


def _sent_at(headers: Headers) -> float | None:
    """The sender's clock when it sent, if it says so; 400 for what is no time."""
    text = headers.get(wire.SENT_AT_HEADER)
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
