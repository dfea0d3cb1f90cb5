"""A brake on guessing."""

import time
from collections import defaultdict
from collections.abc import Callable


class Throttle:
    """At most `limit` failures in `window_seconds` per address and per name."""

    def __init__(
        self, limit: int, window_seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._limit = limit
        self._window = window_seconds
        self._clock = clock
        self._failures: dict[str, list[float]] = defaultdict(list)

    def allows(self, address: str, name: str) -> bool:
        """Whether another try is allowed now."""
        return all(self._recent(key) < self._limit for key in _keys(address, name))

    def count(self, address: str, name: str) -> None:
        """Remember one failure."""
        if len(self._failures) > 10_000:
            self._failures.clear()
        for key in _keys(address, name):
            self._failures[key].append(self._clock())

    def _recent(self, key: str) -> int:
        if key not in self._failures:
            return 0
        oldest = self._clock() - self._window
        self._failures[key] = [at for at in self._failures[key] if at > oldest]
        return len(self._failures[key])


def _keys(address: str, name: str) -> tuple[str, str]:
    return f"address {address}", f"name {name}"
