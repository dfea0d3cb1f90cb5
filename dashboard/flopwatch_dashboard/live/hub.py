"""The hub: it reads what is followed once a tick, and knows every open socket.

Each topic has a task of its own for as long as somebody follows it: nobody there, nothing is read.
The services are synchronous and read in threads of the hub's own, so that a database that hangs
takes no thread from pages and API. A reading that fails or is late costs its tick and no more: what
is on the screens gets older, and they say so.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Hashable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

from sqlalchemy.exc import SQLAlchemyError

from flopwatch_dashboard.live.reading import Ask, Cursor
from flopwatch_dashboard.live.topic import Edition, Read, Seat, Topic
from flopwatch_dashboard.live.viewer import Viewer
from flopwatch_dashboard.services import read_as
from flopwatch_server.access import sessions
from flopwatch_server.access.principal import Principal
from flopwatch_server.access.visibility import same_sight
from flopwatch_server.house import House, NotFound

MOST_SOCKETS = 2000
MOST_SOCKETS_OF_A_SESSION = 20
_THREADS = 4
_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Timing:
    """Periods in seconds: of reading, of asking whether sessions still hold, and of a sign of life.

    `deadline` is how long a reading is waited for, `stuck` how long a browser that takes nothing.
    """

    tick: float = 5.0
    check: float = 5.0
    beat: float = 15.0
    deadline: float = 10.0
    stuck: float = 60.0


class Hub:
    """All topics and all viewers of one server process."""

    def __init__(self, house: House, timing: Timing) -> None:
        self.timing = timing
        self._house = house
        self._viewers: set[Viewer] = set()
        self._topics: dict[Hashable, tuple[Topic, asyncio.Task[None]]] = {}

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """The hub at work for as long as the block lasts."""
        self._threads = ThreadPoolExecutor(_THREADS, "live")
        check = asyncio.create_task(self._check_sessions())
        try:
            yield
        finally:
            tasks = [check, *(task for _, task in self._topics.values())]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._threads.shutdown(wait=False, cancel_futures=True)

    def admits(self, viewer: Viewer) -> bool:
        """Whether there is room for one more, here and in its session."""
        same = sum(1 for other in self._viewers if other.session_id == viewer.session_id)
        of_session = same if viewer.session_id is not None else 0
        return len(self._viewers) < MOST_SOCKETS and of_session < MOST_SOCKETS_OF_A_SESSION

    def enter(self, viewer: Viewer) -> None:
        """Count a viewer among those whose sessions are asked for again and again."""
        self._viewers.add(viewer)

    def leave(self, viewer: Viewer) -> None:
        """Forget a viewer and what it follows."""
        self.unfollow(viewer)
        self._viewers.discard(viewer)

    def follow(self, viewer: Viewer, name: Hashable, read: Read, cursor: Cursor | None) -> None:
        """Let a viewer follow the topic `name`, read by `read`, in place of what it follows now."""
        self.unfollow(viewer)
        principal = same_sight(viewer.principal)
        key = (name, principal)
        if key not in self._topics:
            topic = Topic(read)
            self._topics[key] = topic, asyncio.create_task(self._tend(key, topic, principal))
        topic, _ = self._topics[key]
        viewer.seat = Seat(topic, viewer.news, cursor)
        topic.seats.add(viewer.seat)
        viewer.news.set()

    def unfollow(self, viewer: Viewer) -> None:
        """Let a viewer follow nothing."""
        if viewer.seat is not None:
            viewer.seat.topic.seats.discard(viewer.seat)
            viewer.seat = None

    async def _tend(self, key: Hashable, topic: Topic, principal: Principal) -> None:
        """Read a topic now and at every tick, until nobody follows it."""
        topic.wanted.set()
        try:
            while topic.seats:
                if not topic.rests:
                    topic.wanted.clear()
                    await self._refresh(topic, principal)
                if topic.gone:
                    break
                with suppress(TimeoutError):
                    await asyncio.wait_for(topic.wanted.wait(), self.timing.tick)
        finally:
            del self._topics[key]

    async def _refresh(self, topic: Topic, principal: Principal) -> None:
        if topic.pending is not None and not topic.pending.done():
            return  # a thread still waits for the database; another would wait as long
        topic.pending = self._threads.submit(
            self._read, topic.read, topic.ask(), topic.edition, principal
        )
        try:
            topic.edition = await asyncio.wait_for(
                asyncio.wrap_future(topic.pending), self.timing.deadline
            )
        except NotFound:
            topic.gone = True
            topic.tell()
        except (SQLAlchemyError, TimeoutError) as error:
            _logger.warning("live figures were not read: %r", error)
        except Exception:
            # Whatever a page's code got wrong, the other topics and the next tick are not at fault.
            _logger.exception("live figures were not read")
        else:
            topic.tell()

    def _read(self, read: Read, ask: Ask, before: Edition | None, principal: Principal) -> Edition:
        """In a thread: the next edition of a topic."""
        return Edition.after(before, read_as(self._house, principal, read, ask))

    async def _check_sessions(self) -> None:
        """Again and again: end the viewers whose session has ended or means somebody else."""
        while True:
            await asyncio.sleep(self.timing.check)
            viewers = [viewer for viewer in self._viewers if viewer.session_id is not None]
            if not viewers:
                continue
            ids = {viewer.session_id for viewer in viewers if viewer.session_id is not None}
            try:
                found = await asyncio.to_thread(self._principals, ids)
            except Exception:
                # Whatever failed this time, the next check must come.
                _logger.exception("sessions could not be checked")
                continue
            for viewer in viewers:
                if found.get(str(viewer.session_id)) != viewer.principal:
                    viewer.end()

    def _principals(self, ids: set[str]) -> dict[str, Principal]:
        with self._house.database.session() as session:
            return sessions.principals_of(session, ids, self._house.clock())
