"""One browser at the live path, and the frames that it gets."""

import asyncio

from flopwatch_dashboard.live.topic import Seat
from flopwatch_server.access.principal import Principal


class Viewer:
    """A browser that is connected. It follows one page at a time, or none.

    `number` is that of its newest wish, and stands in every frame. `is_lost` says that there was
    no such page, `has_ended` that its session has ended: it gets nothing any more.
    """

    def __init__(self, principal: Principal, session_id: str | None) -> None:
        self.principal = principal
        self.session_id = session_id
        self.news = asyncio.Event()
        self.number = 0
        self.seat: Seat | None = None
        self.is_lost = False
        self.has_ended = False

    def end(self) -> None:
        """Its session has ended."""
        self.has_ended = True
        self.news.set()

    async def next_frame(self) -> str | None:
        """The next frame, once there is something to tell; None if its session has ended."""
        while not self.has_ended:
            await self.news.wait()
            self.news.clear()
            frame = self._take()
            if frame is not None and not self.has_ended:
                return frame
        return None

    def _take(self) -> str | None:
        if self.seat is None:
            return None
        if self.seat.topic.gone:
            self.seat = None
            self.is_lost = True
            return f'{{"number":{self.number},"gone":true}}'
        news = self.seat.take()
        return None if news is None else f'{{"number":{self.number},"news":{news}}}'
