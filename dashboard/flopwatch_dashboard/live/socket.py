"""The doors of the live path: a websocket, and the same for browsers that can't open one.

A browser sends what it wishes to follow and gets frames as JSON. `{"number": n, "news": …}` holds
what is new of the page that it asked for in its n-th wish; `{"number": n, "gone": true}` says that
there is no such page, or that it may not be seen; `{"beat": true}` is a sign of life. A socket that
is closed with `SIGNED_OUT` is not worth another try: its session has ended.
"""

import asyncio
from dataclasses import replace
from typing import Annotated

import msgspec
from fastapi import FastAPI, Query, Request, WebSocket, WebSocketDisconnect
from starlette.responses import JSONResponse, Response

from flopwatch_dashboard.address import Address
from flopwatch_dashboard.live.hub import Hub, Timing
from flopwatch_dashboard.live.reading import Ask, Cursor, Reading
from flopwatch_dashboard.live.topic import Read
from flopwatch_dashboard.live.viewer import Viewer
from flopwatch_dashboard.router import Router
from flopwatch_dashboard.services import Visit
from flopwatch_server.database.engine import DATABASE_GONE
from flopwatch_server.house import NotFound

PATH = "/_live"
SIGNED_OUT = 4401
MOST_CHARACTERS = 4096
_BEAT = '{"beat":true}'
_POLICY_VIOLATION = 1008
_TOO_BIG = 1009


class Follow(msgspec.Struct, tag="follow", forbid_unknown_fields=True):
    """The wish to follow the page at an address, from `cursor` on; it ends the one before.

    `number` is the browser's own and comes back in every frame of this wish. `rows` are the rows
    of a list that are on the screen, as [first, end).
    """

    number: int
    path: str
    search: str = ""
    cursor: Cursor | None = None
    rows: tuple[int, int] | None = None


class Leave(msgspec.Struct, tag="leave", forbid_unknown_fields=True):
    """The wish to follow nothing."""


def connect_live(app: FastAPI, router: Router, hub: Hub) -> None:
    """Add the doors to `app`."""

    @app.websocket(PATH)
    async def socket(websocket: WebSocket) -> None:
        viewer = _viewer(websocket)
        if not hub.admits(viewer):
            await websocket.close(_POLICY_VIOLATION)  # before it is accepted: 403
            return
        await websocket.accept()
        hub.enter(viewer)
        talk = [
            asyncio.create_task(_listen(websocket, viewer, router, hub)),
            asyncio.create_task(_tell(websocket, viewer, hub.timing)),
        ]
        try:
            done, _ = await asyncio.wait(talk, return_when=asyncio.FIRST_COMPLETED)
        finally:
            hub.leave(viewer)
            for task in talk:
                task.cancel()
            await asyncio.gather(*talk, return_exceptions=True)
        for task in done:
            task.result()

    @app.get(PATH, include_in_schema=False)
    async def poll(
        request: Request, wish: Annotated[str, Query(max_length=MOST_CHARACTERS)]
    ) -> Response:
        try:
            wanted = msgspec.json.decode(wish, type=Follow)
        except msgspec.MsgspecError as error:
            return JSONResponse({"detail": str(error)}, 422)
        return await _once(_viewer(request), wanted, router, hub)


def _viewer(connection: Request | WebSocket) -> Viewer:
    """Who is connected, as the guard found out."""
    return Viewer(connection.state.principal, connection.state.session_id)


async def _listen(websocket: WebSocket, viewer: Viewer, router: Router, hub: Hub) -> None:
    """Take wishes until the browser leaves, or sends what is none."""
    while True:
        try:
            text = await websocket.receive_text()
            if len(text) > MOST_CHARACTERS:
                await websocket.close(_TOO_BIG)
                return
            wish = msgspec.json.decode(text, type=Follow | Leave)
        except WebSocketDisconnect:
            return
        except (KeyError, msgspec.MsgspecError):  # KeyError: it is not text
            await websocket.close(_POLICY_VIOLATION)
            return
        if isinstance(wish, Leave):
            hub.unfollow(viewer)
        else:
            _follow(viewer, wish, router, hub)


async def _tell(websocket: WebSocket, viewer: Viewer, timing: Timing) -> None:
    """Send what is new, or a sign of life, until the session ends or the browser takes nothing."""
    while True:
        try:
            frame = await asyncio.wait_for(viewer.next_frame(), timing.beat)
        except TimeoutError:
            frame = _BEAT
        if frame is None:
            await websocket.close(SIGNED_OUT)
            return
        try:
            await asyncio.wait_for(websocket.send_text(frame), timing.stuck)
        except (TimeoutError, WebSocketDisconnect):
            return


async def _once(viewer: Viewer, wish: Follow, router: Router, hub: Hub) -> Response:
    """One frame; what many ask for in the same tick is read once."""
    _follow(viewer, wish, router, hub)
    try:
        frame = await asyncio.wait_for(viewer.next_frame(), hub.timing.tick + hub.timing.deadline)
    except TimeoutError:
        return JSONResponse({"detail": DATABASE_GONE}, 503, {"retry-after": "5"})
    finally:
        hub.unfollow(viewer)
    return Response(frame, 404 if viewer.is_lost else 200, media_type="application/json")


def _follow(viewer: Viewer, wish: Follow, router: Router, hub: Hub) -> None:
    address = Address.parse(wish.path, wish.search)
    name = (address.path, tuple(sorted(address.query.items())), wish.rows)
    viewer.number = wish.number
    hub.follow(viewer, name, _reader(router, address, wish.rows), wish.cursor)


def _reader(router: Router, address: Address, rows: tuple[int, int] | None) -> Read:
    """Reads the page at an address, which is looked for again each time."""

    def read(visit: Visit, ask: Ask) -> Reading:
        page, place = router.find(visit, address)
        if page.live is None:
            raise NotFound(f"{address.path} does not change")
        return page.live(visit, place, replace(ask, rows=rows))

    return read
