"""Slurm, read through its own commands, 22.05 and newer."""

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import TypeVar

from flopwatch_server.scheduler.records import (
    JobRecord,
    NodeGpus,
    NodeRecord,
    People,
    SchedulerError,
    ShareRecord,
)
from flopwatch_server.scheduler.slurm.accounting import read_ended
from flopwatch_server.scheduler.slurm.accounts import read_associations, read_users
from flopwatch_server.scheduler.slurm.client import Client, Runner, run_command
from flopwatch_server.scheduler.slurm.detail import read_gpus
from flopwatch_server.scheduler.slurm.nodes import read_nodes
from flopwatch_server.scheduler.slurm.queue import read_queue
from flopwatch_server.scheduler.slurm.shares import read_shares
from flopwatch_server.scheduler.slurm.table import Answer

__all__ = ["Slurm"]

Record = TypeVar("Record")
log = logging.getLogger(__name__)


class Slurm:
    """One Slurm cluster, as records.Scheduler wants it.

    A record of unknown shape is left out, logged and counted in `refused` by the call that it came
    from; when not one record of an answer can be read, the call raises SchedulerError naming the
    field. `environment` (SLURM_CONF, PATH) is laid over this process's own.
    """

    def __init__(
        self,
        cluster: str,
        environment: Mapping[str, str] | None = None,
        run: Runner = run_command,
    ) -> None:
        self.cluster = cluster
        self.refused: Counter[str] = Counter()
        self._client = Client(environment, run)

    def queue(self) -> Sequence[JobRecord]:
        """All pending and running jobs, without `gpus`; suspended time comes from ended()."""
        return self._records("queue", read_queue(self._client))

    def gpus(self, raw_job_ids: Iterable[int]) -> dict[int, tuple[NodeGpus, ...]]:
        """The GPUs of these jobs, () for a job without any; a job that has ended is missing."""
        return dict(self._records("gpus", read_gpus(self._client, raw_job_ids)))

    def ended(self, since: datetime) -> Sequence[JobRecord]:
        """Runs that ended at or after `since`, each once; `restarts` comes from queue()."""
        return self._records("ended", read_ended(self._client, since))

    def nodes(self) -> Sequence[NodeRecord]:
        """All nodes and their states."""
        return self._records("nodes", read_nodes(self._client))

    def people(self) -> People:
        """All associations, and the users that have one on this cluster; slurmdbd must run."""
        associations = self._records("associations", read_associations(self._client))
        names = {association.user for association in associations}
        users = self._records("users", read_users(self._client))
        return People(tuple(associations), tuple(user for user in users if user.name in names))

    def shares(self) -> Sequence[ShareRecord]:
        """The fair share of all associations; PriorityType must be priority/multifactor."""
        return self._records("shares", read_shares(self._client))

    def _records(self, call: str, answer: Answer[Record]) -> list[Record]:
        if answer.refused:
            self.refused[call] += len(answer.refused)
            first = answer.refused[0]
            if not answer.records:
                raise SchedulerError(f"{self.cluster}: {call}: no record can be read: {first}")
            log.warning(
                "%s: %s: left out %d records: %s", self.cluster, call, len(answer.refused), first
            )
        return answer.records
