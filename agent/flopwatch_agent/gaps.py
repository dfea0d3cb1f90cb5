"""What was lost for good and the server does not know yet."""

import contextlib
import json
import logging
import os
import threading
from dataclasses import asdict
from itertools import chain
from pathlib import Path

from flopwatch.wire import Gap
from flopwatch_agent.segment import private

_log = logging.getLogger(__name__)

MOST_GAPS = 1000
MOST_AT_ONCE = 100
"""A batch of a node with many MIG instances may not tell more (the server counts per device)."""


class GapBook:
    """Keeps each gap, on disk too, until the server has a batch that tells it.

    A gap waits until `take`, then travels in a batch: `carried`, and at last `delivered`, or
    `returned` where that batch is lost itself. After a restart all of them wait again; a gap told
    twice is one to the server.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()  # never held while the disk works
        self._waiting: list[Gap] = []
        self._taken: list[Gap] = []
        self._carried: dict[int, list[Gap]] = {}
        self._saved = "[]"

    def load(self) -> None:
        """Read what an earlier life left; raise OSError where the disk does not let us."""
        try:
            text = self._path.read_text()
            told = [_checked(Gap(**entry)) for entry in json.loads(text)]
        except FileNotFoundError:
            return
        except (TypeError, ValueError) as error:
            _log.error("%s is spoilt, gaps in it are forgotten: %s", self._path, error)
            return
        with self._lock:
            self._waiting = told + self._waiting
            self._saved = text

    def note(self, gap: Gap) -> None:
        """Something is lost; a gap is joined to its neighbour of the same cause."""
        with self._lock:
            self._note(gap)

    def take(self) -> list[Gap]:
        """Gaps for the next batch to tell."""
        with self._lock:
            taken, self._waiting = self._waiting[:MOST_AT_ONCE], self._waiting[MOST_AT_ONCE:]
            self._taken += taken
            return taken

    def carried(self, sequence: int, gaps: list[Gap]) -> None:
        """The batch of this sequence tells these gaps: taken ones, or others."""
        with self._lock:
            self._taken = [gap for gap in self._taken if gap not in gaps]
            if gaps:
                self._carried[sequence] = list(gaps)

    def delivered(self, sequence: int) -> None:
        """The server has that batch."""
        with self._lock:
            self._carried.pop(sequence, None)

    def returned(self, sequence: int) -> None:
        """That batch is lost."""
        with self._lock:
            for gap in self._carried.pop(sequence, ()):
                self._note(gap)

    def save(self) -> None:
        """Bring the file up to date; where the disk refuses, the next call tries again."""
        with self._lock:
            every = [*self._waiting, *self._taken, *chain(*self._carried.values())]
        text = json.dumps([asdict(gap) for gap in every])
        if text == self._saved:
            return
        fresh = self._path.with_suffix(".tmp")
        try:
            with open(fresh, "w", opener=private) as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            fresh.replace(self._path)
            self._saved = text
        except OSError as error:
            _log.warning("gaps can't be kept in %s: %s", self._path, error)
            with contextlib.suppress(OSError):
                fresh.unlink(missing_ok=True)

    def _note(self, gap: Gap) -> None:
        for known in self._waiting:
            if known.cause == gap.cause and known.end >= gap.start and gap.end >= known.start:
                known.start, known.end = min(known.start, gap.start), max(known.end, gap.end)
                return
        self._waiting.append(gap)
        if len(self._waiting) > MOST_GAPS:  # exact no more, but bounded
            first, second = self._waiting[:2]
            start, end = min(first.start, second.start), max(first.end, second.end)
            self._waiting[:2] = [Gap(start, end, "many gaps")]


def _checked(gap: Gap) -> Gap:
    """The gap; raise TypeError where a value is of another type than it should be."""
    times = isinstance(gap.start, float | int) and isinstance(gap.end, float | int)
    if not times or not isinstance(gap.cause, str) or not isinstance(gap.device, int | None):
        raise TypeError(f"{gap} is no gap")
    return gap
