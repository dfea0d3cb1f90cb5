"""What is sent when: the newest interval first, then what is still missing of the history.

A `Sender` plays the agents of some nodes over one connection, a `Feeder` the scheduler. Both are
driven by `step`, which does one thing and says how long to wait before the next.
"""

import sys
import threading
import time
from collections.abc import Callable, Sequence
from heapq import heapreplace

from flopwatch_simulation.cluster import Cluster
from flopwatch_simulation.doors import Doors, Unreachable
from flopwatch_simulation.feed import bodies
from flopwatch_simulation.physics import INTERVAL_SECONDS

FEED_PERIOD_SECONDS = 30
RETRY_SECONDS = 1.0
PATIENCE_SECONDS = 10.0
MAX_WINDOW_SECONDS = 1800
LEAST_SPREAD_SECONDS = 1.0
MOST_SPREAD_SECONDS = 9.0
MOST_POSTS_PER_SECOND = 1000
_HANG_UP_SECONDS = 3.0
"""A server may close a connection on which nothing comes for longer."""

Clock = Callable[[], float]


def phase_seconds(node: int, nodes: int) -> float:
    """How long after an interval's end a node posts it.

    Real agents spread their posts over a second. Many nodes take longer here, up to most of the
    interval, so that no more than about a thousand posts a second come out.
    """
    spread = nodes / MOST_POSTS_PER_SECOND
    return node / nodes * min(max(spread, LEAST_SPREAD_SECONDS), MOST_SPREAD_SECONDS)


class Patience:
    """Complains once, and only if a failure lasts: a server that is just starting is no trouble.

    All senders of a process share one.
    """

    def __init__(self, clock: Clock = time.time) -> None:
        self._clock = clock
        self._failing_since: float | None = None
        self._complained = False
        self._lock = threading.Lock()

    def failed(self, problem: Unreachable) -> None:
        """A post failed."""
        with self._lock:
            now = self._clock()
            if self._failing_since is None:
                self._failing_since = now
            elif not self._complained and now - self._failing_since >= PATIENCE_SECONDS:
                print(f"the server does not answer, trying on: {problem}", file=sys.stderr)
                self._complained = True

    def succeeded(self) -> None:
        """A post was taken."""
        with self._lock:
            if self._complained:
                print("the server answers again", file=sys.stderr)
            self._failing_since, self._complained = None, False


class Sender:
    """Keeps a server up to date about some nodes, and makes up for the time it was away."""

    def __init__(
        self,
        cluster: Cluster,
        nodes: Sequence[int],
        doors: Doors,
        history_seconds: int,
        patience: Patience,
        clock: Clock = time.time,
    ) -> None:
        self._cluster = cluster
        self._doors = doors
        self._patience = patience
        self._clock = clock
        began = _interval_end(clock()) - INTERVAL_SECONDS
        self._told_until = dict.fromkeys(nodes, began)
        # (when it is due, node): at the start all are, whatever their phase.
        self._turns: list[tuple[float, int]] = [(0.0, node) for node in sorted(nodes)]
        windows = _windows(began - history_seconds, began)
        self._history = [(node, window) for window in windows for node in sorted(nodes)[::-1]]
        self._unknown = set(nodes)

    @property
    def has_introduced_all(self) -> bool:
        """Whether every node has told its first interval."""
        return not self._unknown

    def step(self) -> float:
        """Send one batch, the newest that is due, and return how many seconds to wait then."""
        due_at, node = self._turns[0]
        wait = due_at - self._clock()
        try:
            if wait <= 0:
                self._send_newest(node)
            elif self._history:
                self._send(*self._history[-1])
                self._history.pop()
            else:
                if wait > _HANG_UP_SECONDS:
                    self._doors.close()
                return wait
        except Unreachable as problem:
            self._patience.failed(problem)
            return RETRY_SECONDS
        self._patience.succeeded()
        return 0.0

    def _send_newest(self, node: int) -> None:
        """Send what a node has not told yet: after an outage half an hour, and more as history."""
        told_until, phase = self._told_until[node], phase_seconds(node, self._cluster.nodes)
        end = max(_interval_end(self._clock() - phase), told_until + INTERVAL_SECONDS)
        *older, newest = _windows(told_until, end)
        self._send(node, newest)
        self._unknown.discard(node)
        self._history += [(node, window) for window in older]
        self._told_until[node] = end
        heapreplace(self._turns, (end + INTERVAL_SECONDS + phase, node))

    def _send(self, node: int, window: tuple[int, int]) -> None:
        """Send (start, end] of one node; what was sent before a failure counts once."""
        start, end = window
        agent = self._cluster.agent(node)
        times = range(start + INTERVAL_SECONDS, end + 1, INTERVAL_SECONDS)
        for stretch in agent.stretches(times):
            batch, values = agent.batch(stretch, introduces=node in self._unknown)
            self._doors.send_batch(batch, values)


class Feeder:
    """Tells the server every half minute what the scheduler knows."""

    def __init__(
        self,
        cluster: Cluster,
        doors: Doors,
        history_seconds: int,
        patience: Patience,
        clock: Clock = time.time,
    ) -> None:
        self._cluster = cluster
        self._doors = doors
        self._patience = patience
        self._clock = clock
        self._told_until = clock() - history_seconds

    def step(self) -> float:
        """Send all that is in the queue, and what ended since the last time; return how many
        seconds to wait then."""
        now = self._clock()
        try:
            for body in bodies(list(self._cluster.feed_lines(now, self._told_until))):
                self._doors.send_feed(body)
        except Unreachable as problem:
            self._patience.failed(problem)
            return RETRY_SECONDS
        finally:
            self._doors.close()
        self._patience.succeeded()
        self._told_until = now
        return FEED_PERIOD_SECONDS


def _interval_end(now: float) -> int:
    return int(now) // INTERVAL_SECONDS * INTERVAL_SECONDS


def _windows(start: int, end: int) -> list[tuple[int, int]]:
    """(start, end] in windows of at most half an hour, oldest first, the last ones whole."""
    ends = range(end, start, -MAX_WINDOW_SECONDS)
    return [(max(start, until - MAX_WINDOW_SECONDS), until) for until in reversed(ends)]
