"""Periodic work: every task gets its turns, whatever the others do."""

import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import select

from flopwatch_server.house import House
from flopwatch_server.jobs.models import Run
from flopwatch_server.scheduler.models import SchedulerRefusal, SchedulerSource
from flopwatch_server.scheduler.records import (
    JobRecord,
    NodeGpus,
    NodeRecord,
    Refusal,
    SchedulerError,
)
from flopwatch_server.work.poll import ACCOUNTING, SOURCE, SlurmPoll
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
        self.windows: list[tuple[datetime, datetime | None]] = []
        self.unreadable: list[Refusal] = []
        self.down = False
        self.calls = 0
        self.takes = lambda: None

    def queue(self) -> list[JobRecord]:
        self.calls += 1
        self.takes()
        if self.down:
            raise SchedulerError("squeue: connection refused")
        return self.jobs

    def gpus(self, started: list[JobRecord]) -> dict[int, tuple[NodeGpus, ...]]:
        ids = [job.raw_job_id for job in started]
        self.asked += ids
        return {raw: self.held[raw] for raw in ids if raw in self.held}

    def ended(self, since: datetime, until: datetime | None = None) -> list[JobRecord]:
        if self.down:
            raise SchedulerError("sacct: connection refused")
        self.windows.append((since, until))
        return self.closed

    def version(self) -> str:
        if self.down:
            raise SchedulerError("sinfo: no such command")
        return "22.05.8"

    def refusals(self) -> list[Refusal]:
        told, self.unreadable = self.unreadable, []
        return told

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

    def after(self, **passed: float) -> None:
        """Move the clock, from where it is."""
        self.now += timedelta(**passed)

    def source(self, kind: str = SOURCE) -> SchedulerSource:
        with self.database.session() as session:
            of_kind = select(SchedulerSource).where(SchedulerSource.kind == kind)
            return session.scalars(of_kind).one()


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
    poll.after(minutes=1)
    poll.tasks.read_queue(poll.house)
    assert poll.source().error is None


def test_a_slurm_that_fails_is_asked_again_after_as_long_as_it_has_been_failing(
    poll: Poll,
) -> None:
    poll.slurm.down = True
    tried = []
    for second in range(0, 1201, 30):
        poll.now = T0 + timedelta(seconds=second)
        poll.slurm.calls = 0
        poll.tasks.read_queue(poll.house)
        tried += [second] if poll.slurm.calls else []
    assert tried == [0, 30, 60, 120, 240, 480, 780, 1080]


@pytest.mark.parametrize(("took", "rest"), [(2.0, 0.0), (3.0, 30.0), (9.0, 90.0), (60.0, 300.0)])
def test_a_slow_slurm_is_asked_a_tenth_of_the_time(poll: Poll, took: float, rest: float) -> None:
    poll.slurm.takes = lambda: poll.after(seconds=took)
    poll.tasks.read_queue(poll.house)
    source = poll.source()
    assert source.rests_until == T0 + timedelta(seconds=took + rest)
    for early, calls in ((0.001, 1), (0.0, 2)):
        poll.now = T0 + timedelta(seconds=took + rest - early)
        poll.tasks.read_queue(poll.house)
        assert poll.slurm.calls == calls


def test_a_clock_that_was_set_back_does_not_silence_slurm(poll: Poll) -> None:
    poll.slurm.takes = lambda: poll.after(seconds=9)
    poll.tasks.read_queue(poll.house)
    poll.now = T0 - timedelta(days=1)
    poll.slurm.calls = 0
    poll.tasks.read_queue(poll.house)
    assert poll.slurm.calls == 1


def test_accounting_that_fails_does_not_hide_that_the_queue_is_told(poll: Poll) -> None:
    poll.tasks.read_queue(poll.house)
    poll.slurm.down = True
    poll.tasks.close_runs(poll.house)
    assert poll.source().error is None
    assert poll.source(ACCOUNTING).error == "sacct: connection refused"


def test_what_cannot_be_read_is_remembered_by_field_with_its_newest_word(poll: Poll) -> None:
    poll.slurm.unreadable = [Refusal("queue", "State", "State reads '1'", 2)]
    poll.tasks.read_queue(poll.house)
    poll.after(minutes=1)
    poll.slurm.unreadable = [
        Refusal("queue", "State", "State reads '\0 2'"), Refusal("queue", "QOS", "QOS reads ''"),
    ]  # fmt: skip
    poll.tasks.read_queue(poll.house)
    with poll.database.session() as session:
        rows = session.scalars(select(SchedulerRefusal).order_by(SchedulerRefusal.field.desc()))
        assert [(row.field, row.problem, row.count, row.first_at, row.last_at) for row in rows] == [
            ("State", "State reads ' 2'", 3, T0, poll.now),
            ("QOS", "QOS reads ''", 1, poll.now, poll.now),
        ]


def test_the_version_is_remembered_and_stays_while_nobody_tells_it(poll: Poll) -> None:
    poll.tasks.read_version(poll.house)
    poll.slurm.down = True
    poll.tasks.read_version(poll.house)
    assert poll.source().version == "22.05.8"
    assert poll.source().error is None


def test_history_is_taken_in_back_to_thirty_days_and_never_again(poll: Poll) -> None:
    while poll.tasks.import_history(poll.house):
        poll.after(seconds=1)
    begins, ends = zip(*poll.slurm.windows, strict=True)
    assert ends[0] == T0 - timedelta(hours=24)
    assert begins[:-1] == ends[1:]
    assert {end - begin for begin, end in poll.slurm.windows if end} == {timedelta(hours=6)}
    assert T0 - timedelta(days=30, hours=6) < begins[-1] <= T0 - timedelta(days=30)
    poll.slurm.windows.clear()
    poll.after(days=2)
    assert poll.tasks.import_history(poll.house) is False
    assert poll.slurm.windows == []


def test_history_goes_on_where_slurm_failed(poll: Poll) -> None:
    assert poll.tasks.import_history(poll.house)
    poll.slurm.down = True
    assert poll.tasks.import_history(poll.house) is False
    poll.slurm.down = False
    poll.after(minutes=5)
    assert poll.tasks.import_history(poll.house)
    assert [end for _, end in poll.slurm.windows] == [
        T0 - timedelta(hours=24), T0 - timedelta(hours=30),
    ]  # fmt: skip


def test_windows_of_accounting_overlap_by_ten_minutes(poll: Poll) -> None:
    poll.tasks.close_runs(poll.house)
    poll.now = T0 + timedelta(minutes=1)
    poll.tasks.close_runs(poll.house)
    assert poll.slurm.windows == [
        (T0 - timedelta(hours=24), None), (T0 - timedelta(minutes=10), None),
    ]  # fmt: skip


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
