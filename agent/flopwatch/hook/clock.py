"""Where the time of a training process goes: between optimizer steps, and into phases.

Train MFU is FLOPs over time, so both must be taken from the same windows. A window opens at the
end of one optimizer step and closes at the end of the next. The first step has no step before it:
its length is not known (start-up, compilation and warm-up stand before it), so neither its time nor
its FLOPs count. Data loading lies inside windows; phases are cut out of them. Work after the last
step lies in no closed window and does not count either.
"""

import time
from collections.abc import Callable

from flopwatch.wire import as_text

MAX_PHASES = 32
"""Distinct phase names that are reported; the time of further ones goes to "other"."""

_MAX_NAME_CHARACTERS = 64


class Clock:
    """Books wall time. `train_seconds` grows only when a window closes."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._started = self._booked_until = now()
        self._open_window: float | None = None
        self._phases: list[str] = []
        self.train_seconds = 0.0
        self.phase_seconds: dict[str, float] = {}

    @property
    def elapsed_seconds(self) -> float:
        """Seconds since the clock was made."""
        return self._now() - self._started

    @property
    def in_phase(self) -> bool:
        """Whether a phase runs, which is no training."""
        return bool(self._phases)

    def close_window(self) -> bool:
        """An optimizer step has ended: close the open window, if any, and open the next.

        Return whether a window was closed, that is, whether what was done since counts.
        """
        self._book()
        seconds, self._open_window = self._open_window, 0.0
        if seconds is None:
            return False
        self.train_seconds += seconds
        return True

    def enter_phase(self, name: str) -> None:
        """From now on time goes to this phase, until it is left; phases may nest."""
        self._book()
        name = as_text(name)[:_MAX_NAME_CHARACTERS] or "unnamed"
        known = name in self.phase_seconds or len(self.phase_seconds) < MAX_PHASES
        self._phases.append(name if known else "other")

    def leave_phase(self) -> None:
        """The innermost phase ends."""
        self._book()
        self._phases.pop()

    def _book(self) -> None:
        now = self._now()
        seconds, self._booked_until = now - self._booked_until, now
        if self._phases:
            name = self._phases[-1]
            self.phase_seconds[name] = self.phase_seconds.get(name, 0.0) + seconds
        elif self._open_window is not None:
            self._open_window += seconds
