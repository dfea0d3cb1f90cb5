"""What slurmdbd keeps: the final state and times of every run.

With -D a requeued job has one row for each of its runs. Which GPUs a run held is not there: Slurm
forgets that when the job leaves RUNNING.
"""

import re
from datetime import UTC, datetime

from flopwatch_server.scheduler.records import JobRecord
from flopwatch_server.scheduler.slurm import fields
from flopwatch_server.scheduler.slurm.client import Client
from flopwatch_server.scheduler.slurm.gres import tres_gpu_count
from flopwatch_server.scheduler.slurm.table import Answer, Row, new_mark, read_each, split_rows

COLUMNS = (
    "JobIDRaw",
    "JobID",
    "State",
    "Submit",
    "Start",
    "End",
    "Suspended",
    "TimelimitRaw",
    "NNodes",
    "NodeList",
    "AllocTRES",
    "ReqTRES",
    "ExitCode",
    "User",
    "Account",
    "Partition",
    "QOS",
    "Reason",
    "JobName",
)

_NEWER = frozenset({"SLUID"})
"""Asked for where sacct knows of it, as in 24.11 and not in 22.05."""

ENDED = "BF,CA,CD,DL,F,NF,OOM,PR,RQ,RV,TO"
"""sacct's letters for every state in which a run is over; RQ ends a run that starts again."""

_DISPLAY_ID = re.compile(
    r"(?P<first>[0-9]{1,18})(?:_(?P<task>[0-9]{1,18})|_\[[^\]]*\]?|\+(?P<offset>[0-9]{1,18}))?"
)


def read_ended(client: Client, since: datetime, until: datetime | None) -> Answer[JobRecord]:
    """Runs that ended at or after `since`, to the second, and before `until` if told; each once.

    For about two seconds the row of a short job has no partition, no limit and a made-up name: its
    end was stored before its start. Such a row is left out and told by a later, overlapping call.
    """
    mark = new_mark()
    columns = (*_NEWER.intersection(client.ask("sacct", "--helpformat").split()), *COLUMNS)
    text = client.ask(
        "sacct",
        *("--allusers", "--allocations", "--duplicates", "--local", "--noheader"),
        *("--parsable2", f"--delimiter={mark}", f"--format={','.join(columns)}"),
        *(f"--state={ENDED}", f"--starttime={_utc(since)}"),
        f"--endtime={_utc(until) if until else 'now'}",
    )
    complete = (row for row in split_rows(text, columns, mark) if row["Partition"])
    answer = read_each(complete, parse_job)
    runs = {(record.raw_job_id, record.submitted_at): record for record in answer.records}
    answer.records = list(runs.values())
    return answer


def _utc(time: datetime) -> str:
    return f"{time.astimezone(UTC):%Y-%m-%dT%H:%M:%S}"


def parse_job(row: Row) -> JobRecord:
    """One row as a record; raises FieldError naming the field of unknown shape."""
    raw_job_id = fields.whole_number(row, "JobIDRaw")
    display = _DISPLAY_ID.fullmatch(row["JobID"])
    if display is None:
        raise fields.FieldError("JobID", row["JobID"])
    first = int(display["first"])
    in_array = "_" in row["JobID"]
    in_het_job = display["offset"] is not None
    nodes = fields.node_names(row, "NodeList")
    requested = tres_gpu_count(row, "ReqTRES")
    allocated = tres_gpu_count(row, "AllocTRES")
    return JobRecord(
        raw_job_id=raw_job_id,
        submitted_at=fields.required_moment(row, "Submit"),
        state=fields.state(row, "State"),
        name=row["JobName"],
        user=row["User"],
        account=row["Account"],
        display_id=row["JobID"],
        partition=row["Partition"],
        qos=row["QOS"],
        reason="" if row["Reason"] == "None" else row["Reason"],
        # A job cancelled while it waited may have its end as its start, but never a node.
        started_at=fields.moment(row, "Start") if nodes else None,
        ended_at=fields.required_moment(row, "End"),
        time_limit_seconds=fields.minutes_as_seconds(row, "TimelimitRaw"),
        suspended_seconds=fields.duration_seconds(row, "Suspended"),
        exit_code=row["ExitCode"] or None,
        gpu_count=requested if allocated is None else allocated,
        node_count=fields.optional_number(row, "NNodes"),
        nodes=nodes,
        array_job_id=first if in_array else None,
        array_task_id=int(display["task"]) if display["task"] else None,
        het_job_id=first if in_het_job else None,
        het_offset=int(display["offset"]) if in_het_job else None,
        sluid=fields.sluid(row.get("SLUID")),
    )
