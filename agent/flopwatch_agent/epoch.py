"""The agent's epoch: with it no clock can make two samples one."""

import contextlib
import logging
import os
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

from flopwatch.wire import Epoch

_log = logging.getLogger(__name__)


class EpochCounter:
    """Draws a larger number at every start and every backward step of the clock.

    The number is kept in the spool folder. It is never below the seconds since 1970 at which it was
    drawn, so it grows even when that folder was lost or can't be written.
    """

    def __init__(self, folder: Path, proc: Path, now: Callable[[], float]) -> None:
        self._path = folder / "epoch"
        self._now = now
        self._boot_id = (proc / "sys/kernel/random/boot_id").read_text().strip()
        self.current = self.advance()

    def advance(self) -> Epoch:
        """Begin a new epoch, remember its number and return it."""
        started_at = self._now()
        number = max(self._stored() + 1, int(started_at))
        self._store(number)
        self.current = Epoch(self._boot_id, number, started_at, version("flopwatch"))
        return self.current

    def _stored(self) -> int:
        try:
            return int(self._path.read_text())
        except FileNotFoundError:
            return 0
        except (OSError, ValueError) as error:
            _log.warning("the last epoch can't be read (%s): the clock stands in", error)
            return 0

    def _store(self, number: int) -> None:
        fresh = self._path.with_suffix(".tmp")
        try:
            with fresh.open("w") as file:
                file.write(f"{number}\n")
                file.flush()
                os.fsync(file.fileno())
            fresh.replace(self._path)
        except OSError as error:
            _log.warning("the epoch can't be kept in %s: %s", self._path, error)
            with contextlib.suppress(OSError):
                fresh.unlink(missing_ok=True)
