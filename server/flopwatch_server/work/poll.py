"""Asking Slurm: the queue every poll, the GPUs once for every start, accounting to close."""

import logging
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import datetime, timedelta

from flopwatch_server.fleet.repository.clusters import ensure_cluster
from flopwatch_server.house import House
from flopwatch_server.jobs import service as jobs
from flopwatch_server.scheduler.records import JobRecord, Scheduler, SchedulerError
from flopwatch_server.scheduler.repository import sources

log = logging.getLogger(__name__)
SOURCE = "slurm"
_OVERLAP = timedelta(minutes=10)
_FIRST_WINDOW = timedelta(hours=24)


class SlurmPoll:
    """The two periodic questions to one cluster's Slurm."""

    def __init__(self, cluster: str, scheduler: Scheduler) -> None:
        self._cluster = cluster
        self._scheduler = scheduler

    def read_queue(self, house: House) -> None:
        """Bring pending and running jobs, their GPUs and the nodes up to date."""
        self._noting(house, self._read_queue)

    def close_runs(self, house: House) -> None:
        """Close runs that accounting says have ended. The windows overlap: slurmdbd may lag."""
        self._noting(house, self._close_runs)

    def _noting(self, house: House, turn: Callable[[House, int], None]) -> None:
        """Run one turn and keep for the pages whether the scheduler answered."""
        with house.database.session() as session:
            cluster_id = ensure_cluster(session, self._cluster, house.clock())
        try:
            turn(house, cluster_id)
        except SchedulerError as error:
            log.warning("cluster %s: %s", self._cluster, error)
            with house.database.session() as session:
                sources.failed(session, cluster_id, SOURCE, str(error), house.clock())
        else:
            with house.database.session() as session:
                sources.succeeded(session, cluster_id, SOURCE, house.clock())

    def _read_queue(self, house: House, cluster_id: int) -> None:
        queue = list(self._scheduler.queue())
        nodes = self._scheduler.nodes()
        with house.database.session() as session:
            starts = jobs.starts_without_gpus(session, cluster_id, queue)
        held = self._scheduler.gpus(starts) if starts else {}
        told = [
            replace(job, gpus=held[job.raw_job_id]) if job.raw_job_id in held else job
            for job in queue
        ]
        with house.database.session() as session:
            jobs.apply_records(
                session, cluster_id, told, nodes, house.clock(), complete=True, source=SOURCE
            )

    def _close_runs(self, house: House, cluster_id: int) -> None:
        now = house.clock()
        with house.database.session() as session:
            closed_until = sources.closed_until(session, cluster_id, SOURCE)
        since = closed_until - _OVERLAP if closed_until else now - _FIRST_WINDOW
        ended = _only_ended(self._scheduler.ended(since), now)
        with house.database.session() as session:
            jobs.apply_records(session, cluster_id, ended, (), now, complete=False, source=SOURCE)
            sources.closed(session, cluster_id, SOURCE, now)


def _only_ended(records: Iterable[JobRecord], now: datetime) -> list[JobRecord]:
    return [job for job in records if job.ended_at is not None and job.ended_at <= now]
