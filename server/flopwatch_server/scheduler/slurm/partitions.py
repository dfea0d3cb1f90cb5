"""Partitions, as scontrol prints them: one line each, named by admins and without free text."""

from flopwatch_server.scheduler.records import PartitionRecord
from flopwatch_server.scheduler.slurm import fields
from flopwatch_server.scheduler.slurm.client import Client
from flopwatch_server.scheduler.slurm.table import Answer, Row, read_each

COLUMNS = ("PartitionName", "State", "Default", "MaxTime", "QoS", "PreemptMode")

_NONE = "No partitions in the system"
_YES_OR_NO = {"YES": True, "NO": False}
_NO_QOS = frozenset({"", "N/A", "(null)"})


def read_partitions(client: Client) -> Answer[PartitionRecord]:
    """Every partition, those that are hidden from users too."""
    text = client.ask("scontrol", "show", "partition", "--all", "--oneliner")
    lines = (line for line in text.splitlines() if line.strip() and line.strip() != _NONE)
    return read_each(map(_row, lines), parse_partition)


def parse_partition(row: Row) -> PartitionRecord:
    """One line as a record; raises FieldError naming the field of unknown shape."""
    for column in COLUMNS:
        if column not in row:
            raise fields.FieldError(column, "")
    if not row["PartitionName"]:
        raise fields.FieldError("PartitionName", "")
    if row["Default"] not in _YES_OR_NO:
        raise fields.FieldError("Default", row["Default"])
    return PartitionRecord(
        name=row["PartitionName"],
        state=fields.state(row, "State"),
        is_default=_YES_OR_NO[row["Default"]],
        max_time_seconds=fields.duration_seconds(row, "MaxTime"),
        qos=None if row["QoS"] in _NO_QOS else row["QoS"],
        preempt_mode=row["PreemptMode"].upper(),
    )


def _row(line: str) -> dict[str, str]:
    pairs = (word.partition("=") for word in line.split())
    return {name: value for name, _, value in pairs}
