"""Bulk rows into PostgreSQL by binary COPY, encoded by numpy.

A record of PostgreSQL's binary format has no room for a value that is NULL, so rows are encoded by
one record type per pattern of NULLs; all patterns of a call travel in one COPY. Format:
https://www.postgresql.org/docs/current/sql-copy.html, "Binary Format".
"""

from collections.abc import Iterator, Sequence
from typing import cast

import numpy as np
import psycopg
from numpy.typing import NDArray
from sqlalchemy.orm import Session

Integers = NDArray[np.int64]
Floats = NDArray[np.float32]

_HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)  # no flags, no extension
_TRAILER = b"\xff\xff"
_POSTGRES_EPOCH_SECONDS = 946_684_800  # 2000-01-01 UTC, where timestamptz counts from


def timestamps(seconds: Integers) -> Integers:
    """Seconds since 1970 as the integers that a timestamptz is made of."""
    return (seconds - _POSTGRES_EPOCH_SECONDS) * 1_000_000


def copy_rows(
    session: Session, table: str, columns: Sequence[str], keys: Sequence[Integers], values: Floats
) -> None:
    """Append rows to `table` in the session's transaction.

    `keys` are whole columns of bigint or timestamptz (see `timestamps`); `values` holds the real
    columns after them, a row a row, NaN where NULL is meant. `columns` names all of them.
    Raises psycopg's errors, not SQLAlchemy's.
    """
    connection = cast(psycopg.Connection, session.connection().connection.driver_connection)
    statement = f"COPY {table} ({', '.join(columns)}) FROM STDIN (FORMAT BINARY)"
    with connection.cursor() as cursor, cursor.copy(statement) as copy:
        for block in encode(keys, values):
            copy.write(block)


def encode(keys: Sequence[Integers], values: Floats) -> Iterator[bytes]:
    """The bytes of a binary COPY of these rows, in an order of its own."""
    yield _HEADER
    missing = np.isnan(values)
    if not missing.any():
        yield _records(keys, values, np.ones(values.shape[1], bool))
    else:
        packed = np.packbits(missing, axis=1)
        patterns = packed.view(np.dtype((np.void, packed.shape[1]))).ravel()
        _, first, which = np.unique(patterns, return_index=True, return_inverse=True)
        for number, example in enumerate(first):
            rows = np.flatnonzero(which == number)
            yield _records([key[rows] for key in keys], values[rows], ~missing[example])
    yield _TRAILER


def _records(keys: Sequence[Integers], values: Floats, present: NDArray[np.bool_]) -> bytes:
    """Rows that all have the same columns present."""
    fields: list[tuple[str, str]] = [("fields", ">i2")]
    for number in range(len(keys)):
        fields += [(f"key_length_{number}", ">i4"), (f"key_{number}", ">i8")]
    for number, known in enumerate(present):
        fields.append((f"length_{number}", ">i4"))
        if known:
            fields.append((f"value_{number}", ">f4"))
    records = np.empty(len(values), np.dtype(fields))
    records["fields"] = len(keys) + len(present)
    for number, key in enumerate(keys):
        records[f"key_length_{number}"] = 8
        records[f"key_{number}"] = key
    for number, known in enumerate(present):
        records[f"length_{number}"] = 4 if known else -1
        if known:
            records[f"value_{number}"] = values[:, number]
    return records.tobytes()
