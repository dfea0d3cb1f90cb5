"""Locks that all servers on one database share."""

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import func, select

from flopwatch_server.database.engine import Database


@contextmanager
def advisory_lock(database: Database, key: int) -> Iterator[bool]:
    """Hold the lock `key` if nobody else does: True if it was taken. It ends with its connection,
    so one who is killed does not keep it."""
    with database.engine.connect() as connection:
        taken = bool(connection.scalar(select(func.pg_try_advisory_lock(key))))
        connection.commit()
        try:
            yield taken
        finally:
            if taken:
                connection.execute(select(func.pg_advisory_unlock(key)))
                connection.commit()
