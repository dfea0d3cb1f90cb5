"""Columns out of PostgreSQL as numpy arrays: the way back of `database.copy`.

A column travels as the bytes of its values, one after the other. Written as text and parsed again,
the same values cost PostgreSQL twice and Python ten times as much.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import (
    REAL,
    ColumnElement,
    Integer,
    LargeBinary,
    Select,
    cast,
    func,
    literal,
    select,
)
from sqlalchemy.orm import Session

Array = NDArray[Any]
_NO_DELIMITER = literal(b"", LargeBinary)
_UNKNOWN = cast(literal("NaN"), REAL)
_BYTES = 4  # of an integer, and of a REAL
_REAL_DIGITS = 7


class Columns:
    """A statement whose rows are read in columns, by the integer that the first column holds.

    Made once and read often: to build a statement costs as much as to run it.
    """

    def __init__(self, rows: Select[Any]) -> None:
        """After the key come columns of integers, which must not be NULL, and those of REAL."""
        key, *columns = rows.subquery().c
        integers = [column for column in columns if not isinstance(column.type, REAL)]
        reals = [column for column in columns if isinstance(column.type, REAL)]
        self._integers, self._reals = len(integers), len(reals)
        self._packed = select(
            key,
            *(_joined(func.int4send(cast(column, Integer))) for column in integers),
            *(
                _joined(func.float4send(func.coalesce(cast(column, REAL), _UNKNOWN)))
                for column in reals
            ),
        ).group_by(key)

    def read(
        self, session: Session, parameters: Mapping[str, Any]
    ) -> dict[int, tuple[list[Array], Array]]:
        """By key the columns of integers, and those of REAL as one array, NaN where NULL.

        The array has a row for each column. The same place is the same row of the statement.
        """
        return {
            row[0]: self._unpacked(row[1:]) for row in session.execute(self._packed, parameters)
        }

    def _unpacked(self, packed: tuple[bytes, ...]) -> tuple[list[Array], Array]:
        integers = packed[: self._integers]
        rows = len(packed[0]) // _BYTES
        values = np.frombuffer(b"".join(packed[self._integers :]), ">f4").reshape(self._reals, rows)
        return [np.frombuffer(each, ">i4").astype(np.int64) for each in integers], _in_digits(
            values
        )


def _joined(sent: ColumnElement[bytes]) -> ColumnElement[bytes]:
    return func.string_agg(sent, _NO_DELIMITER, type_=LargeBinary)


def _in_digits(values: Array) -> NDArray[np.float64]:
    """The doubles nearest to the digits that a REAL holds: 0.1, not 0.10000000149011612."""
    exact = values.astype(np.float64)
    size = np.abs(np.where(exact == 0, 1.0, exact))
    scale = 10.0 ** np.clip(_REAL_DIGITS - 1 - np.floor(np.log10(size)), 0, 22)
    return np.asarray(np.round(exact * scale) / scale)
