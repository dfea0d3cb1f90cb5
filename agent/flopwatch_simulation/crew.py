"""Who sends: some processes, each with some connections, each for some of the nodes."""

import multiprocessing
import multiprocessing.connection
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from multiprocessing.process import BaseProcess
from queue import SimpleQueue

from flopwatch_simulation.cluster import Cluster
from flopwatch_simulation.doors import Doors, Refused
from flopwatch_simulation.physics import INTERVAL_SECONDS
from flopwatch_simulation.sender import Feeder, Patience, Sender

NODES_PER_PROCESS = 3000
MOST_PROCESSES = 4
NODES_PER_CONNECTION = 20
"""Leaves a server half a second for each of them in every interval."""

LEAST_CONNECTIONS = 4
_GLANCE_SECONDS = 0.05

Failures = SimpleQueue[BaseException]
"""Where failures of threads come out."""


@dataclass(frozen=True, slots=True)
class Orders:
    """What is to be simulated, and for which server."""

    server: str
    node_token: str
    feed_token: str
    seed: int
    nodes: int
    history_seconds: int
    processes: int


def processes_for(nodes: int) -> int:
    """As many as a thousand posts a second need, with a core for each."""
    return min(MOST_PROCESSES, -(-nodes // NODES_PER_PROCESS))


def play(orders: Orders) -> None:
    """Simulate for ever. Raises what ends it: Refused, or ChildProcessError if a process ended.

    One process does all if it can. Else it is the scheduler, and others are the agents.
    """
    failures: Failures = SimpleQueue()
    if orders.processes == 1:
        senders = _start_senders(orders, 0, failures)
        _start_feeder(orders, lambda: all(one.has_introduced_all for one in senders), failures)
        raise failures.get()
    children = [_start_child(orders, shard) for shard in range(orders.processes)]
    try:
        # By then all nodes have told an interval, if the server keeps up.
        ready_at = time.monotonic() + INTERVAL_SECONDS
        _start_feeder(orders, lambda: time.monotonic() >= ready_at, failures)
        _start(partial(_watch, [child.sentinel for child in children]), failures)
        raise failures.get()
    finally:
        for child in children:
            child.terminate()
            child.join()


def _start_child(orders: Orders, shard: int) -> BaseProcess:
    """Start a process with a share of the nodes; it ends with this one, however this one ends."""
    context = multiprocessing.get_context("spawn")
    child = context.Process(target=_play_share, args=(orders, shard), daemon=True)
    child.start()
    return child


def _play_share(orders: Orders, shard: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends its children
    parent = multiprocessing.parent_process()
    assert parent is not None
    failures: Failures = SimpleQueue()
    _start_senders(orders, shard, failures)
    _start(partial(_watch, [parent.sentinel]), failures)
    try:
        raise failures.get()
    except (Refused, ChildProcessError) as problem:
        sys.exit(f"flopwatch simulate: {problem}")


def _start_senders(orders: Orders, shard: int, failures: Failures) -> list[Sender]:
    """Start the threads that are the agents of one share of the nodes."""
    cluster, patience = Cluster(orders.seed, orders.nodes), Patience()
    nodes = range(shard, orders.nodes, orders.processes)
    connections = min(len(nodes), max(LEAST_CONNECTIONS, len(nodes) // NODES_PER_CONNECTION))
    senders = [
        Sender(cluster, nodes[index::connections], _doors(orders), orders.history_seconds, patience)
        for index in range(connections)
    ]
    for sender in senders:
        _start(sender.step, failures)
    return senders


def _start_feeder(orders: Orders, ready: Callable[[], bool], failures: Failures) -> None:
    """Start the thread that is the scheduler: a server can give GPUs to jobs only once it has met
    them."""
    cluster = Cluster(orders.seed, orders.nodes)
    feeder = Feeder(cluster, _doors(orders), orders.history_seconds, Patience())
    _start(lambda: feeder.step() if ready() else _GLANCE_SECONDS, failures)


def _doors(orders: Orders) -> Doors:
    return Doors(orders.server, orders.node_token, orders.feed_token)


def _watch(sentinels: list[int]) -> float:
    multiprocessing.connection.wait(sentinels)
    raise ChildProcessError("another of its processes ended")


def _start(step: Callable[[], float], failures: Failures) -> None:
    """Repeat a step in a thread for ever, or until it fails."""

    def repeat() -> None:
        try:
            while True:
                time.sleep(step())
        except BaseException as failure:  # noqa: BLE001 - whoever waits for it raises it
            failures.put(failure)

    threading.Thread(target=repeat, daemon=True).start()
