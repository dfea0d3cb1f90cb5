"""The one writer of a server process: it commits whatever waits as one group.

A post is answered only after the transaction that holds it is durable. While one group commits,
the next one gathers, so the cost of a commit is shared by as many posts as are waiting.
"""

import asyncio
import logging
import queue
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import UTC, date, datetime

import numpy as np
import psycopg
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from flopwatch_server.database import partitions
from flopwatch_server.database.engine import Database
from flopwatch_server.house import House
from flopwatch_server.telemetry.ingest import ValidatedBatch
from flopwatch_server.telemetry.store import Outcome, Store

log = logging.getLogger(__name__)

MAX_WAITING_ROWS = 400_000
MAX_GROUP_ROWS = 50_000
MAX_GROUP_BATCHES = 256
MAX_WAITING_BATCHES = 2048
_DAY_SECONDS = 86_400
_UNREACHABLE_STATES = ("08", "53", "57P")  # no connection, no room, shut down


class Unavailable(Exception):
    """The batch could not be kept now, through no fault of its own: 503, send it again later."""


class NotStorable(Exception):
    """The database refuses this one batch, and would again: 422."""


@dataclass(frozen=True, slots=True, eq=False)
class _Waiting:
    batch: ValidatedBatch
    answer: Future[Outcome]


class IngestWriter:
    """A thread with a database connection of its own, so that no page can starve it."""

    def __init__(self, house: House) -> None:
        self._database = Database(house.database.conninfo)
        self._store = Store()
        self._days: set[date] = set()
        self._queue: queue.Queue[_Waiting | None] = queue.Queue(MAX_WAITING_BATCHES)
        self._waiting_rows = 0
        self._lock = threading.Lock()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="ingest writer", daemon=True)

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    def stop(self) -> None:
        """Take no more, write what waits, and end."""
        with self._lock:
            self._stopped = True
        self._queue.put(None)
        self._thread.join()
        self._database.dispose()

    async def submit(self, batch: ValidatedBatch) -> Outcome:
        """Wait until `batch` is durable. Raises Unavailable or NotStorable."""
        waiting = _Waiting(batch, Future())
        with self._lock:
            if self._stopped:
                raise Unavailable("the server is stopping")
            if self._waiting_rows + len(batch.time) > MAX_WAITING_ROWS or self._queue.full():
                raise Unavailable("the server has more to write than it can hold")
            self._waiting_rows += len(batch.time)
            self._queue.put_nowait(waiting)
        return await asyncio.wrap_future(waiting.answer)

    def _run(self) -> None:
        while group := self._next_group():
            self._write(group)

    def _next_group(self) -> list[_Waiting]:
        """Wait for a batch and take all that wait behind it; nothing once the writer stops."""
        group: list[_Waiting] = []
        rows = 0
        while rows < MAX_GROUP_ROWS and len(group) < MAX_GROUP_BATCHES:
            try:
                waiting = self._queue.get(block=not group)
            except queue.Empty:
                break
            if waiting is None:
                if group:
                    self._queue.put(None)  # for the next turn, when nothing else waits
                break
            with self._lock:
                self._waiting_rows -= len(waiting.batch.time)
            if waiting.answer.set_running_or_notify_cancel():
                group.append(waiting)
                rows += len(waiting.batch.time)
        return group

    def _write(self, group: Sequence[_Waiting]) -> None:
        """Write a group and answer everybody in it; if one batch is at fault, it alone fails."""
        try:
            outcomes = self._commit([waiting.batch for waiting in group])
        except Exception as error:  # noqa: BLE001 - raised in the requests that wait for it
            self._store.forget()
            self._fail(group, error)
        else:
            for waiting, outcome in zip(group, outcomes, strict=True):
                waiting.answer.set_result(outcome)

    def _commit(self, batches: Sequence[ValidatedBatch]) -> list[Outcome]:
        times = np.concatenate([batch.time for batch in batches])
        days = {
            datetime.fromtimestamp(day * _DAY_SECONDS, UTC).date()
            for day in np.unique(times // _DAY_SECONDS).tolist()
        } - self._days
        if days:
            with self._database.session() as session:
                partitions.ensure_days(session, days)
            self._days |= days
        with self._database.session() as session:
            return self._store.write(session, batches)

    def _fail(self, group: Sequence[_Waiting], error: Exception) -> None:
        if _concerns_all(error) or len(group) == 1:
            log.warning("%d batches were not written: %s", len(group), error)
            for waiting in group:
                waiting.answer.set_exception(_explain(error))
        else:
            for waiting in group:
                self._write([waiting])


def _driver_error(error: Exception) -> BaseException | None:
    return error.orig if isinstance(error, DBAPIError) else error


def _concerns_all(error: Exception) -> bool:
    """Whether the database is out of reach or full, so that no other batch would fare better."""
    driver = _driver_error(error)
    if isinstance(driver, psycopg.OperationalError):
        return driver.sqlstate is None or driver.sqlstate.startswith(_UNREACHABLE_STATES)
    return isinstance(driver, PoolTimeout)


def _explain(error: Exception) -> Exception:
    """What to tell the sender: try again, the batch is at fault, or the error as it is."""
    match _driver_error(error):
        case psycopg.errors.DiskFull():
            return Unavailable("the database has no room left")
        case psycopg.OperationalError() | psycopg.InterfaceError() | PoolTimeout():
            return Unavailable("the database does not answer")
        case psycopg.errors.ReadOnlySqlTransaction():
            return Unavailable("the database is read-only now")
        case psycopg.DataError() | psycopg.IntegrityError() as refused:
            return NotStorable(str(refused).splitlines()[0])
    return error
