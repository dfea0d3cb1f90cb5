"""Periodic work: plain idempotent functions in a list with a period."""

from collections.abc import Callable
from dataclasses import dataclass

from flopwatch_server.house import House


@dataclass(frozen=True, slots=True)
class Task:
    """One entry of the list. Running `function` twice does no harm; missing a turn neither."""

    name: str
    period_seconds: float
    function: Callable[[House], None]
