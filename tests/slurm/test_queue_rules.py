"""Partitions and QOS with their limits, from a captured scontrol and sacctmgr."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from flopwatch_server.scheduler.records import (
    PartitionRecord,
    QosRecord,
    Refusal,
    SchedulerError,
)
from flopwatch_server.scheduler.slurm import Slurm
from flopwatch_server.scheduler.slurm.fields import FieldError
from flopwatch_server.scheduler.slurm.partitions import parse_partition
from flopwatch_server.scheduler.slurm.qos import parse_qos

CASES = Path(__file__).parent / "cases/22.05"
DAY, HOUR, MINUTE = 86400, 3600, 60
PARTITION = {"PartitionName": "gpu", "State": "UP", "Default": "NO", "MaxTime": "30:00",
             "QoS": "N/A", "PreemptMode": "OFF"}  # fmt: skip
QOS = {"Name": "high", "Priority": "7", "Preempt": "", "PreemptMode": "cluster",
       "UsageFactor": "1.000000", "MaxWall": "", "MaxTRESPerUser": ""}  # fmt: skip
CALLS = {
    ("scontrol", "show", "partition", "--all", "--oneliner"): "scontrol_show_partition_o.txt",
    ("sacctmgr", "--noheader", "--parsable2", "show", "qos",
     "format=Name,Priority,Preempt,PreemptMode,UsageFactor,MaxWall,MaxTRESPerUser"):
        "sacctmgr_qos.txt",
}  # fmt: skip


def slurm_that_prints(text: str | None = None) -> Slurm:
    """It prints this or, without it, what was captured."""

    def run(command: Sequence[str], environment: Mapping[str, str], deadline: float) -> str:
        captured = (CASES / CALLS[tuple(command)]).read_text()
        return captured if text is None else text

    return Slurm("granite", run=run)


def test_every_captured_partition_is_read() -> None:
    assert slurm_that_prints().partitions() == [
        PartitionRecord("gpu", "UP", True, None, None, "REQUEUE"),
        PartitionRecord("debug", "UP", False, HOUR, None, "REQUEUE"),
        PartitionRecord("night", "DOWN", False, 2 * DAY, "high", "CANCEL"),
        PartitionRecord("empty", "INACTIVE", False, 90 * MINUTE, None, "REQUEUE"),
    ]


def test_every_captured_qos_is_read() -> None:
    assert slurm_that_prints().qos() == [
        QosRecord("normal", 0, (), "CLUSTER", 1.0, None, None),
        QosRecord("high", 100, ("normal",), "REQUEUE", 2.5, DAY + 12 * HOUR + 30 * MINUTE, 16),
        QosRecord("free", 0, (), "CANCEL", 0.0, 90 * MINUTE, None),
        QosRecord("top", 0, ("high", "normal"), "SUSPEND", 1.0, None, None),
    ]


@pytest.mark.parametrize(
    ("limits", "gpus"),
    [
        ("", None),
        ("cpu=128", None),
        ("gres/gpu=0", 0),
        ("gres/gpu:a100=2,gres/gpu=4", 4),
        ("gres/gpu:a100=2,gres/gpu:h100=4", None),
    ],
)
def test_a_limit_of_gpus_is_one_of_all_types_or_none(limits: str, gpus: int | None) -> None:
    assert parse_qos({**QOS, "MaxTRESPerUser": limits}).max_gpus_per_user == gpus


@pytest.mark.parametrize(
    ("column", "value"),
    [("PartitionName", ""), ("Default", "MAYBE"), ("MaxTime", "soon"), ("State", "half-up")],
)
def test_a_partition_of_unknown_shape_is_refused_by_field(column: str, value: str) -> None:
    with pytest.raises(FieldError, match=f"^{column} reads"):
        parse_partition({**PARTITION, column: value})


def test_a_partition_that_lacks_a_field_is_refused_by_it() -> None:
    with pytest.raises(FieldError, match=r"^QoS reads"):
        parse_partition({name: value for name, value in PARTITION.items() if name != "QoS"})


@pytest.mark.parametrize(
    ("column", "value"),
    [("Name", ""), ("Priority", "-1"), ("UsageFactor", ""), ("UsageFactor", "much"),
     ("MaxWall", "soon"), ("MaxTRESPerUser", "gres/gpu=many")],
)  # fmt: skip
def test_a_qos_of_unknown_shape_is_refused_by_field(column: str, value: str) -> None:
    with pytest.raises(FieldError, match=f"^{column} reads"):
        parse_qos({**QOS, column: value})


def test_one_line_that_can_not_be_read_harms_no_other() -> None:
    captured = (CASES / "scontrol_show_partition_o.txt").read_text()
    slurm = slurm_that_prints(captured.replace("MaxTime=01:00:00", "MaxTime=soon"))
    assert [one.name for one in slurm.partitions()] == ["gpu", "night", "empty"]
    assert slurm.refusals() == [Refusal("partitions", "MaxTime", "MaxTime reads 'soon'")]


def test_a_slurm_without_partitions_has_none_and_another_text_is_an_error() -> None:
    assert slurm_that_prints("No partitions in the system\n").partitions() == []
    with pytest.raises(SchedulerError, match="PartitionName"):
        slurm_that_prints("slurm_load_partitions: odd\n").partitions()
