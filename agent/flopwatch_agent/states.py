"""Which metrics have no value, and why: told when it changes, and in full at the start."""

from collections.abc import Mapping

from flopwatch.metrics import COLUMNS, Reason
from flopwatch.wire import Missing
from flopwatch_agent.inventory import Key
from flopwatch_agent.sampler import Interval


class MetricStates:
    """Remembers for every device and metric what the server was told."""

    def __init__(self) -> None:
        self._told: dict[tuple[Key, str], Reason | None] = {}

    def of_interval(
        self, key: Key, index: Mapping[Key, int], interval: Interval, since: float
    ) -> list[Missing]:
        """What an interval changes. `index` gives a device's place in the batch."""
        states = {metric: _reason(interval, metric) for metric in COLUMNS}
        return self._changes(key, index, states, since)

    def of_stuck(self, key: Key, index: Mapping[Key, int], since: float) -> list[Missing]:
        """All figures of a device are stale whose driver call does not return."""
        return self._changes(key, index, dict.fromkeys(COLUMNS, "stale"), since)

    def forget(self) -> None:
        """Tell everything again: a batch that told some of it was lost."""
        self._told.clear()

    def _changes(
        self,
        key: Key,
        index: Mapping[Key, int],
        states: Mapping[str, Reason | None],
        since: float,
    ) -> list[Missing]:
        changes: list[Missing] = []
        if key not in index:
            return changes
        for metric, reason in states.items():
            if self._told.get((key, metric), "never told") != reason:
                self._told[key, metric] = reason
                changes.append(Missing(index[key], metric, reason, since))
        return changes


def _reason(interval: Interval, metric: str) -> Reason | None:
    value = interval.values.get(metric, "unsupported")
    if isinstance(value, str):
        return value
    return None if interval.covered else "stale"
