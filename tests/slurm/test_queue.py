"""Waiting and running jobs, from rows in the shape that squeue 22.05 prints."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

import pytest

from flopwatch_server.scheduler.records import Refusal, SchedulerError
from flopwatch_server.scheduler.slurm import Slurm
from flopwatch_server.scheduler.slurm.fields import FieldError
from flopwatch_server.scheduler.slurm.queue import parse_job

RUNNING = {
    "JobID": "7",
    "ArrayJobID": "7",
    "ArrayTaskID": "N/A",
    "HetJobID": "N/A",
    "HetJobOffset": "N/A",
    "State": "RUNNING",
    "RestartCnt": "2",
    "tres-alloc": "cpu=1,mem=100M,node=1,billing=1,gres/gpu=3,gres/gpu:h100=3",
    "SubmitTime": "1795961810",
    "StartTime": "1795961958",
    "TimeLimit": "30:00",
    "NumNodes": "1",
    "NodeList": "n1",
    "UserName": "alice",
    "Account": "vision",
    "Partition": "gpu",
    "QOS": "normal",
    "Reason": "None",
    "Name": "train",
}


def test_a_running_job() -> None:
    record = parse_job(RUNNING)
    assert (record.raw_job_id, record.display_id, record.state) == (7, "7", "RUNNING")
    assert record.submitted_at == datetime(2026, 11, 29, 14, 16, 50, tzinfo=UTC)
    assert record.started_at == datetime(2026, 11, 29, 14, 19, 18, tzinfo=UTC)
    assert record.ended_at is None
    assert (record.gpu_count, record.nodes, record.gpus) == (3, ("n1",), None)
    assert (record.time_limit_seconds, record.restarts, record.reason) == (1800, 2, "")


@pytest.mark.parametrize("state", ["PENDING", "SPECIAL_EXIT", "REQUEUE_HOLD"])
def test_the_start_of_a_waiting_job_is_an_estimate_and_not_told(state: str) -> None:
    waiting = {**RUNNING, "State": state, "NodeList": "", "Reason": "Resources"}
    record = parse_job(waiting)
    assert record.started_at is None
    assert record.reason == "Resources"


@pytest.mark.parametrize(
    ("columns", "display_id", "array", "het"),
    [
        ({"ArrayJobID": "3", "ArrayTaskID": "0"}, "3_0", (3, 0), (None, None)),
        ({"ArrayJobID": "3", "ArrayTaskID": "0-9%1"}, "3_[0-9%1]", (3, None), (None, None)),
        ({"HetJobID": "6", "HetJobOffset": "1"}, "6+1", (None, None), (6, 1)),
    ],
)
def test_array_and_het_jobs_show_the_ids_that_users_know(
    columns: Mapping[str, str],
    display_id: str,
    array: tuple[int, int | None],
    het: tuple[int | None, int | None],
) -> None:
    record = parse_job({**RUNNING, **columns})
    assert record.display_id == display_id
    assert (record.array_job_id, record.array_task_id) == array
    assert (record.het_job_id, record.het_offset) == het


@pytest.mark.parametrize("state", ["RESIZING", "STOPPED", "CONFIGURING"])
def test_a_job_that_holds_gpus_runs(state: str) -> None:
    record = parse_job({**RUNNING, "State": state})
    assert record.state == state
    assert record.started_at is not None


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("JobID", "7.0"),
        ("State", "running"),
        ("SubmitTime", "N/A"),
        ("StartTime", "2026-11-29"),
        ("TimeLimit", "long"),
        ("NodeList", "@all"),
        ("RestartCnt", "N/A"),
        ("tres-alloc", "gres/gpu=x"),
    ],
)
def test_an_unknown_shape_is_refused_by_the_name_of_its_column(column: str, value: str) -> None:
    with pytest.raises(FieldError, match=f"^{column} reads"):
        parse_job({**RUNNING, column: value})


def slurm_that_prints(*rows: Mapping[str, str]) -> Slurm:
    """A reader whose squeue prints these rows."""
    return slurm_of(list(rows))


def slurm_of(rows: Sequence[Mapping[str, str]]) -> Slurm:
    """A reader whose squeue prints what stands in the list by then, with the marks asked for."""

    def run(command: Sequence[str], environment: Mapping[str, str], deadline: float) -> str:
        mark = command[-1].partition(":0")[2].partition(",")[0]
        return "".join(mark.join(row.values()) + "\n" for row in rows)

    return Slurm("lab", run=run)


def test_bad_records_are_left_out_logged_and_told_once(caplog: pytest.LogCaptureFixture) -> None:
    bad = ({"JobID": "8", "NodeList": "@all"}, {"JobID": "9", "NodeList": "@x"}, {"JobID": "ten"})
    slurm = slurm_that_prints(RUNNING, *({**RUNNING, **columns} for columns in bad))
    assert [record.raw_job_id for record in slurm.queue()] == [7]
    assert "left out 3 records: NodeList reads '@all'" in caplog.text
    assert slurm.refusals() == [
        Refusal("queue", "NodeList", "NodeList reads '@x'", 2),
        Refusal("queue", "JobID", "JobID reads 'ten'", 1),
    ]
    assert slurm.refusals() == []


def test_when_no_record_can_be_read_the_call_fails_and_names_the_column() -> None:
    slurm = slurm_that_prints({**RUNNING, "SubmitTime": "soon"})
    with pytest.raises(SchedulerError, match=r"lab: queue: .*SubmitTime reads 'soon'"):
        slurm.queue()


def test_a_job_that_is_over_is_no_part_of_the_queue() -> None:
    slurm = slurm_that_prints(RUNNING, {**RUNNING, "JobID": "8", "State": "STAGE_OUT"})
    assert [record.raw_job_id for record in slurm.queue()] == [7]


def test_every_poll_tells_what_is_printed_then() -> None:
    printed: list[Mapping[str, str]] = [RUNNING, {**RUNNING, "JobID": "8"}]
    slurm = slurm_of(printed)
    first = slurm.queue()
    printed[1:] = [{**RUNNING, "JobID": "8", "Reason": "BadConstraints"}, {**RUNNING, "JobID": "x"}]
    assert [(one.raw_job_id, one.reason) for one in slurm.queue()] == [
        (7, ""), (8, "BadConstraints")
    ]  # fmt: skip
    assert slurm.refusals() == [Refusal("queue", "JobID", "JobID reads 'x'")]
    slurm.queue()
    assert slurm.refusals() == [Refusal("queue", "JobID", "JobID reads 'x'")]
    printed[1:] = [{**RUNNING, "JobID": "8"}]
    assert slurm.queue() == first
