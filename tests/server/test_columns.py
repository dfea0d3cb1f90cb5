"""What is read in columns is what rows would have told."""

import math

from sqlalchemy import REAL, Integer, SmallInteger, column, literal, select, text, values

from flopwatch_server.database.columns import Columns
from flopwatch_server.database.engine import Database

_ROWS = values(
    column("key", Integer), column("number", Integer), column("small", SmallInteger),
    column("first", REAL), column("second", REAL), name="told",
)  # fmt: skip


def test_columns_keep_whole_numbers_and_the_digits_of_a_real(database: Database) -> None:
    rows = [
        (7, 1_773_316_800, 3, 0.1, None),
        (7, -5, 0, 0.0, 99.99),
        (7, 2**31 - 1, -1, 1.234567e-9, -0.35),
        (9, 0, 2, 10_000_000_000.0, 81_559.0),
    ]
    with database.session() as session:
        found = Columns(select(_ROWS.data(rows))).read(session, {})
    integers, reals = found[7]
    told = sorted(zip(*(each.tolist() for each in (*integers, *reals)), strict=True))
    assert [row[:3] for row in told] == [
        (-5, 0, 0.0), (1_773_316_800, 3, 0.1), (2**31 - 1, -1, 1.234567e-9),
    ]  # fmt: skip
    assert told[0][3] == 99.99
    assert math.isnan(told[1][3])
    assert told[2][3] == -0.35
    assert found[9][1].tolist() == [[10_000_000_000.0], [81_559.0]]


def test_the_digits_are_those_that_postgresql_writes(database: Database) -> None:
    numbers = "SELECT 1 AS key, i, (i * 0.37 / 10 ^ (i % 9))::real AS value"
    numbers += " FROM generate_series(1, 900) AS i"
    in_digits = text(f"SELECT i, to_char(value, '9.999999EEEE')::float8 FROM ({numbers}) AS n")
    told = text(numbers).columns(key=Integer, i=Integer, value=REAL)
    with database.session() as session:
        [(integers, reals)] = Columns(select(told.subquery())).read(session, {}).values()
        written = {number: value for number, value in session.execute(in_digits)}
    assert dict(zip(integers[0].tolist(), reals[0].tolist(), strict=True)) == written


def test_without_reals_and_without_rows(database: Database) -> None:
    one = select(literal(1), literal(2).label("two"))
    with database.session() as session:
        [(integers, reals)] = Columns(one).read(session, {}).values()
        assert Columns(one.where(text("false"))).read(session, {}) == {}
    assert (integers[0].tolist(), reals.shape) == ([2], (0, 1))
