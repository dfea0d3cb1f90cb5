"""QOS as slurmdbd keeps them, for all its clusters alike."""

from flopwatch_server.scheduler.records import QosRecord
from flopwatch_server.scheduler.slurm import fields
from flopwatch_server.scheduler.slurm.client import Client
from flopwatch_server.scheduler.slurm.shares import BAR
from flopwatch_server.scheduler.slurm.table import Answer, Row, read_each, split_rows

COLUMNS = (
    "Name",
    "Priority",
    "Preempt",
    "PreemptMode",
    "UsageFactor",
    "MaxWall",
    "MaxTRESPerUser",
)

_GPUS = "gres/gpu"


def read_qos(client: Client) -> Answer[QosRecord]:
    """Every QOS; slurmdbd must run."""
    text = client.ask(
        *("sacctmgr", "--noheader", "--parsable2", "show", "qos"), f"format={','.join(COLUMNS)}"
    )
    return read_each(split_rows(text, COLUMNS, BAR), parse_qos)


def parse_qos(row: Row) -> QosRecord:
    """One row as a record; raises FieldError naming the field of unknown shape."""
    if not row["Name"]:
        raise fields.FieldError("Name", row["Name"])
    usage_factor = fields.decimal(row, "UsageFactor")
    if usage_factor is None:
        raise fields.FieldError("UsageFactor", row["UsageFactor"])
    return QosRecord(
        name=row["Name"],
        priority=fields.whole_number(row, "Priority"),
        preempts=tuple(sorted(filter(None, row["Preempt"].split(",")))),
        preempt_mode=row["PreemptMode"].upper(),
        usage_factor=usage_factor,
        max_wall_seconds=fields.duration_seconds(row, "MaxWall"),
        max_gpus_per_user=_gpus(row, "MaxTRESPerUser"),
    )


def _gpus(row: Row, field: str) -> int | None:
    """GPUs of all types in "cpu=128,gres/gpu:h100=8,gres/gpu=16": a limit of one type is none."""
    limits = dict(part.partition("=")[::2] for part in row[field].split(","))
    if _GPUS not in limits:
        return None
    if not fields.is_number(limits[_GPUS]):
        raise fields.FieldError(field, row[field])
    return int(limits[_GPUS])
