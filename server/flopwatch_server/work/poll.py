"""Asking Slurm: the queue at every poll, accounting to close runs, reservations, shares."""

import logging
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import datetime, timedelta

from flopwatch_server.fleet.repository.clusters import ensure_cluster
from flopwatch_server.house import House
from flopwatch_server.jobs import service as jobs
from flopwatch_server.people import service as people
from flopwatch_server.scheduler.records import (
    FairShare,
    JobRecord,
    QueueRules,
    Reserving,
    Scheduler,
    SchedulerError,
)
from flopwatch_server.scheduler.repository import queue_rules, sources
from flopwatch_server.scheduler.repository.reservations import apply_reservations
from flopwatch_server.scheduler.service import SLURM_PARTITIONS, SLURM_QOS

log = logging.getLogger(__name__)
SOURCE = "slurm"
ACCOUNTING = "slurm accounting"
RESERVATIONS = "slurm reservations"
_OVERLAP = timedelta(minutes=10)
_FIRST_WINDOW = timedelta(hours=24)
_HISTORY = timedelta(days=30)
_HISTORY_WINDOW = timedelta(hours=6)  # of a busy site some ten thousand runs


class SlurmPoll:
    """The periodic questions to one cluster's Slurm.

    Each is noted for the pages: whether it was answered, and since when it is not. One that fails
    or takes long is asked less often.
    """

    def __init__(self, cluster: str, scheduler: Scheduler) -> None:
        self._cluster = cluster
        self._scheduler = scheduler

    def read_queue(self, house: House) -> None:
        """Bring pending and running jobs, their GPUs and the nodes up to date."""
        self._noting(house, SOURCE, self._read_queue)

    def close_runs(self, house: House) -> None:
        """Close runs that accounting says have ended. The windows overlap: slurmdbd may lag."""
        self._noting(house, ACCOUNTING, self._close_runs)

    def import_history(self, house: House) -> bool:
        """Take in runs that ended before the first poll, six hours at a time; whether more wait."""
        return bool(self._noting(house, ACCOUNTING, self._import_history))

    def read_shares(self, house: House) -> None:
        """Bring people, accounts and their fair share up to date, where there is who tells them."""
        teller = self._scheduler
        if isinstance(teller, FairShare):
            kind = people.SLURM_SHARES
            self._noting(house, kind, lambda *where: self._read_shares(teller, *where))

    def read_reservations(self, house: House) -> None:
        """Bring reservations up to date, where there is who tells them."""
        teller = self._scheduler
        if isinstance(teller, Reserving):
            self._noting(house, RESERVATIONS, lambda *where: _read_reservations(teller, *where))

    def read_queue_rules(self, house: House) -> None:
        """Bring partitions and QOS up to date, where there is who tells them."""
        teller = self._scheduler
        if isinstance(teller, QueueRules):
            self._noting(house, SLURM_PARTITIONS, lambda *where: _read_partitions(teller, *where))
            self._noting(house, SLURM_QOS, lambda *where: _read_qos(teller, *where))

    def read_version(self, house: House) -> None:
        """Remember which version the scheduler has; one that does not tell is asked again."""
        try:
            version = self._scheduler.version()
        except SchedulerError as error:
            log.warning("cluster %s: its version is not known: %s", self._cluster, error)
            return
        with house.database.session() as session:
            cluster_id = ensure_cluster(session, self._cluster, house.clock())
            sources.told_version(session, cluster_id, SOURCE, version)

    def _noting(
        self, house: House, kind: str, turn: Callable[[House, int], bool | None]
    ) -> bool | None:
        """What one turn answers; None where the scheduler failed, or has its rest."""
        began = house.clock()
        with house.database.session() as session:
            cluster_id = ensure_cluster(session, self._cluster, began)
            if sources.is_resting(session, cluster_id, kind, began):
                return None
        answer, error = None, None
        try:
            answer = turn(house, cluster_id)
        except SchedulerError as raised:
            log.warning("cluster %s: %s", self._cluster, raised)
            error = str(raised)
        now = house.clock()
        with house.database.session() as session:
            if error is None:
                sources.succeeded(session, cluster_id, kind, now, now - began)
            else:
                sources.failed(session, cluster_id, kind, error, now, now - began)
            sources.refused(session, cluster_id, self._scheduler.refusals(), now)
        return answer

    def _read_queue(self, house: House, cluster_id: int) -> None:
        queue = list(self._scheduler.queue())
        nodes = self._scheduler.nodes()
        with house.database.session() as session:
            started = jobs.starts_without_gpus(session, cluster_id, queue)
        held = self._scheduler.gpus(started) if started else {}
        told = [
            replace(job, gpus=held[job.raw_job_id]) if job.raw_job_id in held else job
            for job in queue
        ]
        with house.database.session() as session:
            jobs.apply_records(
                session, cluster_id, told, nodes, house.clock(), complete=True, source=SOURCE,
                all_nodes=True,
            )  # fmt: skip

    def _close_runs(self, house: House, cluster_id: int) -> None:
        now = house.clock()
        with house.database.session() as session:
            closed_until = sources.closed_until(session, cluster_id, ACCOUNTING)
        since = closed_until - _OVERLAP if closed_until else now - _FIRST_WINDOW
        self._take_ended(house, cluster_id, since)
        with house.database.session() as session:
            sources.closed(session, cluster_id, ACCOUNTING, now)

    def _import_history(self, house: House, cluster_id: int) -> bool:
        now = house.clock()
        with house.database.session() as session:
            known_from = sources.history_from(session, cluster_id, ACCOUNTING)
        until = known_from or now - _FIRST_WINDOW
        if until <= now - _HISTORY:
            return False
        since = until - _HISTORY_WINDOW
        self._take_ended(house, cluster_id, since, until)
        with house.database.session() as session:
            sources.imported(session, cluster_id, ACCOUNTING, since)
        return True

    def _read_shares(self, teller: FairShare, house: House, cluster_id: int) -> None:
        everybody = teller.people()
        shares = teller.shares()
        now = house.clock()
        with house.database.session() as session:
            people.apply_people(session, cluster_id, everybody, now, complete=True)
            people.apply_shares(session, cluster_id, shares, now)

    def _take_ended(
        self, house: House, cluster_id: int, since: datetime, until: datetime | None = None
    ) -> None:
        now = house.clock()
        ended = _only_ended(self._scheduler.ended(since, until), now)
        with house.database.session() as session:
            jobs.apply_records(session, cluster_id, ended, (), now, complete=False, source=SOURCE)


def _read_reservations(teller: Reserving, house: House, cluster_id: int) -> None:
    reservations = teller.reservations()
    with house.database.session() as session:
        apply_reservations(session, cluster_id, reservations, house.clock())


def _read_partitions(teller: QueueRules, house: House, cluster_id: int) -> None:
    partitions = teller.partitions()
    with house.database.session() as session:
        queue_rules.apply_partitions(session, cluster_id, partitions, house.clock())


def _read_qos(teller: QueueRules, house: House, cluster_id: int) -> None:
    qos = teller.qos()
    with house.database.session() as session:
        queue_rules.apply_qos(session, cluster_id, qos, house.clock())


def _only_ended(records: Iterable[JobRecord], now: datetime) -> list[JobRecord]:
    return [job for job in records if job.ended_at is not None and job.ended_at <= now]
