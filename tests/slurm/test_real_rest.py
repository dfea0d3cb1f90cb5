"""slurmrestd and the commands against one running Slurm: both must tell the same.

It is asked over its socket and, with a token, by URL.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from flopwatch_server.scheduler.records import JobRecord, SchedulerError
from flopwatch_server.scheduler.slurm import Slurm
from flopwatch_server.scheduler.slurm.rest import Client, SlurmRest
from tests.lab.slurm import SlurmLab, wait_until
from tests.slurm.restd import USER, by_socket, by_url, write_token

LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
SLEEP = "exec sleep 300"
PARSED_BY_PLUGINS = (23, 11)
"""From this version on JSON tells exit codes, and a parameter that can't be read is the client's
fault (slurmrestd's release notes, data_parser/v0.0.40)."""


@pytest.fixture(scope="module")
def client(slurm_lab: SlurmLab) -> Iterator[Client]:
    """A client over the socket."""
    with by_socket(slurm_lab) as client:
        yield client


@pytest.fixture(scope="module")
def url(slurm_lab: SlurmLab) -> Iterator[str]:
    with by_url(slurm_lab) as url:
        yield url


@pytest.fixture
def token(slurm_lab: SlurmLab, tmp_path: Path) -> Path:
    return write_token(slurm_lab, USER, tmp_path / "token")


@pytest.fixture
def both(client: Client, url: str, token: Path, slurm_lab: SlurmLab) -> Iterator[list[SlurmRest]]:
    """Slurm over the socket, and by URL."""
    clients = (client, Client(url, USER, token))
    yield [SlurmRest(slurm_lab.cluster, one) for one in clients]
    slurm_lab.cancel_jobs()


@pytest.fixture
def commands(slurm_lab: SlurmLab) -> Slurm:
    return Slurm(slurm_lab.cluster, slurm_lab.environment)


def by_id(records: Sequence[JobRecord]) -> dict[tuple[int, datetime], JobRecord]:
    return {(record.raw_job_id, record.submitted_at): record for record in records}


def test_the_queue_is_that_of_squeue_with_the_gpus(
    both: list[SlurmRest], commands: Slurm, slurm_lab: SlurmLab
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
    for rest in both:
        told = rest.queue()
        assert by_id(told) == by_id(expected)
        assert len(told) == 7
        assert rest.gpus(told) == held
    assert {job.raw_job_id for job in running} > {one}


def test_nodes_are_those_of_sinfo(
    both: list[SlurmRest], commands: Slurm, slurm_lab: SlurmLab
) -> None:
    job = slurm_lab.submit(SLEEP, "--gpus=1")
    slurm_lab.wait_state(job, "RUNNING")
    drained = slurm_lab.nodes[1]
    slurm_lab.run("scontrol", "update", f"nodename={drained}", "state=drain", "reason=a disk")
    try:
        expected = {node.name: node for node in commands.nodes()}
        for rest in both:
            told = {node.name: node for node in rest.nodes()}
            assert set(told) == set(expected)
            for name, node in told.items():
                assert replace(node, state="") == replace(expected[name], state="")
            assert "DRAIN" in told[drained].state
        assert "DRAIN" in expected[drained].state
    finally:
        slurm_lab.run("scontrol", "update", f"nodename={drained}", "state=resume")


def test_ended_runs_are_those_of_sacct(
    both: list[SlurmRest], commands: Slurm, slurm_lab: SlurmLab
) -> None:
    jobs = [
        slurm_lab.submit("true", "--gpus=1", "--job-name=fine"),
        slurm_lab.submit("exit 3", "--gpus=2", user="fwbob"),
        slurm_lab.submit("true", "--array=0-1", "--gpus=1"),
        slurm_lab.submit("true", "--hold"),
    ]
    slurm_lab.run("scancel", str(jobs[-1]))

    def told() -> dict[tuple[int, datetime], JobRecord]:
        return by_id([run for run in commands.ended(LONG_AGO) if run.raw_job_id >= jobs[0]])

    wait_until(lambda: len(told()) == 5, "five ended runs", 30.0)
    # Only sacct tells the SLUID of an ended run, and how many nodes one wanted that never started.
    expected = {
        key: replace(run, sluid=None, node_count=run.node_count if run.nodes else None)
        for key, run in told().items()
    }
    if slurm_lab.version < PARSED_BY_PLUGINS:
        # 22.05's JSON tells exit code 0 of what failed, so it is not believed.
        expected = {key: replace(run, exit_code=None) for key, run in expected.items()}
    for rest in both:
        by_rest = by_id([run for run in rest.ended(LONG_AGO) if run.raw_job_id >= jobs[0]])
        assert by_rest == expected
        newest = max(run.ended_at for run in by_rest.values() if run.ended_at)
        assert {run.ended_at for run in rest.ended(newest)} == {newest}


def test_a_time_in_which_nothing_ended_is_no_error(both: list[SlurmRest]) -> None:
    for rest in both:
        assert rest.ended(LONG_AGO, LONG_AGO + timedelta(days=1)) == []


def test_a_token_that_slurm_refuses_is_an_error_until_it_is_replaced(
    url: str, token: Path, slurm_lab: SlurmLab
) -> None:
    rest = SlurmRest(slurm_lab.cluster, Client(url, USER, token))
    good = token.read_text()
    write_token(slurm_lab, "fwalice", token)
    with pytest.raises(SchedulerError, match=r"slurmrestd: slurm/jobs: status 5[0-9]{2}: .*jobs: "):
        rest.queue()
    with pytest.raises(SchedulerError, match=r"slurmdb/jobs: .*authentication error"):
        rest.ended(LONG_AGO)
    token.write_text(good)
    assert rest.queue() == []
    with pytest.raises(SchedulerError, match="status 401: the user or the token is refused"):
        Client(url).ask("slurm", "jobs")


def test_a_call_that_slurmrestd_refuses_is_named_with_what_it_says(
    client: Client, slurm_lab: SlurmLab
) -> None:
    by_plugins = slurm_lab.version >= PARSED_BY_PLUGINS
    said = "422: Parsing of soon" if by_plugins else "500: Unable to parse time"
    with pytest.raises(SchedulerError, match=f"slurmdb/jobs: status {said}"):
        client.ask("slurmdb", "jobs", start_time="soon")
    with pytest.raises(SchedulerError, match="slurmrestd: slurm/nothing: status 404: "):
        client.ask("slurm", "nothing")


def test_what_is_no_slurmrestd_is_an_error(tmp_path: Path) -> None:
    silent = SlurmRest("lab", Client(f"unix:{tmp_path / 'nothing'}"))
    with pytest.raises(SchedulerError, match=r"slurmrestd: .*No such file"):
        silent.queue()
    lost = SlurmRest("lab", Client("http://127.0.0.1:1", "me", tmp_path / "lost.jwt"))
    with pytest.raises(SchedulerError, match=r"slurmrestd: .*lost\.jwt: No such file"):
        lost.queue()
