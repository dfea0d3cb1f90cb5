"""How old the newest data of a page is; the browser counts on from there."""

from datetime import datetime
from typing import TypedDict

from flopwatch.metrics import SAMPLE_PERIOD_SECONDS

LATE_PERIODS = 3
OLD_PERIODS = 10


class Freshness(TypedDict):
    """Seconds since 1970 by the server's clock; `newest` None while nothing was measured."""

    newest: float | None
    now: float
    late_after: int
    old_after: int
    live: bool


def freshness(newest: datetime | None, now: datetime, *, live: bool = True) -> Freshness:
    """The freshness of data whose newest sample is `newest`. `live` False: it is final."""
    return {
        "newest": newest.timestamp() if newest else None,
        "now": now.timestamp(),
        "late_after": LATE_PERIODS * SAMPLE_PERIOD_SECONDS,
        "old_after": OLD_PERIODS * SAMPLE_PERIOD_SECONDS,
        "live": live,
    }
