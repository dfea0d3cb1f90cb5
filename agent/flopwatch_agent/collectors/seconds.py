"""What the one-second readings inside an interval tell: extremes, and the share of stalled ones."""

from flopwatch.metrics import ENGINE_LOW_THRESHOLD
from flopwatch_agent.collectors import FOLDED_METRICS, MINIMUM_READINGS, Value


class Seconds:
    """Engine and SM activity of one device, second by second, until they are folded."""

    def __init__(self) -> None:
        self._engine: list[float] = []
        self._sm: list[float] = []

    def keep(self, engine_active: Value, sm_active: Value) -> None:
        """Take in one second; reasons are none of its values."""
        if not isinstance(engine_active, str):
            self._engine.append(engine_active)
        if not isinstance(sm_active, str):
            self._sm.append(sm_active)

    def fold(self, means: dict[str, Value]) -> dict[str, Value]:
        """The folded metrics; without enough seconds the reason of the mean, or "stale"."""
        folded: dict[str, Value] = {}
        for metric, of in FOLDED_METRICS.items():
            mean = means[of]
            folded[metric] = mean if isinstance(mean, str) else "stale"
        if len(self._engine) >= MINIMUM_READINGS:
            low = sum(value < ENGINE_LOW_THRESHOLD for value in self._engine)
            folded["engine_low_share"] = low / len(self._engine)
        if len(self._sm) >= MINIMUM_READINGS:
            folded |= {"sm_min": min(self._sm), "sm_max": max(self._sm)}
        self._engine.clear()
        self._sm.clear()
        return folded
