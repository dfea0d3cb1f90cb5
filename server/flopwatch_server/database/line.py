"""One connection that is kept from transaction to transaction."""

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Connection
from sqlalchemy.orm import Session

from flopwatch_server.database.engine import Database


class Line:
    """A connection of one's own: no page can starve it, and no transaction begins with a ping.

    That it is broken shows with the first use, so after such an error `hang_up` must be called; the
    next transaction connects anew. For one thread at a time.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._connection: Connection | None = None

    @contextmanager
    def transaction(self) -> Iterator[Session]:
        """One transaction: committed when the block ends, rolled back when it raises."""
        if self._connection is None:
            self._connection = self._database.engine.connect()
        with self._connection.begin(), Session(self._connection) as session:
            yield session
            session.flush()

    def hang_up(self) -> None:
        """Close the connection, in whatever state it is."""
        if self._connection is not None:
            self._connection.invalidate()
            self._connection.close()
            self._connection = None
