"""slurmctld and slurmdbd are killed in the middle: no run is lost, closed twice, or by a guess."""

import time
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from sqlalchemy import select, update

from flopwatch.gpus import PeakTable
from flopwatch_server.database.engine import Database
from flopwatch_server.house import House
from flopwatch_server.jobs.models import Allocation, Run
from flopwatch_server.scheduler.models import SchedulerSource
from flopwatch_server.scheduler.slurm import Slurm
from flopwatch_server.settings import Settings
from flopwatch_server.work.poll import ACCOUNTING, SOURCE, SlurmPoll
from tests.lab.postgres import DatabaseFactory, postgres, public_folder
from tests.lab.slurm import SlurmLab, wait_until


class Site:
    """A poll of the lab into a database."""

    def __init__(self, lab: SlurmLab, database: Database) -> None:
        self.database = database
        self._house = House(database, Settings(), PeakTable.load())
        self._poll = SlurmPoll(lab.cluster, Slurm(lab.cluster, lab.environment))

    def poll(self) -> None:
        """One turn of each question, as after any rest."""
        with self.database.session() as session:
            session.execute(update(SchedulerSource).values(rests_until=None))
        self._poll.read_queue(self._house)
        self._poll.close_runs(self._house)

    def runs(self, *job_ids: int) -> dict[int, Run]:
        """The runs of these jobs by raw job id: one of each, since none is requeued here."""
        with self.database.session() as session:
            found = session.scalars(select(Run).where(Run.raw_job_id.in_(job_ids))).all()
        assert sorted(run.raw_job_id for run in found) == sorted(job_ids)
        return {run.raw_job_id: run for run in found}

    def held(self, run: Run) -> list[tuple[datetime, datetime | None]]:
        """Since when and until when it holds each GPU."""
        with self.database.session() as session:
            rows = session.scalars(select(Allocation).where(Allocation.run_id == run.id)).all()
        return [(row.valid_from, row.valid_to) for row in rows]

    def errors(self) -> dict[str, str | None]:
        with self.database.session() as session:
            return {row.kind: row.error for row in session.scalars(select(SchedulerSource))}


@pytest.fixture
def site(slurm_lab: SlurmLab) -> Iterator[Site]:
    with (
        public_folder() as folder,
        postgres(folder) as server,
        DatabaseFactory(server.url).database() as database,
    ):
        yield Site(slurm_lab, database)
    slurm_lab.cancel_jobs()


def ended_at(lab: SlurmLab, job_id: int) -> datetime | None:
    """When accounting says that a job ended; None as long as it says that it runs."""
    options = ("-nPX", "-j", str(job_id), "-o", "End")
    end = lab.run("env", "SLURM_TIME_FORMAT=%s", "sacct", *options).strip()
    return None if end == "Unknown" else datetime.fromtimestamp(int(end), UTC)


def test_a_job_that_ends_while_accounting_is_dead_is_closed_by_its_word_alone(
    site: Site, slurm_lab: SlurmLab
) -> None:
    long = slurm_lab.submit("exec sleep 300", "--gpus=2")
    short = slurm_lab.submit("exec sleep 5", "--gpus=1", user="fwbob")
    slurm_lab.wait_state(short, "RUNNING")
    site.poll()
    first = site.runs(long, short)
    assert {job: run.state for job, run in first.items()} == {long: "RUNNING", short: "RUNNING"}
    slurm_lab.slurmdbd.kill()
    try:
        slurm_lab.wait_state(short, "COMPLETED")
        site.poll()
        unsure = site.runs(long, short)[short]
        assert (unsure.state, unsure.ended_at) == ("RUNNING", None)
        assert unsure.vanished_at is not None
        assert site.errors()[SOURCE] is None
        assert str(site.errors()[ACCOUNTING]).startswith("sacct: exit status 1")
    finally:
        slurm_lab.slurmdbd.start()
    wait_until(lambda: ended_at(slurm_lab, short) is not None, "accounting has caught up", 60.0)
    for _ in range(2):
        site.poll()
        runs = site.runs(long, short)
        assert {job: run.id for job, run in runs.items()} == {
            job: run.id for job, run in first.items()
        }
        assert (runs[short].state, runs[short].vanished_at) == ("COMPLETED", None)
        assert runs[short].ended_at == ended_at(slurm_lab, short)
        assert site.held(runs[short]) == [(runs[short].started_at, runs[short].ended_at)]
        assert site.held(runs[long]) == [(runs[long].started_at, None)] * 2
    assert site.errors() == {SOURCE: None, ACCOUNTING: None}


def test_jobs_outlive_a_dead_controller_and_are_closed_once(
    site: Site, slurm_lab: SlurmLab
) -> None:
    long = slurm_lab.submit("exec sleep 300", "--gpus=2")
    short = slurm_lab.submit("exec sleep 30", "--gpus=1", user="fwbob")
    slurm_lab.wait_state(short, "RUNNING")
    site.poll()
    first = site.runs(long, short)
    kept_since = time.time()
    state = slurm_lab.root / "state/job_state"
    wait_until(lambda: state.stat().st_mtime > kept_since, "slurmctld has kept its jobs", 60.0)
    slurm_lab.slurmctld.kill()
    try:
        site.poll()
        kept = site.runs(long, short).values()
        assert {run.state for run in kept} == {"RUNNING"}
        assert {run.vanished_at or run.ended_at for run in kept} == {None}
        assert "Unable to contact" in str(site.errors()[SOURCE])
        assert site.errors()[ACCOUNTING] is None
    finally:
        slurm_lab.slurmctld.start()
    site.poll()
    assert site.errors()[SOURCE] is None
    assert {run.vanished_at for run in site.runs(long, short).values()} == {None}
    wait_until(lambda: ended_at(slurm_lab, short) is not None, "the short job has ended", 60.0)
    for _ in range(2):
        site.poll()
        runs = site.runs(long, short)
        assert [runs[job].id for job in (long, short)] == [first[job].id for job in (long, short)]
        assert runs[short].state == "COMPLETED"
        assert runs[short].ended_at == ended_at(slurm_lab, short)
        assert (runs[long].state, runs[long].vanished_at) == ("RUNNING", None)
        assert site.held(runs[long]) == [(runs[long].started_at, None)] * 2
