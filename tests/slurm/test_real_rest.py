"""slurmrestd and the commands against one running Slurm: both must tell the same."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest

from flopwatch_server.scheduler.records import JobRecord, SchedulerError
from flopwatch_server.scheduler.slurm import Slurm
from flopwatch_server.scheduler.slurm.rest import Client, SlurmRest
from tests.lab.slurm import SlurmLab, wait_until
from tests.lab.slurm.daemons import Daemon

LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
SLEEP = "exec sleep 300"


@pytest.fixture(scope="module")
def restd(slurm_lab: SlurmLab) -> Iterator[Path]:
    """The socket of a slurmrestd, which an ordinary user runs."""
    user = slurm_lab.users["fwbob"]
    at = user.home / "restd.socket"

    def answers() -> bool:
        return at.is_socket() and _ping(at) == 200

    daemon = Daemon(
        "slurmrestd", ["slurmrestd", "-a", "rest_auth/local", f"unix:{at}"],
        slurm_lab.root / "slurmrestd.log", answers, user=user.name,
        environment={**slurm_lab.environment, "HOME": str(user.home)},
    )  # fmt: skip
    daemon.start()
    yield at
    daemon.stop()


def _ping(at: Path) -> int:
    with httpx.Client(transport=httpx.HTTPTransport(uds=str(at))) as client:
        return client.get("http://localhost/slurm/v0.0.38/ping").status_code


@pytest.fixture
def rest(restd: Path, slurm_lab: SlurmLab) -> Iterator[SlurmRest]:
    yield SlurmRest(slurm_lab.cluster, Client(f"unix:{restd}"))
    slurm_lab.cancel_jobs()


@pytest.fixture
def commands(slurm_lab: SlurmLab) -> Slurm:
    return Slurm(slurm_lab.cluster, slurm_lab.environment)


def by_id(records: Iterator[JobRecord] | list[JobRecord]) -> dict[tuple[int, datetime], JobRecord]:
    return {(record.raw_job_id, record.submitted_at): record for record in records}


def test_the_queue_is_that_of_squeue_with_the_gpus(
    rest: SlurmRest, commands: Slurm, slurm_lab: SlurmLab
) -> None:
    hostile = f'--job-name=a|b\n"<b>\u202e{"x" * 300}'
    one = slurm_lab.submit(SLEEP, "--gpus=3", hostile)
    array = slurm_lab.submit(SLEEP, "--array=0-5%2", "--gpus=1")
    het = slurm_lab.run(
        *("sbatch", "--parsable", "--gpus=1", f"--wrap={SLEEP}", ":", "--gpus=2"), user="fwalice"
    )
    slurm_lab.submit(SLEEP, "--gpus=2", "--hold", "--time=UNLIMITED", user="fwbob")
    slurm_lab.wait_state(int(het), "RUNNING")
    wait_until(lambda: slurm_lab.states(array).count("RUNNING") == 2, "two tasks run", 20.0)
    queue = list(commands.queue())
    running = [job for job in queue if job.state == "RUNNING"]
    held = commands.gpus(running)
    expected = [replace(job, gpus=held.get(job.raw_job_id)) for job in queue]
    told = rest.queue()
    assert by_id(list(told)) == by_id(expected)
    assert len(told) == 7
    assert rest.gpus(told) == held
    assert {job.raw_job_id for job in running} > {one}


def test_nodes_are_those_of_sinfo(rest: SlurmRest, commands: Slurm, slurm_lab: SlurmLab) -> None:
    job = slurm_lab.submit(SLEEP, "--gpus=1")
    slurm_lab.wait_state(job, "RUNNING")
    drained = slurm_lab.nodes[1]
    slurm_lab.run("scontrol", "update", f"nodename={drained}", "state=drain", "reason=a disk")
    try:
        told = {node.name: node for node in rest.nodes()}
        expected = {node.name: node for node in commands.nodes()}
        assert set(told) == set(expected)
        for name, node in told.items():
            assert replace(node, state="") == replace(expected[name], state="")
        assert "DRAIN" in told[drained].state
        assert "DRAIN" in expected[drained].state
    finally:
        slurm_lab.run("scontrol", "update", f"nodename={drained}", "state=resume")


def test_ended_runs_are_those_of_sacct(
    rest: SlurmRest, commands: Slurm, slurm_lab: SlurmLab
) -> None:
    jobs = [
        slurm_lab.submit("true", "--gpus=1", "--job-name=fine"),
        slurm_lab.submit("exit 3", "--gpus=2", user="fwbob"),
        slurm_lab.submit("true", "--array=0-1", "--gpus=1"),
    ]

    def told() -> dict[tuple[int, datetime], JobRecord]:
        return by_id([run for run in commands.ended(LONG_AGO) if run.raw_job_id >= jobs[0]])

    wait_until(lambda: len(told()) == 4, "four ended runs", 30.0)
    by_rest = by_id([run for run in rest.ended(LONG_AGO) if run.raw_job_id >= jobs[0]])
    # 22.05's JSON tells exit code 0 of what failed, so it is not believed.
    assert by_rest == {key: replace(run, exit_code=None) for key, run in told().items()}
    newest = max(run.ended_at for run in by_rest.values() if run.ended_at)
    assert {run.ended_at for run in rest.ended(newest)} == {newest}


def test_a_call_that_slurmrestd_refuses_is_named_with_what_it_says(restd: Path) -> None:
    with pytest.raises(SchedulerError, match=r"slurmdb/jobs: status 500: Unable to parse time"):
        Client(f"unix:{restd}").ask("slurmdb", "jobs", start_time="soon")
    with pytest.raises(SchedulerError, match="slurmrestd: slurm/nothing: status 404: "):
        Client(f"unix:{restd}").ask("slurm", "nothing")


def test_what_is_no_slurmrestd_is_an_error(tmp_path: Path) -> None:
    silent = SlurmRest("lab", Client(f"unix:{tmp_path / 'nothing'}"))
    with pytest.raises(SchedulerError, match=r"slurmrestd: .*No such file"):
        silent.queue()
    lost = SlurmRest("lab", Client("http://127.0.0.1:1", "me", tmp_path / "lost.jwt"))
    with pytest.raises(SchedulerError, match=r"slurmrestd: .*lost\.jwt: No such file"):
        lost.queue()
