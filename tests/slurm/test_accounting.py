"""Ended runs, from the rows of a captured sacct; the table was read off that file by hand."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from flopwatch_server.scheduler.records import JobRecord
from flopwatch_server.scheduler.slurm.accounting import parse_job
from flopwatch_server.scheduler.slurm.fields import FieldError

CAPTURE = Path(__file__).parent / "cases/22.05/sacct_P.txt"
MORNING = datetime(2026, 11, 29, 12, tzinfo=UTC)


def captured_rows() -> list[dict[str, str]]:
    """The capture's job rows as our own call prints them: epoch times, suspended time, no steps."""
    names, *lines = (line.split("|") for line in CAPTURE.read_text().splitlines())
    rows = [dict(zip(names, line, strict=True)) for line in lines]
    for row in rows:
        row["Suspended"] = "00:00:00"
        for column in ("Submit", "Start", "End"):
            if row[column] not in ("None", "Unknown"):
                time = datetime.fromisoformat(row[column]).replace(tzinfo=UTC)
                row[column] = str(int(time.timestamp()))
    return [row for row in rows if "." not in row["JobID"]]


def run(raw_job_id: int, submitted: str) -> JobRecord:
    """The record of one run in the capture, by its key."""
    time = datetime.fromisoformat(f"2026-11-29T{submitted}+00:00")
    records = [parse_job(row) for row in captured_rows()]
    [found] = [one for one in records if (one.raw_job_id, one.submitted_at) == (raw_job_id, time)]
    return found


def at(minute: int, second: int) -> datetime:
    return MORNING + timedelta(minutes=minute, seconds=second)


def test_every_captured_row_is_read() -> None:
    assert len([parse_job(row) for row in captured_rows()]) == 26


def test_a_run_on_two_nodes() -> None:
    assert run(2, "12:02:59") == JobRecord(
        suspended_seconds=0,
        raw_job_id=2,
        submitted_at=at(2, 59),
        state="CANCELLED",
        name="big2x8",
        user="alice",
        account="vision",
        display_id="2",
        partition="gpu",
        qos="normal",
        started_at=at(3, 0),
        ended_at=at(5, 7),
        time_limit_seconds=1800,
        exit_code="0:15",
        gpu_count=16,
        node_count=2,
        nodes=("node1", "node2"),
    )


@pytest.mark.parametrize(
    ("raw_job_id", "state", "exit_code", "ended"),
    [
        (6, "TIMEOUT", "0:15", at(4, 10)),
        (7, "FAILED", "3:0", at(3, 0)),
        (8, "CANCELLED", "0:0", at(3, 31)),
        (12, "COMPLETED", "0:0", at(4, 2)),
    ],
)
def test_how_runs_ended(raw_job_id: int, state: str, exit_code: str, ended: datetime) -> None:
    record = run(raw_job_id, "12:02:59")
    assert (record.state, record.exit_code, record.ended_at) == (state, exit_code, ended)


def test_a_requeued_job_has_two_runs_and_the_second_never_started() -> None:
    first, second = run(9, "12:02:59"), run(9, "12:03:31")
    assert (first.state, first.started_at, first.nodes) == ("REQUEUED", at(3, 0), ("node4",))
    assert (second.state, second.started_at, second.nodes) == ("CANCELLED", None, ())
    assert second.ended_at == at(5, 7)
    assert second.gpu_count == 1


def test_the_last_task_of_an_array_has_the_arrays_own_id() -> None:
    first, last = run(13, "12:02:59"), run(3, "12:02:59")
    assert (first.display_id, first.array_job_id, first.array_task_id) == ("3_0", 3, 0)
    assert (last.display_id, last.array_job_id, last.array_task_id) == ("3_5", 3, 5)


def test_the_parts_of_a_het_job() -> None:
    leader, other = run(10, "12:02:59"), run(11, "12:02:59")
    assert (leader.display_id, leader.het_job_id, leader.het_offset) == ("10+0", 10, 0)
    assert (other.display_id, other.het_job_id, other.het_offset) == ("10+1", 10, 1)
    assert other.array_job_id is None


def test_a_run_on_shards_has_no_count_of_gpus() -> None:
    assert run(2033, "12:14:31").gpu_count is None


def test_the_waiting_rest_of_an_array_has_no_task() -> None:
    record = parse_job({**captured_rows()[0], "JobID": "3_[1-9%1]"})
    assert (record.display_id, record.array_job_id) == ("3_[1-9%1]", 3)
    assert record.array_task_id is None


def test_a_job_that_never_had_a_node_did_not_start_whatever_the_row_says() -> None:
    [row] = [one for one in captured_rows() if one["NodeList"] == "None assigned"]
    assert parse_job({**row, "Start": row["End"]}).started_at is None


def test_suspended_time_is_read_in_seconds() -> None:
    record = parse_job({**captured_rows()[0], "Suspended": "1-00:00:44"})
    assert record.suspended_seconds == 86_444


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("JobIDRaw", "1.batch"),
        ("JobID", "1.batch"),
        ("State", "?"),
        ("Submit", "Unknown"),
        ("End", "Unknown"),
        ("Start", "yesterday"),
        ("Suspended", "long"),
        ("TimelimitRaw", "x"),
        ("NodeList", "node["),
        ("AllocTRES", "gres/gpu=x"),
    ],
)
def test_an_unknown_shape_is_refused_by_the_name_of_its_column(column: str, value: str) -> None:
    with pytest.raises(FieldError, match=f"^{column} reads"):
        parse_job({**captured_rows()[0], column: value})
