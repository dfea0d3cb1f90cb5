"""Partitions and QOS of a running Slurm: what is expected follows from what was set up."""

from collections.abc import Iterator

import pytest

from flopwatch_server.scheduler.records import PartitionRecord, QosRecord
from flopwatch_server.scheduler.slurm import Slurm
from tests.lab.slurm import SlurmLab


@pytest.fixture(scope="module")
def slurm(slurm_lab: SlurmLab) -> Iterator[Slurm]:
    """The lab with a partition and a QOS more, while these tests run."""
    manager = ("sacctmgr", "--immediate")
    slurm_lab.run(
        *(*manager, "add", "qos", "urgent", "priority=100", "preempt=normal"),
        *("preemptmode=requeue", "usagefactor=2.5", "maxwall=1-12:30:00"),
        "maxtresperuser=cpu=128,gres/gpu=16,gres/gpu:h100=8",
    )
    slurm_lab.run(
        *("scontrol", "create", "partitionname=night", "state=down"),
        *("maxtime=2-00:00:00", "qos=urgent", "hidden=yes"),
    )
    yield Slurm("another name", slurm_lab.environment)
    slurm_lab.run("scontrol", "delete", "partitionname=night")
    slurm_lab.run(*manager, "delete", "qos", "urgent")


def test_partitions_are_read_the_hidden_too(slurm: Slurm) -> None:
    assert slurm.partitions() == [
        PartitionRecord("gpu", "UP", True, None, None, "OFF"),
        PartitionRecord("debug", "UP", False, 3600, None, "OFF"),
        PartitionRecord("night", "DOWN", False, 172800, "urgent", "OFF"),
    ]


def test_qos_are_read(slurm: Slurm) -> None:
    found = {one.name: one for one in slurm.qos()}
    assert found["normal"] == QosRecord("normal", 0, (), "CLUSTER", 1.0, None, None)
    assert found["urgent"] == QosRecord("urgent", 100, ("normal",), "REQUEUE", 2.5, 131400, 16)
    assert slurm.refusals() == []
