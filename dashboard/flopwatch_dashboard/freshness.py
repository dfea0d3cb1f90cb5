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
    late_after: float
    old_after: float
    live: bool


def freshness(
    newest: datetime | None,
    now: datetime,
    *,
    live: bool = True,
    period_seconds: float = SAMPLE_PERIOD_SECONDS,
) -> Freshness:
    """The freshness of data that is told every `period_seconds` and was told last at `newest`.

    `live` False: it is final.
    """
    return {
        "newest": newest.timestamp() if newest else None,
        "now": now.timestamp(),
        "late_after": LATE_PERIODS * period_seconds,
        "old_after": OLD_PERIODS * period_seconds,
        "live": live,
    }
