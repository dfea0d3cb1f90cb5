"""Sends what is spooled: live before back-fill, at least once, and never in a hurry."""

import http.client
import logging
import threading
from collections.abc import Callable
from typing import Protocol

from flopwatch_agent.spool import Spool
from flopwatch_agent.transport import Answer

_log = logging.getLogger(__name__)

FIRST_DELAY_SECONDS = 1.0
MOST_DELAY_SECONDS = 30.0
MOST_WISH_SECONDS = 300.0
MOST_PHASE_SECONDS = 1.0
BACKFILL_PAUSE_SECONDS = 0.1
"""Between two batches of back-fill: a hundred times as fast as they were made."""

_REFUSED_FOR_GOOD = (413, 422)
_TOKEN_REFUSED = (401, 403)


class Poster(Protocol):
    """What the shipper needs of a connection."""

    def post(self, body: bytes) -> Answer:
        """Post a batch; raise OSError or HTTPException where no answer came."""


class Shipper:
    """Takes batches out of the spool one by one."""

    def __init__(self, spool: Spool, poster: Poster, uniform: Callable[[float, float], float]):
        """`uniform(a, b)` draws the jitter of delays."""
        self._spool = spool
        self._poster = poster
        self._uniform = uniform
        self._failures = 0
        # All agents make their batches at the same second: each sends its own a little later.
        self._phase_seconds = uniform(0.0, MOST_PHASE_SECONDS)
        self._last_live = ""
        self._complaint = ""
        self._news = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="shipper", daemon=True)

    def start(self) -> None:
        """Begin to send in a thread of its own."""
        self._thread.start()

    def notify(self) -> None:
        """There is a new batch."""
        self._news.set()

    def finish(self, seconds: float) -> None:
        """Send what can be sent at once, for so long at most; the rest stays in the spool."""
        self._stopping.set()
        self._news.set()
        self._thread.join(seconds)

    def step(self) -> float | None:
        """Send one batch; return how long to wait until the next, None if there is none."""
        name = self._choose()
        if name is None:
            return None
        body = self._spool.read(name)
        if body is None:
            return 0.0
        try:
            answer = self._poster.post(body)
        except (OSError, http.client.HTTPException) as error:
            return self._retry(f"nothing could be sent: {error or type(error).__name__}")
        return self._heed(name, answer)

    def _choose(self) -> str | None:
        """The newest batch if it is newer than any sent, else the oldest."""
        newest = self._spool.newest()
        if newest is not None and newest > self._last_live:
            return newest
        return self._spool.oldest()

    def _heed(self, name: str, answer: Answer) -> float:
        if 200 <= answer.status < 300:
            self._spool.done(name)
        elif answer.status in _REFUSED_FOR_GOOD:
            cause = f"refused by server: {answer.status} {answer.text[:200]}"
            _log.error("batch %s was %s", name, cause)
            self._spool.refuse(name, cause)
        elif answer.status in _TOKEN_REFUSED:
            return self._retry(f"the server refuses our token ({answer.status})",
                               MOST_DELAY_SECONDS)  # fmt: skip
        else:
            wish = min(answer.retry_after_seconds or 0.0, MOST_WISH_SECONDS)
            return self._retry(f"the server answers {answer.status}", wish)
        self._last_live = max(self._last_live, name)
        self._failures = 0
        self._say("")
        return BACKFILL_PAUSE_SECONDS

    def _retry(self, complaint: str, least_seconds: float = 0.0) -> float:
        """Exponential back-off with jitter, or longer if the server wants that."""
        self._say(f"{complaint}; batches wait in the spool")
        delay = min(MOST_DELAY_SECONDS, FIRST_DELAY_SECONDS * 2.0**self._failures)
        self._failures = min(self._failures + 1, 10)
        return max(least_seconds, delay * self._uniform(0.5, 1.0))

    def _run(self) -> None:
        while True:
            self._news.clear()
            delay = self.step()
            if self._stopping.is_set() and (delay is None or self._failures):
                return
            if delay is None:
                self._news.wait()
                self._stopping.wait(self._phase_seconds)
            else:
                self._stopping.wait(delay)

    def _say(self, complaint: str) -> None:
        """Log a state once, when it begins, and the way out of it."""
        if complaint != self._complaint:
            self._complaint = complaint
            _log.warning("%s", complaint or "the server takes batches")
