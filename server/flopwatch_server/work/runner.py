"""Runs the list of periodic tasks inside the server process, one thread a task.

An advisory lock per task keeps two servers on one database from doing the same work at once: the
second finds the lock taken and lets this turn pass.
"""

import logging
import threading
import zlib
from collections.abc import Callable, Sequence

from flopwatch_server.database.locks import advisory_lock
from flopwatch_server.house import House
from flopwatch_server.work.tasks import Task

log = logging.getLogger(__name__)


class Runner:
    """The tasks as long as the server lives. A failing turn is logged and the next one comes."""

    def __init__(self, tasks: Sequence[Task], house: House) -> None:
        self._house = house
        self._stopping = threading.Event()
        self._threads = [
            threading.Thread(target=self._loop, args=(task,), name=f"task {task.name}", daemon=True)
            for task in tasks
        ]

    def start(self) -> None:
        """Begin: every task runs at once, then once a period."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Let the calls that run come to their end, and make no other."""
        self._stopping.set()
        for thread in self._threads:
            thread.join()

    def _loop(self, task: Task) -> None:
        while not self._stopping.is_set():
            try:
                run_once(task, self._house, self._stopping.is_set)
            except Exception:
                log.exception("task %s failed; it runs again in %g s", task.name,
                              task.period_seconds)  # fmt: skip
            self._stopping.wait(task.period_seconds)


def run_once(task: Task, house: House, is_stopping: Callable[[], bool]) -> bool:
    """Run one turn under the task's lock; False if another server holds it.

    A turn goes on until nothing waits any more, or `is_stopping`.
    """
    key = zlib.crc32(f"flopwatch task {task.name}".encode())
    with advisory_lock(house.database, key) as taken:
        if taken:
            while task.function(house) and not is_stopping():
                pass
    return taken
