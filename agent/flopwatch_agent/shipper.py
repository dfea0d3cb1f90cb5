"""Sends what is spooled: live before back-fill, at least once, and never in a hurry."""

import http.client
import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from flopwatch_agent.backfill import MOST_JOINED, joined
from flopwatch_agent.segment import Record
from flopwatch_agent.spool import Spool
from flopwatch_agent.transport import Answer

_log = logging.getLogger(__name__)

FIRST_DELAY_SECONDS = 1.0
MOST_DELAY_SECONDS = 30.0
MOST_WISH_SECONDS = 300.0
MOST_PHASE_SECONDS = 1.0
MOST_AGE_SECONDS = 47 * 3600.0
"""The server takes no sample that is older than 48 hours."""

BACKFILL_PAUSE_SECONDS = 1.0
BACKFILL_SHARE = 0.05
"""Between two posts of back-fill an agent pauses for a second, or for as long as makes this the
share of time in which it has the server work. A server that answers late because thousands of
agents come back at once is so left alone the more, the later it answers."""

_REFUSED_FOR_GOOD = (413, 422)
_TOKEN_REFUSED = (401, 403)


class Poster(Protocol):
    """What the shipper needs of a connection."""

    def post(self, body: bytes) -> Answer:
        """Post a batch; raise OSError or HTTPException where no answer came."""


class Shipper:
    """Takes batches out of the spool: new ones one by one, old ones several at once."""

    def __init__(
        self, spool: Spool, poster: Poster, uniform: Callable[[float, float], float],
        elapsed: Callable[[], float] = time.monotonic,
        most_age_seconds: float = MOST_AGE_SECONDS,
    ) -> None:  # fmt: skip
        """`uniform(a, b)` draws the jitter of delays; `elapsed` is a clock that never jumps."""
        self._spool = spool
        self._poster = poster
        self._uniform = uniform
        self._elapsed = elapsed
        self._most_age_seconds = most_age_seconds
        self._failures = 0
        # All agents make their batches at the same second: each sends its own a little later.
        self._phase_seconds = uniform(0.0, MOST_PHASE_SECONDS)
        self._last_live = 0
        self._backfill_at = elapsed()
        self._alone_until = 0
        self._taken_since = 0.0
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
        """Make one post; return how long to wait until the next, None if there is none.

        A new batch need not wait so long, unless the last post failed.
        """
        newest = self._spool.newest()
        if newest is None:
            return None
        if newest.sequence > self._last_live:
            return self._send([newest])
        pause = self._backfill_at - self._elapsed()
        if pause > 0 and not self._stopping.is_set():
            return pause
        started = self._elapsed()
        delay = self._send(self._backfill())
        pause = max(BACKFILL_PAUSE_SECONDS, (self._elapsed() - started) / BACKFILL_SHARE)
        self._backfill_at = self._elapsed() + pause * self._uniform(0.5, 1.5)
        return delay

    def _backfill(self) -> list[Record]:
        """The oldest batches that the server would still take, as many as one post may hold."""
        while True:
            oldest = self._spool.oldest(MOST_JOINED)
            # Judged by the server's clock: ours may be what is wrong.
            too_old = [each for each in oldest if 0 < each.end < self._taken_since]
            if not too_old:
                break
            self._spool.lose(too_old, "older than the server takes")
        alone = oldest and oldest[0].sequence <= self._alone_until
        return oldest[:1] if alone else oldest

    def _send(self, records: Sequence[Record]) -> float:
        try:
            bodies = {record: body for record in records if (body := self._spool.read(record))}
            if not bodies:
                return 0.0
            count, whole = joined(list(bodies.values()))
            sent = list(bodies)[:count]
            answer = self._poster.post(whole)
        except (OSError, http.client.HTTPException) as error:
            return self._retry(f"nothing could be sent: {error or type(error).__name__}")
        return self._heed(sent, answer)

    def _heed(self, sent: Sequence[Record], answer: Answer) -> float:
        if 200 <= answer.status < 300:
            self._spool.done(sent)
            if answer.answered_at is not None:
                self._taken_since = answer.answered_at - self._most_age_seconds
        elif answer.status in _REFUSED_FOR_GOOD and len(sent) > 1:
            self._alone_until = sent[-1].sequence  # so that the one at fault goes alone
        elif answer.status in _REFUSED_FOR_GOOD:
            cause = f"refused by server: {answer.status} {answer.text[:200]}"
            _log.error("batch %d was %s", sent[0].sequence, cause)
            self._spool.refuse(sent[0], cause)
        elif answer.status in _TOKEN_REFUSED:
            return self._retry(f"the server refuses our token ({answer.status})",
                               MOST_DELAY_SECONDS)  # fmt: skip
        else:
            wish = min(answer.retry_after_seconds or 0.0, MOST_WISH_SECONDS)
            return self._retry(f"the server answers {answer.status}", wish)
        self._last_live = max(self._last_live, sent[-1].sequence)
        self._failures = 0
        self._say("")
        return 0.0

    def _retry(self, complaint: str, least_seconds: float = 0.0) -> float:
        """What the server wishes, and exponential back-off with jitter on top."""
        self._say(f"{complaint}; batches wait in the spool")
        delay = min(MOST_DELAY_SECONDS, FIRST_DELAY_SECONDS * 2.0**self._failures)
        self._failures = min(self._failures + 1, 10)
        return least_seconds + delay * self._uniform(0.5, 1.0)

    def _run(self) -> None:
        while True:
            self._news.clear()
            delay = self._guarded_step()
            if self._stopping.is_set() and (delay is None or self._failures):
                return
            if self._failures:
                self._stopping.wait(delay)
            elif self._news.wait(delay):
                self._stopping.wait(self._phase_seconds)

    def _guarded_step(self) -> float | None:
        try:
            return self.step()
        # Logged with its traceback: a defect must not keep all that comes after from the server.
        except Exception as error:  # noqa: BLE001
            _log.error("sending is broken", exc_info=error)
            return self._retry(f"nothing could be sent: {error!r}")

    def _say(self, complaint: str) -> None:
        """Log a state once, when it begins, and the way out of it."""
        if complaint != self._complaint:
            self._complaint = complaint
            _log.warning("%s", complaint or "the server takes batches")
