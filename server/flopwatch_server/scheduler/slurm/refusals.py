"""Records of unknown shape: left out, logged, and remembered until somebody asks."""

import logging
from collections.abc import Sequence
from typing import TypeVar

from flopwatch_server.scheduler.records import Refusal, SchedulerError
from flopwatch_server.scheduler.slurm.table import Answer

Record = TypeVar("Record")
log = logging.getLogger(__name__)


class Refusals:
    """What could not be read of one cluster's answers, by call and field."""

    def __init__(self, cluster: str) -> None:
        self._cluster = cluster
        self._refusals: dict[tuple[str, str], Refusal] = {}

    def sift(self, call: str, answer: Answer[Record]) -> list[Record]:
        """The records that could be read.

        Raises SchedulerError naming the field where none could, though there were some.
        """
        for error in answer.refused:
            known = self._refusals.get((call, error.field))
            count = known.count + 1 if known else 1
            self._refusals[call, error.field] = Refusal(call, error.field, str(error), count)
        if answer.refused:
            first, number = answer.refused[0], len(answer.refused)
            if not answer.records:
                raise SchedulerError(f"{self._cluster}: {call}: no record can be read: {first}")
            log.warning("%s: %s: left out %d records: %s", self._cluster, call, number, first)
        return answer.records

    def told(self) -> Sequence[Refusal]:
        """All since this was last asked."""
        told, self._refusals = list(self._refusals.values()), {}
        return told
