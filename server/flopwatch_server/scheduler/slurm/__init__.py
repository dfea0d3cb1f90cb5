"""Slurm, read through its own commands, 21.08 and newer."""

import logging
from collections.abc import Mapping, Sequence
from datetime import datetime

from flopwatch_server.scheduler.records import (
    JobRecord,
    NodeGpus,
    NodeRecord,
    PartitionRecord,
    People,
    QosRecord,
    Refusal,
    ReservationRecord,
    SchedulerError,
    ShareRecord,
)
from flopwatch_server.scheduler.slurm import detail, detail_text
from flopwatch_server.scheduler.slurm.accounting import read_ended
from flopwatch_server.scheduler.slurm.accounts import read_associations, read_users
from flopwatch_server.scheduler.slurm.client import Client, Runner, run_command
from flopwatch_server.scheduler.slurm.nodes import read_nodes
from flopwatch_server.scheduler.slurm.partitions import read_partitions
from flopwatch_server.scheduler.slurm.qos import read_qos
from flopwatch_server.scheduler.slurm.queue import Queue
from flopwatch_server.scheduler.slurm.refusals import Refusals
from flopwatch_server.scheduler.slurm.reservations import read_reservations
from flopwatch_server.scheduler.slurm.shares import read_shares

__all__ = ["Slurm"]

log = logging.getLogger(__name__)


class Slurm:
    """One Slurm cluster, as records.Scheduler wants it.

    A record of unknown shape is left out, logged, and told by `refusals`; when not one record of an
    answer can be read, the call raises SchedulerError naming the field. `environment` (SLURM_CONF,
    PATH) is laid over this process's own.
    """

    def __init__(
        self,
        cluster: str,
        environment: Mapping[str, str] | None = None,
        run: Runner = run_command,
    ) -> None:
        self.cluster = cluster
        self._client = Client(environment, run)
        self._queue = Queue(self._client)
        self._refusals = Refusals(cluster)
        self._has_json = True

    def queue(self) -> Sequence[JobRecord]:
        """All pending and running jobs, without `gpus`; suspended time comes from ended()."""
        return self._refusals.sift("queue", self._queue.read())

    def gpus(self, started: Sequence[JobRecord]) -> dict[int, tuple[NodeGpus, ...]]:
        """The GPUs of these jobs, () for a job without any; a job that has ended is missing.

        Where Slurm has no JSON, many at once are asked for in several calls.
        """
        if self._has_json:
            try:
                return dict(self._refusals.sift("gpus", detail.read_gpus(self._client, started)))
            except SchedulerError as error:
                told = detail_text.read_gpus(self._client, started)  # raises where Slurm is down
                log.warning("%s: %s: reading scontrol from now on", self.cluster, error)
                self._has_json = False
        else:
            told = detail_text.read_gpus(self._client, started)
        return dict(self._refusals.sift("gpus", told))

    def ended(self, since: datetime, until: datetime | None = None) -> Sequence[JobRecord]:
        """Runs that ended at or after `since`, each once; `restarts` comes from queue()."""
        return self._refusals.sift("ended", read_ended(self._client, since, until))

    def nodes(self) -> Sequence[NodeRecord]:
        """All nodes and their states."""
        return self._refusals.sift("nodes", read_nodes(self._client))

    def reservations(self) -> Sequence[ReservationRecord]:
        """All reservations of nodes that are in force or will be."""
        return self._refusals.sift("reservations", read_reservations(self._client))

    def people(self) -> People:
        """All associations, and the users that have one on this cluster; slurmdbd must run."""
        associations = self._refusals.sift("associations", read_associations(self._client))
        names = {association.user for association in associations}
        users = self._refusals.sift("users", read_users(self._client))
        return People(tuple(associations), tuple(user for user in users if user.name in names))

    def shares(self) -> Sequence[ShareRecord]:
        """The fair share of all associations; PriorityType must be priority/multifactor."""
        return self._refusals.sift("shares", read_shares(self._client))

    def partitions(self) -> Sequence[PartitionRecord]:
        """All partitions and their limits."""
        return self._refusals.sift("partitions", read_partitions(self._client))

    def qos(self) -> Sequence[QosRecord]:
        """All QOS and their limits; slurmdbd must run."""
        return self._refusals.sift("qos", read_qos(self._client))

    def version(self) -> str:
        """The version of the commands, which is that of the cluster or near it."""
        return self._client.ask("sinfo", "--version").split()[-1]  # "slurm-wlm 22.05.8"

    def refusals(self) -> Sequence[Refusal]:
        """What was left out since this was last asked, by call and field."""
        return self._refusals.told()
