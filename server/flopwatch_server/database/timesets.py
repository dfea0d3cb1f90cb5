"""Sets of time in SQL, as multiranges of PostgreSQL: exact, whatever overlaps what."""

from functools import partial
from typing import Any

from sqlalchemy import (
    BinaryExpression,
    ColumnElement,
    Float,
    ScalarSelect,
    case,
    cast,
    func,
    literal_column,
    select,
)
from sqlalchemy.dialects.postgresql import TSTZMULTIRANGE, TSTZRANGE

Times = ColumnElement[Any]
"""A stretch of time (tstzrange), or a set of such (tstzmultirange)."""

NEVER = literal_column("'{}'::tstzmultirange", TSTZMULTIRANGE)

both = partial(func.multirange_intersect, type_=TSTZMULTIRANGE)
"""The times that lie in each of two sets."""

either = partial(func.multirange_union, type_=TSTZMULTIRANGE)
"""The times that lie in one of two sets, or in both."""

together = partial(func.range_agg, type_=TSTZMULTIRANGE)
"""The set of all stretches of a group; NULL of none."""


def without(times: Times, *others: Times) -> Times:
    """A set less the times of others."""
    for other in others:
        times = func.multirange_minus(times, other, type_=TSTZMULTIRANGE)
    return times


def lasting(start: Any, end: Any) -> Times:
    """[start, end); without an end for ever. One that ends before it starts never was: clocks and
    late news make such rows, and PostgreSQL makes no range of them."""
    last = case((end.is_not(None), func.greatest(start, end)))
    return func.tstzrange(start, last, type_=TSTZRANGE)


def common(one: Times, other: Times) -> Times:
    """What two stretches have in common."""
    return func.range_intersect(one, other, type_=TSTZRANGE)


def overlap(one: Times, other: Times) -> BinaryExpression[bool]:
    """Whether two stretches have any time in common."""
    return one.bool_op("&&")(other)


def seconds(times: Times) -> ScalarSelect[float]:
    """How long a set is, all in all."""
    time = func.unnest(times, type_=TSTZRANGE).column_valued("time")
    length = cast(func.extract("epoch", func.upper(time) - func.lower(time)), Float)
    return select(func.coalesce(func.sum(length), 0.0, type_=Float)).scalar_subquery()
