"""Beat that sends only while it holds a lock in Redis: of two, one works and one stands by."""

import logging
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from celery.beat import Scheduler
from redis import Redis
from redis.exceptions import LockError, RedisError

log = logging.getLogger(__name__)

LOCK_SECONDS = 15
"""How long after a beat was killed the next one takes over."""

MAX_WAITING = 100
"""So many messages wait only where no worker runs. They expire, but Redis would keep them all."""

_TRY_AGAIN_SECONDS = 5


class SoleScheduler(Scheduler):  # type: ignore[misc]  # Celery has no types
    """Celery's timetable in memory, without its file: every task is due when a beat takes over."""

    max_interval = _TRY_AGAIN_SECONDS

    def __init__(self, *arguments: Any, **more: Any) -> None:
        """Take what beat gives to any scheduler."""
        super().__init__(*arguments, **more)
        self._redis = Redis.from_url(self.app.conf.broker_url, socket_timeout=_TRY_AGAIN_SECONDS)
        self._lock = self._redis.lock("flopwatch beat", timeout=LOCK_SECONDS, thread_local=False)
        self._state = ""

    def tick(self) -> float:
        """Send what is due, if there is use in it; return the seconds until the next tick."""
        with uninterrupted():
            try:
                hindrance = self._hindrance()
            except RedisError as error:
                hindrance = f"Redis does not answer: {error}"
            self._tell(hindrance or "sending the tasks")
            if hindrance:
                return _TRY_AGAIN_SECONDS
            delay: float = super().tick()
            return delay

    def close(self) -> None:
        """Let another beat take over at once."""
        super().close()
        try:
            if self._lock.owned():
                self._lock.release()
        except RedisError as error:
            log.warning("the lock of beat runs out by itself: %s", error)

    def _hindrance(self) -> str | None:
        """Why nothing is to be sent now; takes or prolongs the lock."""
        if not self._prolonged() and not self._lock.acquire(blocking=False):
            return "another beat sends the tasks; standing by"
        if self._redis.llen(self.app.conf.task_default_queue) >= MAX_WAITING:
            return f"{MAX_WAITING} turns wait: is there no 'flopwatch worker'?"
        return None

    def _prolonged(self) -> bool:
        try:
            return bool(self._lock.reacquire())
        except LockError:  # it is not ours, or ran out while this beat was held up
            return False

    def _tell(self, state: str) -> None:
        """Log what has changed."""
        if state != self._state:
            log.warning("%s", state)
            self._state = state


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Let the signals that end this process wait for the end of the block.

    Celery turns them into an exception wherever the process is just then. In the middle of talking
    to Redis another one can take its place, Celery takes that for a task that could not be sent,
    and goes on.
    """
    came: list[int] = []
    ending = (signal.SIGTERM, signal.SIGINT)
    handlers = {each: signal.signal(each, lambda number, _: came.append(number)) for each in ending}
    try:
        yield
    finally:
        for each, handler in handlers.items():
            signal.signal(each, handler)
        for number in came:
            signal.raise_signal(number)
