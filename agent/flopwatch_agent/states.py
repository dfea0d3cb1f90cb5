"""Which metrics have no value, where activity comes from, and what can be seen on the node.

Told when it changes, and in full at the start.
"""

from collections.abc import Mapping

from flopwatch.metrics import COLUMNS, Reason
from flopwatch.wire import Missing, Source
from flopwatch_agent.choice import Chosen
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


class SourceStates:
    """Remembers for every device which source the server was told of."""

    def __init__(self) -> None:
        self._told: dict[Key, Chosen] = {}

    def of_interval(
        self, key: Key, index: Mapping[Key, int], interval: Interval, since: float
    ) -> list[Source]:
        """What an interval changes."""
        chosen = interval.source
        if key not in index or self._told.get(key) == chosen:
            return []
        self._told[key] = chosen
        passed_over = dict(chosen.passed_over)
        return [Source(index[key], chosen.name, chosen.period_seconds, since, passed_over)]

    def forget(self) -> None:
        """Tell everything again: a batch that told some of it was lost, or a new epoch began."""
        self._told.clear()


class Capabilities:
    """Remembers what the server was told that can be seen on the node."""

    def __init__(self) -> None:
        self._told: dict[str, str] = {}

    def of_node(self, found: Mapping[str, str]) -> Mapping[str, str]:
        """All that can be seen, if the server does not know it yet."""
        if found == self._told:
            return {}
        self._told = dict(found)
        return found

    def forget(self) -> None:
        """Tell everything again: a batch that told it was lost, or a new epoch began."""
        self._told.clear()


def _reason(interval: Interval, metric: str) -> Reason | None:
    value = interval.values.get(metric, "absent")
    if isinstance(value, str):
        return value
    return None if interval.covered else "stale"
