"""Threads that may wedge: a call that never returns costs its own lane and nothing else."""

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

T = TypeVar("T")
_log = logging.getLogger(__name__)

_READ_SECONDS = 0.25
"""So long a batch waits for a reading: two that hang must not cost the next second's figures."""


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


class ReadingLane(Generic[T]):
    """Reads in a lane of its own what may be slow to tell; what comes late is taken later."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lane = Lane(name)
        self._pending: Future[list[T]] | None = None

    def start(self, read: Callable[[], list[T]]) -> None:
        """Begin to read, unless the last reading has not been taken yet."""
        if self._pending is None:
            self._pending = self._lane.start(read)

    def take(self) -> list[T]:
        """What was read, or nothing yet."""
        if self._pending is None or not wait([self._pending], _READ_SECONDS).done:
            return []
        future, self._pending = self._pending, None
        error = future.exception()
        if error is not None:
            _log.error("%s can't be read", self._name, exc_info=error)
            return []
        return future.result()
