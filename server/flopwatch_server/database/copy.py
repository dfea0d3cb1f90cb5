"""Bulk rows into PostgreSQL by binary COPY, encoded by numpy.

A record of PostgreSQL's binary format has no room for a value that is NULL, so rows are encoded by
one record type per pattern of NULLs; all patterns of a call travel in one COPY. Format:
https://www.postgresql.org/docs/current/sql-copy.html, "Binary Format".
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any, cast

import numpy as np
import psycopg
from numpy.typing import NDArray
from sqlalchemy.orm import Session

Integers = NDArray[np.int64]
Keys = NDArray[np.signedinteger[Any]]
Floats = NDArray[np.float32]
_Stretch = tuple[int, int, bool]

_HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)  # no flags, no extension
_TRAILER = b"\xff\xff"
_POSTGRES_EPOCH_SECONDS = 946_684_800  # 2000-01-01 UTC, where timestamptz counts from


def timestamps(seconds: Integers) -> Integers:
    """Seconds since 1970 as the integers that a timestamptz is made of."""
    return (seconds - _POSTGRES_EPOCH_SECONDS) * 1_000_000


def copy_rows(
    session: Session, table: str, columns: Sequence[str], keys: Sequence[Keys], values: Floats
) -> None:
    """Append rows to `table` in the session's transaction.

    `keys` are whole columns of integer (int32), bigint or timestamptz (int64, see `timestamps`);
    `values` holds the real columns after them, a row a row, NaN where NULL is meant. `columns`
    names all of them.
    Raises psycopg's errors, not SQLAlchemy's.
    """
    connection = cast(psycopg.Connection, session.connection().connection.driver_connection)
    statement = f"COPY {table} ({', '.join(columns)}) FROM STDIN (FORMAT BINARY)"
    with connection.cursor() as cursor, cursor.copy(statement) as copy:
        for block in encode(keys, values):
            copy.write(block)


def encode(keys: Sequence[Keys], values: Floats) -> Iterator[bytes]:
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


def _records(keys: Sequence[Keys], values: Floats, present: NDArray[np.bool_]) -> bytes:
    """Rows that all have the same columns present."""
    stretches = _stretches(tuple(present.tolist()))
    sizes = tuple(key.itemsize for key in keys)
    records = np.empty(len(values), _record_type(sizes, stretches))
    records["fields"] = len(keys) + len(present)
    for number, (key, size) in enumerate(zip(keys, sizes, strict=True)):
        records[f"key_{number}"]["length"] = size
        records[f"key_{number}"]["value"] = key
    for begin, end, known in stretches:
        if known:
            records[f"from_{begin}"]["length"] = 4
            records[f"from_{begin}"]["value"] = values[:, begin:end]
        else:
            records[f"from_{begin}"] = -1
    return records.tobytes()


@lru_cache(1024)
def _stretches(present: tuple[bool, ...]) -> tuple[_Stretch, ...]:
    """(begin, end, known) of each stretch of columns that are all known, or all NULL."""
    ends = [*(i for i in range(1, len(present)) if present[i] != present[i - 1]), len(present)]
    return tuple((begin, end, present[begin]) for begin, end in pairwise([0, *ends]) if begin < end)


@lru_cache(1024)
def _record_type(key_sizes: tuple[int, ...], stretches: tuple[_Stretch, ...]) -> np.dtype[np.void]:
    """The type of a row of these keys and columns; to make one costs more than to fill it.

    A field is its length and its value, and one that is NULL the length -1 alone.
    """
    keys = [
        (f"key_{number}", np.dtype([("length", ">i4"), ("value", f">i{size}")]))
        for number, size in enumerate(key_sizes)
    ]
    value = np.dtype([("length", ">i4"), ("value", ">f4")])
    null = np.dtype(">i4")
    cells = [
        (f"from_{begin}", value if known else null, (end - begin,))
        for begin, end, known in stretches
    ]
    return np.dtype([("fields", ">i2"), *keys, *cells])
