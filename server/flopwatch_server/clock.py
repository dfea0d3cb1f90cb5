"""Time, handed to whatever needs it, so that a test can hold it still."""

from collections.abc import Callable
from datetime import UTC, datetime

Clock = Callable[[], datetime]


def utc_now() -> datetime:
    """The time now, aware, in UTC."""
    return datetime.now(UTC)
