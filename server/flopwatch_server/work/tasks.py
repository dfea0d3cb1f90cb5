"""Periodic work: plain idempotent functions in a list with a period."""

from collections.abc import Callable
from dataclasses import dataclass

from flopwatch_server.house import House


@dataclass(frozen=True, slots=True)
class Task:
    """One entry of the list. Running `function` twice does no harm; missing a turn neither.

    A call takes seconds, however much there is to do: it gives True if more waits, and is called
    again at once, unless whoever runs it is to stop.
    """

    name: str
    period_seconds: float
    function: Callable[[House], bool | None]
