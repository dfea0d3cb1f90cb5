"""slurmctld and slurmdbd are killed in the middle: no run is lost, closed twice, or by a guess."""

import time
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from flopwatch_server.jobs.models import Run
from flopwatch_server.work.poll import ACCOUNTING, SOURCE
from tests.lab.slurm import Gate, SlurmLab, wait_until
from tests.slurm.site import Site, polled


@pytest.fixture
def site(slurm_lab: SlurmLab) -> Iterator[Site]:
    with polled(slurm_lab) as site:
        yield site
    slurm_lab.cancel_jobs()


@pytest.fixture
def gate(slurm_lab: SlurmLab, request: pytest.FixtureRequest) -> Gate:
    """What the short job waits at."""
    return Gate(slurm_lab.root / request.function.__name__)


def runs(site: Site, *job_ids: int) -> dict[int, Run]:
    """The runs of these jobs by raw job id: one of each, since none is requeued here."""
    found = [run for run in site.runs() if run.raw_job_id in job_ids]
    assert sorted(run.raw_job_id for run in found) == sorted(job_ids)
    return {run.raw_job_id: run for run in found}


def held(site: Site, run: Run) -> list[tuple[datetime, datetime | None]]:
    """Since when and until when the run holds each GPU."""
    return [(begin, end) for _, _, begin, end in site.held()[run.id]]


def ended_at(lab: SlurmLab, job_id: int) -> datetime | None:
    """When accounting says that a job ended; None as long as it says that it runs."""
    options = ("-nPX", "-j", str(job_id), "-o", "End")
    end = lab.run("env", "SLURM_TIME_FORMAT=%s", "sacct", *options).strip()
    return None if end == "Unknown" else datetime.fromtimestamp(int(end), UTC)


def is_told(lab: SlurmLab, job_id: int) -> bool:
    """Whether sacct tells that the job ended: of a second, once that is over."""
    end = ended_at(lab, job_id)
    return end is not None and time.time() >= end.timestamp() + 1


def test_a_job_that_ends_while_accounting_is_dead_is_closed_by_its_word_alone(
    site: Site, gate: Gate, slurm_lab: SlurmLab
) -> None:
    long = slurm_lab.submit("exec sleep 300", "--gpus=2")
    short = slurm_lab.submit(gate.script, "--gpus=1", user="fwbob")
    slurm_lab.wait_state(short, "RUNNING")
    site.poll()
    first = runs(site, long, short)
    assert {job: run.state for job, run in first.items()} == {long: "RUNNING", short: "RUNNING"}
    slurm_lab.slurmdbd.kill()
    gate.open()
    try:
        slurm_lab.wait_state(short, "COMPLETED")
        site.poll()
        unsure = runs(site, long, short)[short]
        assert (unsure.state, unsure.ended_at) == ("RUNNING", None)
        assert unsure.vanished_at is not None
        assert site.errors()[SOURCE] is None
        assert str(site.errors()[ACCOUNTING]).startswith("sacct: exit status 1")
    finally:
        slurm_lab.slurmdbd.start()
    wait_until(lambda: is_told(slurm_lab, short), "accounting has caught up", 60.0)
    for _ in range(2):
        site.poll()
        now = runs(site, long, short)
        assert {job: run.id for job, run in now.items()} == {
            job: run.id for job, run in first.items()
        }
        assert (now[short].state, now[short].vanished_at) == ("COMPLETED", None)
        assert now[short].ended_at == ended_at(slurm_lab, short)
        assert held(site, now[short]) == [(now[short].started_at, now[short].ended_at)]
        assert held(site, now[long]) == [(now[long].started_at, None)] * 2
    assert site.errors() == {SOURCE: None, ACCOUNTING: None}


def test_jobs_outlive_a_dead_controller_and_are_closed_once(
    site: Site, gate: Gate, slurm_lab: SlurmLab
) -> None:
    long = slurm_lab.submit("exec sleep 300", "--gpus=2")
    short = slurm_lab.submit(gate.script, "--gpus=1", user="fwbob")
    slurm_lab.wait_state(short, "RUNNING")
    site.poll()
    first = runs(site, long, short)
    kept_since = time.time()
    slurm_lab.run("scontrol", "update", f"jobid={long}", "comment=to be kept")
    state = slurm_lab.root / "state/job_state"
    wait_until(lambda: state.stat().st_mtime > kept_since, "slurmctld has kept its jobs", 60.0)
    slurm_lab.slurmctld.kill()
    try:
        site.poll()
        kept = runs(site, long, short).values()
        assert {run.state for run in kept} == {"RUNNING"}
        assert {run.vanished_at or run.ended_at for run in kept} == {None}
        assert "Unable to contact" in str(site.errors()[SOURCE])
        assert site.errors()[ACCOUNTING] is None
    finally:
        slurm_lab.slurmctld.start()
    site.poll()
    assert site.errors()[SOURCE] is None
    assert {run.vanished_at for run in runs(site, long, short).values()} == {None}
    gate.open()
    wait_until(lambda: is_told(slurm_lab, short), "the short job has ended", 60.0)
    for _ in range(2):
        site.poll()
        now = runs(site, long, short)
        assert [now[job].id for job in (long, short)] == [first[job].id for job in (long, short)]
        assert now[short].state == "COMPLETED"
        assert now[short].ended_at == ended_at(slurm_lab, short)
        assert (now[long].state, now[long].vanished_at) == ("RUNNING", None)
        assert held(site, now[long]) == [(now[long].started_at, None)] * 2
