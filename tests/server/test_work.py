"""Periodic work: every task gets its turns, whatever the others do."""

import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import select

from flopwatch_server.house import House
from flopwatch_server.jobs.models import Run
from flopwatch_server.scheduler.models import SchedulerSource
from flopwatch_server.scheduler.records import (
    JobRecord,
    NodeGpus,
    NodeRecord,
    SchedulerError,
)
from flopwatch_server.work.poll import SlurmPoll
from flopwatch_server.work.runner import Runner, run_once
from flopwatch_server.work.tasks import Task

T0 = datetime(2026, 3, 12, 9, 0, tzinfo=UTC)


def test_a_task_that_fails_gets_its_next_turn_and_stops_no_other(house: House) -> None:
    turns: list[str] = []
    enough = threading.Event()

    def fails(house: House) -> None:
        turns.append("fails")
        if turns.count("fails") >= 3 and turns.count("works") >= 3:
            enough.set()
        raise RuntimeError("the task's own fault")

    def works(house: House) -> None:
        turns.append("works")

    runner = Runner([Task("fails", 0.01, fails), Task("works", 0.01, works)], house)
    runner.start()
    try:
        assert enough.wait(30)
    finally:
        runner.stop()


def test_a_stop_waits_for_one_call_and_not_for_a_whole_backlog(house: House) -> None:
    several, is_done = threading.Event(), threading.Event()
    calls: list[str] = []

    def endless(house: House) -> bool:
        calls.append("call")
        if len(calls) == 3:
            several.set()
        return not is_done.is_set()

    runner = Runner([Task("endless", 3600, endless)], house)
    runner.start()
    stop = threading.Thread(target=runner.stop)
    try:
        assert several.wait(30)  # with no period between the calls
        stop.start()
        stop.join(30)
        assert not stop.is_alive()
    finally:
        is_done.set()


def test_two_servers_on_one_database_do_not_do_the_same_work_at_once(house: House) -> None:
    inside = threading.Event()
    leave = threading.Event()
    results: list[bool] = []

    def slow(house: House) -> None:
        inside.set()
        leave.wait(30)

    def never() -> bool:
        return False

    task = Task("slow", 1, slow)
    first = threading.Thread(target=lambda: results.append(run_once(task, house, never)))
    first.start()
    assert inside.wait(30)
    assert run_once(task, house, never) is False
    leave.set()
    first.join()
    assert results == [True]
    assert run_once(task, house, never) is True


class ToldSlurm:
    """A scheduler that answers what the test tells it, or fails."""

    def __init__(self) -> None:
        self.jobs: list[JobRecord] = []
        self.closed: list[JobRecord] = []
        self.held: dict[int, tuple[NodeGpus, ...]] = {}
        self.asked: list[int] = []
        self.windows: list[datetime] = []
        self.down = False

    def queue(self) -> list[JobRecord]:
        if self.down:
            raise SchedulerError("squeue: connection refused")
        return self.jobs

    def gpus(self, raw_job_ids: list[int]) -> dict[int, tuple[NodeGpus, ...]]:
        self.asked += raw_job_ids
        return {raw: self.held[raw] for raw in raw_job_ids if raw in self.held}

    def ended(self, since: datetime) -> list[JobRecord]:
        self.windows.append(since)
        return self.closed

    def nodes(self) -> list[NodeRecord]:
        return []


JOB = JobRecord(
    raw_job_id=5, submitted_at=T0, state="RUNNING", name="n", user="u", account="a",
    display_id="5", started_at=T0, gpu_count=1,
)  # fmt: skip


class Poll:
    """A poll whose clock a test moves."""

    def __init__(self, house: House) -> None:
        self.now = T0
        self.slurm = ToldSlurm()
        self.house = replace(house, clock=lambda: self.now)
        self.tasks = SlurmPoll("granite", self.slurm)
        self.database = house.database

    def source(self) -> SchedulerSource:
        with self.database.session() as session:
            return session.scalars(select(SchedulerSource)).one()


@pytest.fixture
def poll(house: House) -> Poll:
    return Poll(house)


def test_gpus_are_asked_for_until_slurm_tells_and_never_again(poll: Poll) -> None:
    poll.slurm.jobs = [JOB]
    poll.tasks.read_queue(poll.house)
    poll.slurm.held = {5: (NodeGpus("g1", 1, (3,)),)}
    poll.tasks.read_queue(poll.house)
    poll.tasks.read_queue(poll.house)
    assert poll.slurm.asked == [5, 5]


def test_a_silent_slurm_is_noted_since_its_first_failure_and_loses_no_run(poll: Poll) -> None:
    poll.slurm.jobs = [JOB]
    poll.tasks.read_queue(poll.house)
    poll.slurm.down = True
    for minute in (1, 2):
        poll.now = T0 + timedelta(minutes=minute)
        poll.tasks.read_queue(poll.house)
    source = poll.source()
    assert source.error == "squeue: connection refused"
    assert source.error_since == T0 + timedelta(minutes=1)
    assert source.last_success_at == T0
    with poll.database.session() as session:
        run = session.scalars(select(Run)).one()
        assert (run.state, run.vanished_at, run.ended_at) == ("RUNNING", None, None)
    poll.slurm.down = False
    poll.tasks.read_queue(poll.house)
    assert poll.source().error is None


def test_windows_of_accounting_overlap_by_ten_minutes(poll: Poll) -> None:
    poll.tasks.close_runs(poll.house)
    poll.now = T0 + timedelta(minutes=1)
    poll.tasks.close_runs(poll.house)
    assert poll.slurm.windows == [T0 - timedelta(hours=24), T0 - timedelta(minutes=10)]


def test_a_run_is_closed_once_however_often_accounting_tells_it(poll: Poll) -> None:
    poll.slurm.jobs = [JOB]
    poll.tasks.read_queue(poll.house)
    poll.slurm.jobs = []
    poll.now = T0 + timedelta(minutes=3)
    poll.slurm.closed = [
        JobRecord(
            raw_job_id=5, submitted_at=T0, state="TIMEOUT", name="n", user="u", account="a",
            display_id="5", started_at=T0, ended_at=T0 + timedelta(minutes=2),
        )
    ]  # fmt: skip
    poll.tasks.close_runs(poll.house)
    poll.tasks.close_runs(poll.house)
    with poll.database.session() as session:
        run = session.scalars(select(Run)).one()
        assert (run.state, run.ended_at) == ("TIMEOUT", T0 + timedelta(minutes=2))
