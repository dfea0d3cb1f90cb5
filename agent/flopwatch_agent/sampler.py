"""From readings once a second to one row of figures every ten seconds, for one device."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from flopwatch_agent.collectors import MINIMUM_READINGS, Reader, Value
from flopwatch_agent.ticker import interval_end


@dataclass(frozen=True)
class Interval:
    """What is known of one device over (end − 10 s, end].

    `readings` counts the seconds in which the device answered; `pids` are the processes that
    computed on it when the interval was closed.
    """

    end: int
    readings: int
    values: dict[str, Value]
    pids: list[int]

    @property
    def covered(self) -> bool:
        """True if there were readings enough to speak for the interval."""
        return self.readings >= MINIMUM_READINGS


class DeviceSampler:
    """Accumulates one device. Nothing is told of the interval in which it began to."""

    def __init__(self, readers: Sequence[Reader], list_pids: Callable[[], list[int]]) -> None:
        self._readers = readers
        self._list_pids = list_pids
        self._last: int | None = None
        self._end: int | None = None
        self._whole = False
        self._readings = 0

    def tick(self, second: int) -> list[Interval]:
        """Read the device; return the intervals that this closes, none or one as a rule.

        When the tick that should have closed an interval never came, the next one closes it.
        """
        if self._last is not None and second <= self._last:
            self._restart()
        self._last = second
        end = interval_end(second)
        closed = []
        if self._end is not None and end > self._end:
            closed += self._close(self._end)
        self._end = end
        # A list, not a generator: every reader reads, whatever the first one says.
        self._readings += any([reader.read(second) for reader in self._readers])
        if second == end:
            closed += self._close(end)
            self._end = None
        return closed

    def close(self) -> None:
        """Let every reader give back what it holds."""
        for reader in self._readers:
            reader.close()

    def _restart(self) -> None:
        """Forget the current interval: the clock was turned back, and it comes once more."""
        self._close(self._end or 0)
        self._end, self._whole = None, False

    def _close(self, end: int) -> list[Interval]:
        values: dict[str, Value] = {}
        for reader in self._readers:
            values |= reader.fold(end)
        values["subsample_count"] = float(self._readings)
        interval = Interval(end, self._readings, values, self._list_pids())
        whole, self._whole, self._readings = self._whole, True, 0
        return [interval] if whole else []
