"""Who sends: some processes, each with some connections, each for some of the nodes."""

import multiprocessing
import multiprocessing.connection
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from queue import SimpleQueue

from flopwatch_simulation.cluster import Cluster
from flopwatch_simulation.doors import Doors, Refused
from flopwatch_simulation.sender import Feeder, Patience, Sender

NODES_PER_PROCESS = 3000
MOST_PROCESSES = 4
NODES_PER_CONNECTION = 80
"""Leaves a server 125 ms for each of them in every interval."""

LEAST_CONNECTIONS = 4
_GLANCE_SECONDS = 0.05


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
    """Simulate for ever. Raises what ends one of the processes: Refused, or an error of its own;
    ChildProcessError if another process ended."""
    children = [_child(orders, shard) for shard in range(1, orders.processes)]
    for child in children:
        child.start()
    try:
        failures = _start_shard(orders, 0)
        threading.Thread(target=_report_end, args=(children, failures), daemon=True).start()
        raise failures.get()
    finally:
        for child in children:
            child.terminate()
            child.join()


def _child(orders: Orders, shard: int) -> BaseProcess:
    """A process that ends with its parent, however that ends."""
    context = multiprocessing.get_context("spawn")
    return context.Process(target=_play_shard, args=(orders, shard), daemon=True)


def _play_shard(orders: Orders, shard: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends its children
    failures = _start_shard(orders, shard)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        multiprocessing.connection.wait([parent.sentinel])
        failures.put(SystemExit(0))

    threading.Thread(target=watch, daemon=True).start()
    try:
        raise failures.get()
    except Refused as problem:
        sys.exit(f"flopwatch simulate: {problem}")


def _report_end(children: list[BaseProcess], failures: "SimpleQueue[BaseException]") -> None:
    if children:
        multiprocessing.connection.wait([child.sentinel for child in children])
        failures.put(ChildProcessError("one of the simulating processes ended"))


def _start_shard(orders: Orders, shard: int) -> "SimpleQueue[BaseException]":
    """Start the threads of one process, the first of which also has the feed; where their failures
    come out."""
    cluster, patience = Cluster(orders.seed, orders.nodes), Patience()
    nodes = range(shard, orders.nodes, orders.processes)
    connections = min(len(nodes), max(LEAST_CONNECTIONS, len(nodes) // NODES_PER_CONNECTION))
    senders = [
        Sender(cluster, nodes[index::connections], _doors(orders), orders.history_seconds, patience)
        for index in range(connections)
    ]
    failures: SimpleQueue[BaseException] = SimpleQueue()
    for sender in senders:
        _start(sender.step, failures)
    if shard == 0:
        feeder = Feeder(cluster, _doors(orders), orders.history_seconds, patience)

        def step() -> float:
            """The server can give GPUs to jobs only once it has met them."""
            if all(sender.has_introduced_all for sender in senders):
                return feeder.step()
            return _GLANCE_SECONDS

        _start(step, failures)
    return failures


def _doors(orders: Orders) -> Doors:
    return Doors(orders.server, orders.node_token, orders.feed_token)


def _start(step: Callable[[], float], failures: "SimpleQueue[BaseException]") -> None:
    def loop() -> None:
        try:
            while True:
                wait = step()
                if wait > 0:
                    time.sleep(wait)
        except BaseException as failure:  # noqa: BLE001 - whoever waits for it raises it
            failures.put(failure)

    threading.Thread(target=loop, daemon=True).start()
