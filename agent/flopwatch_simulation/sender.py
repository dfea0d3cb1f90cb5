"""What is sent when: the newest interval first, then what is still missing of the history."""

import sys
import time
from collections.abc import Callable

from flopwatch_simulation.cluster import Cluster
from flopwatch_simulation.doors import Doors, Unreachable
from flopwatch_simulation.physics import INTERVAL_SECONDS

FEED_PERIOD_SECONDS = 30
RETRY_SECONDS = 1.0
PATIENCE_SECONDS = 10.0
MAX_WINDOW_SECONDS = 1800
_LIVE_SECONDS = 60
_HISTORY_REPORT_PERIOD = 60


class Sender:
    """Keeps a server up to date about a cluster, and makes up for the time it was away."""

    def __init__(
        self,
        cluster: Cluster,
        doors: Doors,
        history_seconds: int,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._cluster = cluster
        self._doors = doors
        self._history_seconds = history_seconds
        self._clock = clock
        self._sleep = sleep
        self._told_until = _interval_end(clock()) - INTERVAL_SECONDS
        self._waiting = _windows(self._told_until - history_seconds, self._told_until)
        self._fed_at: float | None = None
        self._failing_since: float | None = None
        self._complained = False

    def run(self) -> None:
        """Send for ever, every interval as it ends."""
        while True:
            self.turn()
            now = self._clock()
            boundary = _interval_end(now) + INTERVAL_SECONDS
            self._sleep(RETRY_SECONDS if self._waiting else boundary - now)

    def turn(self) -> None:
        """Send what is due, newest first, until all is sent, a new interval ends or the server
        does not answer."""
        self._add_new_interval()
        try:
            while self._waiting:
                self._send_window(*self._waiting[-1])
                self._waiting.pop()
                self._feed_if_due()
                if _interval_end(self._clock()) > self._told_until:
                    break
        except Unreachable as problem:
            self._note_failure(problem)
        else:
            self._note_success()
        finally:
            self._doors.close()

    def _add_new_interval(self) -> None:
        """Put the time since the last turn on top; after an outage it grows into a window."""
        end = _interval_end(self._clock())
        if end <= self._told_until:
            return
        start, self._told_until = self._told_until, end
        if self._waiting and self._failing_since is not None:
            before, until = self._waiting[-1]
            if until == start and end - before <= MAX_WINDOW_SECONDS:
                self._waiting[-1] = (before, end)
                return
        self._waiting += _windows(start, end)

    def _send_window(self, start: int, end: int) -> None:
        """Send (start, end] of all nodes; what was sent before a failure counts once."""
        times = range(start + INTERVAL_SECONDS, end + 1, INTERVAL_SECONDS)
        live = end - start <= _LIVE_SECONDS
        for node in range(self._cluster.nodes):
            batch, values = self._cluster.batch(
                node, times, INTERVAL_SECONDS if live else _HISTORY_REPORT_PERIOD
            )
            self._doors.send_batch(batch, values)

    def _feed_if_due(self) -> None:
        now = self._clock()
        if self._fed_at is None:
            ended_since = now - self._history_seconds
        elif now - self._fed_at >= FEED_PERIOD_SECONDS:
            ended_since = self._fed_at
        else:
            return
        self._doors.send_feed(self._cluster.feed_lines(now, ended_since))
        self._fed_at = now

    def _note_failure(self, problem: Unreachable) -> None:
        """Complain once, and only if it lasts: a server that is just starting is no trouble."""
        now = self._clock()
        if self._failing_since is None:
            self._failing_since = now
        elif not self._complained and now - self._failing_since >= PATIENCE_SECONDS:
            print(f"the server does not answer, trying on: {problem}", file=sys.stderr, flush=True)
            self._complained = True

    def _note_success(self) -> None:
        if self._complained:
            print("the server answers again", file=sys.stderr, flush=True)
        self._failing_since, self._complained = None, False


def _interval_end(now: float) -> int:
    return int(now) // INTERVAL_SECONDS * INTERVAL_SECONDS


def _windows(start: int, end: int) -> list[tuple[int, int]]:
    """(start, end] in windows of at most half an hour, oldest first, the last ones whole."""
    ends = range(end, start, -MAX_WINDOW_SECONDS)
    return [(max(start, until - MAX_WINDOW_SECONDS), until) for until in reversed(ends)]
