"""From readings once a second to one row of figures every ten seconds, for one device."""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from flopwatch.metrics import SUBSAMPLE_PERIOD_SECONDS
from flopwatch_agent.choice import Choice, Chosen
from flopwatch_agent.collectors import (
    MINIMUM_READINGS,
    Collector,
    Folded,
    Happening,
    Reader,
    Value,
)
from flopwatch_agent.happenings import Gate
from flopwatch_agent.ticker import interval_end

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Interval:
    """What is known of one device over (end − 10 s, end].

    `readings` counts the seconds in which the device answered; `pids` are the processes that
    computed on it when the interval was closed. `happenings` are rare things, of before as well if
    no interval could tell them.
    """

    end: int
    readings: int
    values: dict[str, Value]
    pids: list[int]
    source: Chosen = field(default_factory=Chosen)
    happenings: list[Happening] = field(default_factory=list)

    @property
    def covered(self) -> bool:
        """True if there were readings enough to speak for the interval."""
        return self.readings >= MINIMUM_READINGS


class Worker:
    """One collector at one device: it is timed, and what breaks in it costs its own figures."""

    def __init__(self, collector: Collector, reader: Reader) -> None:
        self.name = collector.name
        self.is_activity = collector.rank is not None
        self._allowed_seconds = collector.cost_milliseconds / 1000
        self._reader = reader
        self._spent_seconds = 0.0
        self._readings = 0
        self._slow = False
        self._broken: str | None = None
        self._logged: str | None = None

    def read(self, second: int) -> bool:
        """Take a reading; True if the device answered."""
        begun = time.thread_time()
        try:
            return self._reader.read(second)
        # Logged with its traceback: a defect in one collector must not cost the others.
        except Exception as error:  # noqa: BLE001
            self._break(error)
            return False
        finally:
            self._spent_seconds += time.thread_time() - begun
            self._readings += 1

    def fold(self, end: int) -> Folded:
        """What the interval told, or that the collector is broken."""
        self._watch_cost()
        try:
            folded = self._reader.fold(end)
        except Exception as error:  # noqa: BLE001 - as above
            folded = Folded()
            self._break(error)
        broken, self._broken = self._broken, None
        folded.trouble = broken or folded.trouble
        return folded

    def close(self) -> None:
        """Give back what the reader holds."""
        self._reader.close()

    def _break(self, error: Exception) -> None:
        self._broken = f"broken: {type(error).__name__}: {error}"
        if self._broken != self._logged:
            _log.error("collector %s is broken", self.name, exc_info=error)
        self._logged = self._broken

    def _watch_cost(self) -> None:
        """Say, once, that readings take longer than the collector claims."""
        mean = self._spent_seconds / max(1, self._readings)
        slow = mean > self._allowed_seconds
        if slow and not self._slow:
            _log.warning("collector %s takes %.1f ms of CPU a reading", self.name, 1000 * mean)
        self._slow = slow
        self._spent_seconds, self._readings = 0.0, 0


class DeviceSampler:
    """Accumulates one device. Nothing is told of the interval in which it began to."""

    def __init__(self, workers: Sequence[Worker], list_pids: Callable[[], list[int]]) -> None:
        """`workers` of activity stand in the order in which they are preferred."""
        self._workers = workers
        self._choice = Choice([worker.name for worker in workers if worker.is_activity])
        self._reading = self._candidates()
        self._gate = Gate()
        self._happenings: list[Happening] = []
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
        self._readings += any([worker.read(second) for worker in self._reading])
        if second == end:
            closed += self._close(end)
            self._end = None
        return closed

    def close(self) -> None:
        """Let every reader give back what it holds."""
        for worker in self._workers:
            worker.close()

    def _candidates(self) -> list[Worker]:
        wanted = set(self._choice.candidates())
        return [each for each in self._workers if not each.is_activity or each.name in wanted]

    def _restart(self) -> None:
        """Forget the current interval: the clock was turned back, and it comes once more."""
        self._whole = False
        self._close(self._end or 0)
        self._end, self._whole = None, False

    def _close(self, end: int) -> list[Interval]:
        told = {worker.name: worker.fold(end) for worker in self._reading}
        for name, folded in told.items():
            self._happenings += self._gate.let_pass(name, folded.happenings)
        readings, self._readings = self._readings, 0
        if not self._whole:
            self._whole = True
            return []
        values: dict[str, Value] = {"source_period": float(SUBSAMPLE_PERIOD_SECONDS)}
        for worker in self._reading:
            if not worker.is_activity:
                values |= told.pop(worker.name).values
        source, activity = self._choice.settle(told)
        self._reading = self._candidates()
        values |= activity | {"subsample_count": float(readings)}
        if source.period_seconds is not None:
            values["source_period"] = source.period_seconds
        happenings, self._happenings = self._happenings, []
        return [Interval(end, readings, values, self._list_pids(), source, happenings)]
