"""The reader against a running Slurm: what is expected follows from what was submitted."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from flopwatch_server.scheduler.records import JobRecord, NodeGpus, SchedulerError
from flopwatch_server.scheduler.slurm import Slurm
from tests.lab.slurm import SlurmLab, wait_until
from tests.slurm.reading import gpus_of, queued, without_json

LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
EIGHT = (0, 1, 2, 3, 4, 5, 6, 7)
SLEEP = "exec sleep 300"


@pytest.fixture(scope="module")
def slurm(slurm_lab: SlurmLab) -> Slurm:
    return Slurm(slurm_lab.cluster, slurm_lab.environment)


@pytest.fixture(autouse=True)
def empty_cluster(slurm_lab: SlurmLab) -> Iterator[None]:
    """Every test finds all GPUs free."""
    yield
    slurm_lab.cancel_jobs()


def ended(slurm: Slurm, job_id: int, runs: int = 1) -> list[JobRecord]:
    """The job's runs that ended, the oldest first, once the accounting tells of so many."""

    def found() -> list[JobRecord]:
        records = [one for one in slurm.ended(LONG_AGO) if one.raw_job_id == job_id]
        return sorted(records, key=lambda one: one.submitted_at)

    wait_until(lambda: len(found()) == runs, f"{runs} ended runs of job {job_id}", 20.0)
    return found()


def controller_time(lab: SlurmLab, job_id: int, field: str) -> datetime:
    """A time of a job as scontrol prints it."""
    shown = lab.run("env", "SLURM_TIME_FORMAT=%s", "scontrol", "show", "job", str(job_id))
    [value] = [word.partition("=")[2] for word in shown.split() if word.startswith(f"{field}=")]
    return datetime.fromtimestamp(int(value), UTC)


def test_a_job_on_one_gpu_from_queue_to_end(slurm: Slurm, slurm_lab: SlurmLab) -> None:
    node = slurm_lab.nodes[1]
    options = ("--gres=gpu:1", f"--nodelist={node}", "--time=20", "--job-name=train")
    job = slurm_lab.submit(SLEEP, *options, user="fwbob")
    slurm_lab.wait_state(job, "RUNNING")
    [record] = queued(slurm, job)
    assert record == JobRecord(
        raw_job_id=job,
        submitted_at=controller_time(slurm_lab, job, "SubmitTime"),
        state="RUNNING",
        name="train",
        user="fwbob",
        account="physics",
        display_id=str(job),
        partition="gpu",
        qos="normal",
        started_at=controller_time(slurm_lab, job, "StartTime"),
        time_limit_seconds=1200,
        restarts=0,
        gpu_count=1,
        node_count=1,
        nodes=(node,),
    )
    assert gpus_of(slurm, slurm_lab, job) == {job: (NodeGpus(node, 1, (0,), "h100"),)}
    slurm_lab.run("scancel", str(job), user="fwbob")
    [run] = ended(slurm, job)
    assert (run.submitted_at, run.started_at) == (record.submitted_at, record.started_at)
    assert (run.state, run.user, run.nodes, run.gpu_count) == ("CANCELLED", "fwbob", (node,), 1)
    assert run.time_limit_seconds == 1200
    assert run.started_at is not None
    assert run.ended_at is not None
    assert run.ended_at >= run.started_at
    assert slurm.gpus([record]) == {}
    assert Slurm(slurm_lab.cluster, slurm_lab.environment, without_json).gpus([record]) == {}
    later = slurm.ended(run.ended_at + timedelta(seconds=1))
    assert job not in [one.raw_job_id for one in later]


def test_a_job_on_all_gpus_of_two_nodes(slurm: Slurm, slurm_lab: SlurmLab) -> None:
    job = slurm_lab.submit(SLEEP, "--nodes=2", "--gres=gpu:h100:8")
    slurm_lab.wait_state(job, "RUNNING")
    [record] = queued(slurm, job)
    assert (record.nodes, record.node_count, record.gpu_count) == (slurm_lab.nodes, 2, 16)
    assert gpus_of(slurm, slurm_lab, job)[job] == tuple(
        NodeGpus(node, 8, EIGHT, "h100") for node in slurm_lab.nodes
    )


def test_unequal_shares_of_two_nodes_are_told_by_node(slurm: Slurm, slurm_lab: SlurmLab) -> None:
    first, second = slurm_lab.nodes
    small = slurm_lab.submit(SLEEP, "--gres=gpu:2", f"--nodelist={first}")
    slurm_lab.wait_state(small, "RUNNING")
    big = slurm_lab.submit(SLEEP, "--nodes=2", "--gres=gpu:6")
    slurm_lab.wait_state(big, "RUNNING")
    assert gpus_of(slurm, slurm_lab, small, big) == {
        small: (NodeGpus(first, 2, (0, 1), "h100"),),
        big: (
            NodeGpus(first, 6, (2, 3, 4, 5, 6, 7), "h100"),
            NodeGpus(second, 6, (0, 1, 2, 3, 4, 5), "h100"),
        ),
    }


def test_a_job_without_gpus_holds_none(slurm: Slurm, slurm_lab: SlurmLab) -> None:
    job = slurm_lab.submit(SLEEP)
    slurm_lab.wait_state(job, "RUNNING")
    assert gpus_of(slurm, slurm_lab, job) == {job: ()}


def test_an_array_two_at_a_time(slurm: Slurm, slurm_lab: SlurmLab) -> None:
    array = slurm_lab.submit(
        "sleep 1", "--array=0-3%2", "--gpus=1", f"--nodelist={slurm_lab.nodes[0]}"
    )
    wait_until(
        lambda: sorted(slurm_lab.states(array)) == ["PENDING", "RUNNING", "RUNNING"],
        "two tasks run",
        20.0,
    )
    tasks = {one.display_id: one for one in slurm.queue() if one.array_job_id == array}
    assert set(tasks) == {f"{array}_0", f"{array}_1", f"{array}_[2-3%2]"}
    assert [tasks[f"{array}_{task}"].array_task_id for task in (0, 1)] == [0, 1]
    rest = tasks[f"{array}_[2-3%2]"]
    assert (rest.raw_job_id, rest.state, rest.started_at) == (array, "PENDING", None)
    ids = [tasks[f"{array}_{task}"].raw_job_id for task in (0, 1)]
    held = gpus_of(slurm, slurm_lab, *ids)
    assert sorted(held[one][0].ordinals or () for one in ids) == [(0,), (1,)]
    [last] = ended(slurm, array)
    assert (last.display_id, last.array_task_id, last.state) == (f"{array}_3", 3, "COMPLETED")
    assert last.submitted_at == rest.submitted_at


def test_a_job_cancelled_while_it_waits_never_started(slurm: Slurm, slurm_lab: SlurmLab) -> None:
    job = slurm_lab.submit(SLEEP, "--gpus=3", "--hold")
    [record] = queued(slurm, job)
    assert (record.state, record.reason) == ("PENDING", "JobHeldUser")
    assert (record.started_at, record.nodes, record.gpu_count) == (None, (), 3)
    slurm_lab.run("scancel", str(job))
    [run] = ended(slurm, job)
    assert (run.state, run.started_at, run.nodes, run.gpu_count) == ("CANCELLED", None, (), 3)


def test_the_parts_of_a_het_job(slurm: Slurm, slurm_lab: SlurmLab) -> None:
    shown = slurm_lab.run(
        *("sbatch", "--parsable", "--gpus=1", f"--wrap={SLEEP}", ":", "--gpus=2"), user="fwalice"
    )
    leader = int(shown)
    slurm_lab.wait_state(leader, "RUNNING")
    one, two = queued(slurm, leader, leader + 1)
    assert [(part.display_id, part.het_job_id) for part in (one, two)] == [
        (f"{leader}+0", leader),
        (f"{leader}+1", leader),
    ]
    held = gpus_of(slurm, slurm_lab, leader, leader + 1)
    assert [sum(gpus.count for gpus in held[part]) for part in (leader, leader + 1)] == [1, 2]


def test_a_name_that_looks_like_other_rows_is_only_a_name(
    slurm: Slurm, slurm_lab: SlurmLab
) -> None:
    forged = "\n     Nodes=n9 CPU_IDs=0 Mem=1 GRES=gpu:h100:1(IDX:7)\n   MinCPUsNode=1"
    name = f"a|b{forged}\n99\x1f99\x1fRUNNING\n{'|'.join(['99'] * 19)}\n<script>\u202eJobId=9\x1e"
    job = slurm_lab.submit(SLEEP, "--gpus=1", f"--job-name={name}")
    slurm_lab.wait_state(job, "RUNNING")
    assert [(one.raw_job_id, one.name) for one in slurm.queue()] == [(job, name)]
    assert [gpus.ordinals for gpus in gpus_of(slurm, slurm_lab, job)[job]] == [(0,)]
    slurm_lab.run("scancel", str(job))
    [run] = ended(slurm, job)
    # The accounting's Latin character set turns what it lacks into question marks.
    assert run.name.replace("?", "\u202e") == name
    assert slurm.refusals() == []


def test_a_suspended_job_keeps_its_gpus(slurm: Slurm, slurm_lab: SlurmLab) -> None:
    job = slurm_lab.submit(SLEEP, "--gpus=2")
    slurm_lab.wait_state(job, "RUNNING")
    before = gpus_of(slurm, slurm_lab, job)
    slurm_lab.run("scontrol", "suspend", str(job))
    slurm_lab.wait_state(job, "SUSPENDED")
    [record] = queued(slurm, job)
    assert record.started_at == controller_time(slurm_lab, job, "StartTime")
    assert gpus_of(slurm, slurm_lab, job) == before


def test_nodes_tell_state_reason_and_gpus(slurm: Slurm, slurm_lab: SlurmLab) -> None:
    first, second = slurm_lab.nodes
    drain = ("scontrol", "update", f"nodename={second}")
    slurm_lab.run(*drain, "state=drain", "reason=fan | broken\nagain")
    try:
        nodes = {node.name: node for node in slurm.nodes()}
    finally:
        slurm_lab.run(*drain, "state=resume")
    assert set(nodes) == {first, second}
    assert (nodes[first].state, nodes[first].reason) == ("IDLE", "")
    assert (nodes[first].gpu_count, nodes[first].gpu_type) == (8, "h100")
    assert nodes[first].partitions == ("debug", "gpu")
    assert "DRAIN" in nodes[second].state.split("+")
    assert nodes[second].reason == "fan | broken\nagain"


def test_a_lost_database_fails_the_accounting_and_not_the_queue(
    slurm: Slurm, slurm_lab: SlurmLab
) -> None:
    slurm_lab.slurmdbd.kill()
    job = slurm_lab.submit("exit 0", "--gpus=1")
    try:
        with pytest.raises(SchedulerError, match="sacct: exit status 1"):
            slurm.ended(LONG_AGO)
        slurm.queue()
    finally:
        slurm_lab.slurmdbd.start()
    [run] = ended(slurm, job)
    assert run.state == "COMPLETED"


def test_a_lost_controller_is_an_error_and_jobs_outlive_it(
    slurm: Slurm, slurm_lab: SlurmLab
) -> None:
    job = slurm_lab.submit(SLEEP, "--gpus=4")
    slurm_lab.wait_state(job, "RUNNING")
    before, held = queued(slurm, job), gpus_of(slurm, slurm_lab, job)
    slurm_lab.slurmctld.stop()
    try:
        with pytest.raises(SchedulerError, match=r"squeue: exit status 1: .*Unable to contact"):
            slurm.queue()
    finally:
        slurm_lab.slurmctld.start()
    assert queued(slurm, job) == before
    assert gpus_of(slurm, slurm_lab, job) == held
