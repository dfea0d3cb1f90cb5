"""The one writer of a server process: it commits whatever waits as one group.

A post is answered only after the transaction that holds it is durable. While one group commits,
the next one gathers, so the cost of a commit is shared by as many posts as are waiting.
"""

import asyncio
import logging
import queue
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime

import numpy as np
import psycopg
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.orm import Session

from flopwatch_server.database import partitions
from flopwatch_server.database.engine import Database
from flopwatch_server.database.line import Line
from flopwatch_server.house import House
from flopwatch_server.telemetry.ingest import ValidatedBatch
from flopwatch_server.telemetry.store import Outcome, Store

log = logging.getLogger(__name__)

MAX_GROUP_ROWS = 50_000
MAX_GROUP_BATCHES = 256
MAX_WAITING_BATCHES = 2048
MAX_WAITING_BYTES = 48 * 1024 * 1024
"""Of bodies, unpacked. What a header becomes in memory may take 60 times its bytes."""

_DAY_SECONDS = 86_400
_IDLE_SECONDS = 0.5
_CONCERN_ALL = ("08", "53", "57", "55P03")
"""SQLSTATEs, or how they begin: no connection, no room, shut down or out of time, locked."""


class Unavailable(Exception):
    """The batch could not be kept now, through no fault of its own: 503, send it again later."""


class NotStorable(Exception):
    """The database refuses this one batch, and would again: 422."""


@dataclass(frozen=True, slots=True, eq=False)
class _Waiting:
    batch: ValidatedBatch
    size_bytes: int
    answer: asyncio.Future[Outcome]


class IngestWriter:
    """A thread with a database connection of its own, so that no page can starve it."""

    def __init__(self, house: House) -> None:
        self._database = Database(house.database.conninfo)
        self._line = Line(self._database)
        self._store = Store()
        self._days: set[date] = set()
        self._queue: queue.SimpleQueue[_Waiting | None] = queue.SimpleQueue()
        self._waiting_batches = self._waiting_bytes = 0
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

    async def submit(self, batch: ValidatedBatch, size_bytes: int) -> Outcome:
        """Wait until `batch`, which came as so many bytes, unpacked, is durable.

        Raises Unavailable or NotStorable.
        """
        waiting = _Waiting(batch, size_bytes, asyncio.get_running_loop().create_future())
        with self._lock:
            if self._stopped:
                raise Unavailable("the server is stopping")
            size = self._waiting_bytes + size_bytes
            if size > MAX_WAITING_BYTES or self._waiting_batches >= MAX_WAITING_BATCHES:
                raise Unavailable("the server has more to write than it can hold")
            self._waiting_batches += 1
            self._waiting_bytes = size
            self._queue.put(waiting)
        return await waiting.answer

    def _run(self) -> None:
        while (group := self._next_group()) is not None:
            if group:
                self._write(group)
            elif self._store.is_due():
                self._write_deferred()
        self._write_deferred()
        self._line.hang_up()

    def _next_group(self) -> list[_Waiting] | None:
        """All batches that wait; none if nothing came for a while, None once the writer stops."""
        group: list[_Waiting] = []
        rows = 0
        while rows < MAX_GROUP_ROWS and len(group) < MAX_GROUP_BATCHES:
            try:
                waiting = self._queue.get(block=not group, timeout=_IDLE_SECONDS)
            except queue.Empty:
                break
            if waiting is None:
                if not group:
                    return None
                self._queue.put(None)  # for the next turn, when nothing else waits
                break
            group.append(waiting)
            rows += len(waiting.batch.time)
        with self._lock:
            self._waiting_batches -= len(group)
            self._waiting_bytes -= sum(waiting.size_bytes for waiting in group)
        return group

    def _write(self, group: Sequence[_Waiting]) -> None:
        """Write a group and answer everybody in it; if one batch is at fault, it alone fails."""
        try:
            outcomes = self._commit([waiting.batch for waiting in group])
        except Exception as error:  # noqa: BLE001 - raised in the requests that wait for it
            self._fail(group, error)
        else:
            _answer(group, outcomes)

    def _commit(self, batches: Sequence[ValidatedBatch]) -> list[Outcome]:
        self._make_days(batches)
        try:
            with self._transaction() as session:
                return self._store.write(session, batches)
        except psycopg.errors.UniqueViolation:  # a batch was sent again, which is rare
            with self._transaction() as session:
                return self._store.write(session, batches, some_known=True)

    def _make_days(self, batches: Sequence[ValidatedBatch]) -> None:
        days = _days(batches) - self._days
        if days:
            with self._transaction() as session:
                partitions.ensure_days(session, days)
            self._days |= days

    def _write_deferred(self) -> None:
        try:
            with self._transaction() as session:
                self._store.write_deferred(session)
        except (DBAPIError, PoolTimeout) as error:
            log.warning("when nodes were last heard of was not written: %s", error)

    @contextmanager
    def _transaction(self) -> Iterator[Session]:
        try:
            with self._line.transaction() as session:
                yield session
        except BaseException as error:
            self._store.forget()
            if _concerns_all(error):
                self._line.hang_up()
            raise
        self._store.keep()

    def _fail(self, group: Sequence[_Waiting], error: Exception) -> None:
        if _concerns_all(error) or len(group) == 1:
            log.warning("%d batches were not written: %s", len(group), error)
            _answer(group, [_explain(error)] * len(group))
        else:
            for waiting in group:
                self._write([waiting])


def _days(batches: Sequence[ValidatedBatch]) -> set[date]:
    """The UTC days of all their samples: most often one."""
    days = np.unique(np.concatenate([batch.time for batch in batches]) // _DAY_SECONDS)
    return {datetime.fromtimestamp(day * _DAY_SECONDS, UTC).date() for day in days.tolist()}


def _answer(group: Sequence[_Waiting], outcomes: Sequence[Outcome | Exception]) -> None:
    """Hand everybody what became of his batch, with one call into the loop they wait in."""
    pairs = list(zip(group, outcomes, strict=True))

    def hand_out() -> None:
        for waiting, outcome in pairs:
            if waiting.answer.done():
                continue  # whoever sent it has gone
            if isinstance(outcome, Exception):
                waiting.answer.set_exception(outcome)
            else:
                waiting.answer.set_result(outcome)

    group[0].answer.get_loop().call_soon_threadsafe(hand_out)


def _driver_error(error: BaseException) -> BaseException | None:
    return error.orig if isinstance(error, DBAPIError) else error


def _concerns_all(error: BaseException) -> bool:
    """Whether the database is out of reach, full or held up: no other batch would fare better.

    A statement that ran out of time most often waited for a lock. To try every batch of the group
    for as long would hold up all that come after it.
    """
    driver = _driver_error(error)
    if isinstance(driver, psycopg.OperationalError):
        return driver.sqlstate is None or driver.sqlstate.startswith(_CONCERN_ALL)
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
