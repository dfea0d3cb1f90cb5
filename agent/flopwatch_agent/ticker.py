"""The beat of the agent: whole seconds of its wall clock, whatever the clock does."""

from collections.abc import Callable
from dataclasses import dataclass

from flopwatch.metrics import SAMPLE_PERIOD_SECONDS

# A wait may end a little before the clock shows the second: they are different clocks.
_EARLY_SECONDS = 0.05


def interval_end(second: int) -> int:
    """The end of the interval (end − 10 s, end] that holds this second."""
    return -(-second // SAMPLE_PERIOD_SECONDS) * SAMPLE_PERIOD_SECONDS


@dataclass(frozen=True, slots=True)
class Tick:
    """It is `second` now; `stepped_back` says that the clock was turned back since the last."""

    second: int
    stepped_back: bool


class Ticker:
    """Waits for the next whole second. Seconds that passed during a stall are left out."""

    def __init__(self, now: Callable[[], float], wait: Callable[[float], bool]) -> None:
        """`wait` sleeps so many seconds and returns True when the agent is to stop."""
        self._now = now
        self._wait = wait
        self._last: int | None = None

    def next(self) -> Tick | None:
        """The next tick, or None when the agent is to stop."""
        while True:
            target = int(self._now()) + 1
            if self._last is not None and target == self._last:
                target += 1
            if self._wait(max(0.0, target - self._now())):
                return None
            if target - _EARLY_SECONDS <= self._now() < target + 1:
                stepped_back = self._last is not None and target < self._last
                self._last = target
                return Tick(target, stepped_back)
