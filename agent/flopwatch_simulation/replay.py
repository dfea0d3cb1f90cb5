"""A stretch of time as a server would meet it, without waiting: every post and every feed, in the
order and at the time of their arrival.

For tests that set the clock of a server themselves, and for histories made at once.
"""

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from heapq import merge

from flopwatch.wire import Batch
from flopwatch_simulation.agent import Agent
from flopwatch_simulation.cluster import Cluster
from flopwatch_simulation.feed import Line
from flopwatch_simulation.physics import INTERVAL_SECONDS
from flopwatch_simulation.sender import FEED_PERIOD_SECONDS, phase_seconds

_AGAIN_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Post:
    """A batch that arrives at the time `at` by the server's clock; `sent_at` is the agent's."""

    at: float
    node: int
    batch: Batch
    values: "array[float]"
    sent_at: float


@dataclass(frozen=True, slots=True)
class Feed:
    """What the scheduler tells at the time `at`, line by line."""

    at: float
    lines: list[Line]


def posts(
    cluster: Cluster, start: int, end: int, window_seconds: int = INTERVAL_SECONDS
) -> Iterator[Post]:
    """All posts about (start, end], each of a window of so many seconds, in order of arrival.

    The start and the window are multiples of 10 s; of a whole day 1,800 s a window makes least
    work.
    """
    of_nodes = (
        _posts_of(cluster, cluster.agent(node), start, end, window_seconds)
        for node in range(cluster.nodes)
    )
    return merge(*of_nodes, key=lambda post: post.at)


def feeds(
    cluster: Cluster, start: int, end: int, period_seconds: int = FEED_PERIOD_SECONDS
) -> Iterator[Feed]:
    """All feeds within [start, end], each with what has ended since the one before."""
    told_until = float(start)
    for at in range(start, end + 1, period_seconds):
        if not cluster.faults.scheduler_is_away(at):
            yield Feed(float(at), list(cluster.feed_lines(at, told_until)))
            told_until = float(at)


def _posts_of(
    cluster: Cluster, agent: Agent, start: int, end: int, window_seconds: int
) -> Iterator[Post]:
    faults, node = cluster.faults, agent.node
    phase = phase_seconds(node, cluster.nodes)
    lives: set[int] = set()
    for begin in range(start, end, window_seconds):
        until = min(end, begin + window_seconds)
        times = range(begin + INTERVAL_SECONDS, until + 1, INTERVAL_SECONDS)
        for stretch in agent.stretches(times):
            last = stretch[-1]
            life = len(faults.rebirths(node, last))
            batch, values = agent.batch(stretch, introduces=life not in lives)
            lives.add(life)
            late = [fault.end for fault in faults.of(node, last, "late")]
            at = max([last, *late]) + phase
            sent_at = at + faults.skew_seconds(node, max([last, *late]))
            yield Post(at, node, batch, values, sent_at)
            if any(faults.of(node, last, "duplicates")):
                again = at + _AGAIN_SECONDS
                yield Post(again, node, batch, values, sent_at + _AGAIN_SECONDS)
