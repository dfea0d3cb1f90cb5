"""Threads that may wedge: a call that never returns costs its own lane and nothing else."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")


class Lane:
    """One daemon thread that makes one call at a time.

    `concurrent.futures` has no use here: its threads are joined at exit, and a thread inside a
    wedged driver call can't be.
    """

    def __init__(self, name: str) -> None:
        self._calls: SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = SimpleQueue()
        self._current: Future[Any] | None = None
        threading.Thread(target=self._run, name=name, daemon=True).start()

    @property
    def busy(self) -> bool:
        """True while an earlier call has not returned."""
        return self._current is not None and not self._current.done()

    def start(self, call: Callable[[], T]) -> Future[T] | None:
        """Begin a call and return its future, or None while the lane is busy."""
        if self.busy:
            return None
        future: Future[T] = Future()
        self._current = future
        self._calls.put((call, future))
        return future

    def _run(self) -> None:
        while True:
            call, future = self._calls.get()
            try:
                future.set_result(call())
            # Not swallowed: whoever waits for the future meets the exception there.
            except BaseException as error:  # noqa: BLE001
                future.set_exception(error)
