"""Where agents post their batches."""

import asyncio
from typing import cast

from fastapi import APIRouter, Request, Response
from starlette.responses import JSONResponse

from flopwatch import wire
from flopwatch_server.access.tokens import MachineIdentity
from flopwatch_server.house import HouseDep, MachineDep, require_kind
from flopwatch_server.telemetry import ingest
from flopwatch_server.telemetry.header import InvalidBatch
from flopwatch_server.telemetry.ingest import ValidatedBatch
from flopwatch_server.telemetry.writer import IngestWriter, NotStorable, Unavailable

router = APIRouter()
_RETRY_AFTER_SECONDS = 5


class _ForeignNode(Exception):
    """A token of one node posts for another: 403."""


@router.post("/ingest")
async def post_batch(request: Request, house: HouseDep, machine: MachineDep) -> Response:
    """Take a batch of an agent; the answer comes once it is durable.

    200 {"accepted", "duplicates", "refused", "server_time"}; 4xx where the post is at fault and
    would be again; 503 where it should be sent again later.
    """
    require_kind(machine, "node")
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type not in (wire.BATCH_TYPE, "application/json"):
        return _answer(415, f"send {wire.BATCH_TYPE} or application/json")
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("gzip", "identity"):
        return _answer(415, "the only Content-Encoding is gzip")
    body = await request.body()
    received_at = house.clock()
    writer = cast(IngestWriter, request.app.state.writer)

    def read() -> ValidatedBatch:
        batch, values = ingest.decode(ingest.unpack(body, encoding), content_type)
        _admit(machine, batch)
        return ingest.validate(batch, values, machine.cluster_id, received_at)

    try:
        outcome = await writer.submit(await asyncio.to_thread(read))
    except ingest.BodyTooLarge as error:
        return _answer(413, str(error))
    except ingest.BrokenBody as error:
        return _answer(400, str(error))
    except InvalidBatch as error:
        return _invalid(error.field, error.problem)
    except NotStorable as error:
        return _invalid("$", str(error))
    except _ForeignNode as error:
        return _answer(403, str(error))
    except Unavailable as error:
        retry = {"retry-after": str(_RETRY_AFTER_SECONDS)}
        return JSONResponse({"detail": f"{error}: send the batch again"}, 503, retry)
    return JSONResponse(
        {
            "accepted": outcome.accepted,
            "duplicates": outcome.duplicates,
            "refused": outcome.refused,
            "server_time": house.clock().timestamp(),
        }
    )


def _admit(machine: MachineIdentity, batch: wire.Batch) -> None:
    """Let a token of one node speak for that node alone, under no other name."""
    if machine.node is None:
        return
    if batch.node != machine.node:
        raise _ForeignNode(f"this token is for node {machine.node} only")
    batch.aliases = []


def _answer(status: int, detail: str) -> Response:
    return JSONResponse({"detail": detail}, status)


def _invalid(field: str, problem: str) -> Response:
    return JSONResponse({"detail": [{"field": field, "problem": problem}]}, 422)
