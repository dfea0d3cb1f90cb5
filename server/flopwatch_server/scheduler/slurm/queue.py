"""The hot call: every pending and running job, as text.

About 25 ms and 80 bytes a job, against 3 KB as JSON, and with the same columns in all versions.
"""

from flopwatch_server.scheduler.records import PENDING_STATES, RUNNING_STATES, JobRecord
from flopwatch_server.scheduler.slurm import fields
from flopwatch_server.scheduler.slurm.client import Client
from flopwatch_server.scheduler.slurm.gres import tres_gpu_count
from flopwatch_server.scheduler.slurm.table import (
    Answer,
    Row,
    long_format,
    new_mark,
    read_each,
    split_rows,
)

COLUMNS = (
    "JobID",
    "ArrayJobID",
    "ArrayTaskID",
    "HetJobID",
    "HetJobOffset",
    "State",
    "RestartCnt",
    "tres-alloc",
    "SubmitTime",
    "StartTime",
    "TimeLimit",
    "NumNodes",
    "NodeList",
    "UserName",
    "Account",
    "Partition",
    "QOS",
    "Reason",
    "Name",
)


class Queue:
    """One cluster's queue. Nearly all of it is as it was at the last poll: what was read of a row
    then is not read again."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._last: dict[tuple[str, ...], JobRecord] = {}

    def read(self) -> Answer[JobRecord]:
        """All jobs that wait or hold GPUs, hidden partitions included."""
        mark = new_mark()
        layout = long_format(COLUMNS, mark)
        text = self._client.ask("squeue", "--noheader", "--all", "--local", "-O", layout)
        read: dict[tuple[str, ...], JobRecord] = {}

        def record(row: Row) -> JobRecord:
            cells = tuple(row.values())
            read[cells] = found = self._last.get(cells) or parse_job(row)
            return found

        answer = read_each(split_rows(text, COLUMNS, mark), record)
        self._last = read
        states = RUNNING_STATES | PENDING_STATES
        # Staging out or revoked: over, and for the accounting to tell.
        answer.records = [record for record in answer.records if record.state in states]
        return answer


def parse_job(row: Row) -> JobRecord:
    """One row as a record; raises FieldError naming the field of unknown shape."""
    state = fields.state(row, "State")
    raw_job_id = fields.whole_number(row, "JobID")
    tasks = row["ArrayTaskID"]  # a number, or the tasks that still wait, as 4-9%2
    in_array = tasks not in ("", "N/A")
    array_job_id = fields.whole_number(row, "ArrayJobID") if in_array else None
    array_task_id = int(tasks) if fields.is_number(tasks) else None
    het_job_id = fields.optional_number(row, "HetJobID")
    het_offset = fields.optional_number(row, "HetJobOffset")
    return JobRecord(
        raw_job_id=raw_job_id,
        submitted_at=fields.required_moment(row, "SubmitTime"),
        state=state,
        name=row["Name"],
        user=row["UserName"],
        account=row["Account"],
        display_id=display_id(raw_job_id, array_job_id, tasks, het_job_id, het_offset),
        partition=row["Partition"],
        qos=row["QOS"],
        reason="" if row["Reason"] == "None" else row["Reason"],
        # While a job waits this is when the scheduler hopes to start it.
        started_at=fields.moment(row, "StartTime") if state in RUNNING_STATES else None,
        time_limit_seconds=fields.duration_seconds(row, "TimeLimit"),
        restarts=fields.whole_number(row, "RestartCnt"),
        gpu_count=tres_gpu_count(row, "tres-alloc"),
        node_count=fields.optional_number(row, "NumNodes"),
        nodes=fields.node_names(row, "NodeList"),
        array_job_id=array_job_id,
        array_task_id=array_task_id,
        het_job_id=het_job_id,
        het_offset=het_offset,
    )


def display_id(
    raw_job_id: int, array: int | None, tasks: str, het: int | None, het_offset: int | None
) -> str:
    """The id that users know: 7, an array's task 7_3, its waiting rest 7_[4-9%2], a het part 7+1.

    `tasks` is a task's number or the list of those that wait.
    """
    if array is not None:
        return f"{array}_{tasks if fields.is_number(tasks) else f'[{tasks}]'}"
    return str(raw_job_id) if het is None else f"{het}+{het_offset}"
