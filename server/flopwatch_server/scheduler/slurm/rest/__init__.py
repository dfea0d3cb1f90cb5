"""Slurm, read through slurmrestd: an equal way where its commands are not at hand."""

from collections.abc import Sequence
from datetime import UTC, datetime

from flopwatch_server.scheduler.records import JobRecord, NodeGpus, NodeRecord, Refusal
from flopwatch_server.scheduler.slurm.refusals import Refusals
from flopwatch_server.scheduler.slurm.rest.accounting import parse_ended
from flopwatch_server.scheduler.slurm.rest.client import Client
from flopwatch_server.scheduler.slurm.rest.jobs import parse_queue
from flopwatch_server.scheduler.slurm.rest.nodes import parse_nodes
from flopwatch_server.scheduler.slurm.rest.version import parse_version
from flopwatch_server.scheduler.slurm.table import Answer

__all__ = ["Client", "SlurmRest"]


class SlurmRest:
    """One Slurm cluster, as records.Scheduler wants it; see `Slurm` for what is left out."""

    def __init__(self, cluster: str, client: Client) -> None:
        self.cluster = cluster
        self._client = client
        self._refusals = Refusals(cluster)

    def queue(self) -> Sequence[JobRecord]:
        """All pending and running jobs, with their GPUs."""
        return self._refusals.sift("queue", parse_queue(self._client.ask("slurm", "jobs")))

    def gpus(self, started: Sequence[JobRecord]) -> dict[int, tuple[NodeGpus, ...]]:
        """The GPUs that the queue told of these jobs: there is no more to ask for."""
        return {job.raw_job_id: job.gpus for job in started if job.gpus is not None}

    def ended(self, since: datetime, until: datetime | None = None) -> Sequence[JobRecord]:
        """Runs that ended at or after `since`, each once.

        Measured on 22.05 and 24.11: a job that was cancelled while it was held is told only where
        the cancelled are asked for, and 24.11 can't be asked for several states at once.
        """
        end = until or datetime.now(UTC)
        window = {"start_time": _unix(since), "end_time": _unix(end), "skip_steps": "true"}
        found: Answer[JobRecord] = Answer()
        for which in ({}, {"state": "CANCELLED"}):
            told = parse_ended(self._client.ask("slurmdb", "jobs", **window, **which), since)
            found.records += told.records
            found.refused += told.refused
        runs = {(record.raw_job_id, record.submitted_at): record for record in found.records}
        found.records = list(runs.values())
        return self._refusals.sift("ended", found)

    def nodes(self) -> Sequence[NodeRecord]:
        """All nodes and their states."""
        return self._refusals.sift("nodes", parse_nodes(self._client.ask("slurm", "nodes")))

    def version(self) -> str:
        """The version of slurmrestd, which is that of the cluster or near it."""
        return parse_version(self._client.ask("slurm", "ping"))

    def refusals(self) -> Sequence[Refusal]:
        """What was left out since this was last asked, by call and field."""
        return self._refusals.told()


def _unix(time: datetime) -> str:
    """A time in the one form that every version takes: 22.05 refuses a bare number."""
    return f"uts{int(time.timestamp())}"
