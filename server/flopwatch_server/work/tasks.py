"""Periodic work: plain idempotent functions in a list with a period."""

from collections.abc import Callable
from dataclasses import dataclass

from flopwatch_server.clock import Clock
from flopwatch_server.database.engine import Database
from flopwatch_server.settings import Settings


@dataclass(frozen=True, slots=True)
class Context:
    """What a task may use."""

    database: Database
    settings: Settings
    clock: Clock


@dataclass(frozen=True, slots=True)
class Task:
    """One entry of the list. Running `function` twice does no harm; missing a turn neither."""

    name: str
    period_seconds: float
    function: Callable[[Context], None]
