"""Which of a device's activity collectors its figures come from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from flopwatch.metrics import SAMPLE_PERIOD_SECONDS
from flopwatch_agent.collectors import FOLDED_METRICS, WINDOW_METRICS, Folded, Value

TAKE_BACK_INTERVALS = 3
"""A better source that failed must tell for so long before it is trusted again."""


@dataclass(frozen=True)
class Chosen:
    """The collector of one interval, and of each one before it why it was not taken.

    `name` and `period_seconds` are None where none could tell.
    """

    name: str | None = None
    period_seconds: float | None = None
    passed_over: dict[str, str] = field(default_factory=dict)


class Choice:
    """Takes the first that works, leaves one that fails, and goes back with some patience.

    An interval has one source: a source is read for whole intervals, so what begins to be read now
    can't be taken before the next one has ended.
    """

    def __init__(self, names: Sequence[str]) -> None:
        """`names` of the collectors, the best first."""
        self._names = names
        self._current: str | None = None
        self._told_for = dict.fromkeys(names, 0)

    def candidates(self) -> Sequence[str]:
        """Those that must be read: up to the current one, all of them while there is none."""
        if self._current is None:
            return self._names
        return self._names[: self._names.index(self._current) + 1]

    def settle(self, told: Mapping[str, Folded]) -> tuple[Chosen, dict[str, Value]]:
        """Choose for the interval in which the candidates told this; the figures to keep."""
        for name in self._names:
            good = name in told and told[name].trouble is None
            self._told_for[name] = self._told_for[name] + 1 if good else 0
        self._current = self._next()
        before = [name for name in self.candidates() if name != self._current and name in told]
        passed_over = {name: self._why_not(name, told[name]) for name in before}
        if self._current is None:
            return Chosen(passed_over=passed_over), _reasons(told)
        folded = told[self._current]
        return Chosen(self._current, folded.period_seconds, passed_over), folded.values

    def _next(self) -> str | None:
        """The first that told now; beside a current one that still tells, only if it is steady."""
        stays = self._current is not None and self._told_for[self._current] > 0
        needed = TAKE_BACK_INTERVALS if stays else 1
        for name in self._names:
            if self._told_for[name] >= (1 if name == self._current else needed):
                return name
        return None

    def _why_not(self, name: str, folded: Folded) -> str:
        if folded.trouble is not None:
            return folded.trouble
        seconds = self._told_for[name] * SAMPLE_PERIOD_SECONDS
        return f"tells again for {seconds} s, is taken back after a while"


def _reasons(told: Mapping[str, Folded]) -> dict[str, Value]:
    """Why there is no activity: what a source said that is more than "unsupported"."""
    values: dict[str, Value] = {}
    for metric in (*WINDOW_METRICS, *FOLDED_METRICS):
        said = [folded.values.get(metric, "absent") for folded in told.values()]
        reasons = [each if isinstance(each, str) else "stale" for each in said]
        values[metric] = next((each for each in reasons if each != "unsupported"), "unsupported")
    return values
