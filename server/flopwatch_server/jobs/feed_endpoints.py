"""POST /feed: a scheduler that Flopwatch can't ask tells its runs, nodes and shares itself."""

from dataclasses import asdict
from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Depends, HTTPException, Request
from pydantic import BaseModel
from sqlalchemy.orm import Session
from starlette.responses import JSONResponse, Response

from flopwatch_server.house import HouseDep, MachineDep, require_kind
from flopwatch_server.jobs.service import apply_records
from flopwatch_server.people import service as people
from flopwatch_server.scheduler.feed import FeedError, FeedSnapshot, parse
from flopwatch_server.scheduler.repository import sources
from flopwatch_server.scheduler.repository.reservations import apply_reservations

FEED_TYPE = "application/x-ndjson"
SOURCE = "feed"


class FeedAnswer(BaseModel):
    """How much of a body was taken: all of it, or there is another answer."""

    runs: int
    nodes: int
    shares: int


class FeedProblem(BaseModel):
    """One field of one line that can't be taken."""

    line: int
    field: str
    problem: str


class FeedRefusal(BaseModel):
    """Why nothing of a body was taken."""

    detail: list[FeedProblem]


router = APIRouter(tags=["scheduler feed"])


async def _json_lines(request: Request) -> bytes:
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != FEED_TYPE:
        raise HTTPException(415, f"the body must be JSON lines, sent as {FEED_TYPE}")
    return await request.body()


@router.post(
    "/feed",
    response_model=FeedAnswer,
    responses={422: {"model": FeedRefusal, "description": "Nothing of the body was taken."}},
    openapi_extra={
        "requestBody": {"required": True, "content": {FEED_TYPE: {"schema": {"type": "string"}}}}
    },
)
def post_feed(
    house: HouseDep, machine: MachineDep, body: Annotated[bytes, Depends(_json_lines)]
) -> FeedAnswer | Response:
    """Bring runs, nodes and shares up to what the body says: all of it or, with 422, nothing."""
    require_kind(machine, "feed")
    now = house.clock()
    try:
        snapshot = parse(body, now)
    except FeedError as error:
        with house.database.session() as session:
            sources.failed(session, machine.cluster_id, SOURCE, str(error), now)
        return JSONResponse({"detail": [asdict(problem) for problem in error.problems]}, 422)
    with house.database.session() as session:  # durable before the sender gets its answer
        apply_snapshot(session, machine.cluster_id, snapshot, now)
    return FeedAnswer(
        runs=len(snapshot.jobs), nodes=len(snapshot.nodes), shares=len(snapshot.shares)
    )


def apply_snapshot(
    session: Session, cluster_id: int, snapshot: FeedSnapshot, now: datetime
) -> None:
    """Bring a cluster up to what a body tells."""
    apply_records(
        session,
        cluster_id,
        snapshot.jobs,
        snapshot.nodes,
        now,
        complete=snapshot.complete,
        source=SOURCE,
    )
    if snapshot.complete:
        apply_reservations(session, cluster_id, snapshot.reservations, now)
    if snapshot.complete or snapshot.jobs or snapshot.nodes:  # shares alone tell no holdings
        sources.succeeded(session, cluster_id, SOURCE, now)
    else:
        sources.mended(session, cluster_id, SOURCE)
    if snapshot.shares:
        people.apply_fed_shares(
            session, cluster_id, snapshot.shares, now, complete=snapshot.complete
        )
        sources.succeeded(session, cluster_id, people.FED_SHARES, now)
