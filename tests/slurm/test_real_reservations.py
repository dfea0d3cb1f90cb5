"""Reservations of a running Slurm: what is expected follows from what was reserved."""

from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from flopwatch_server.scheduler.slurm import Slurm
from tests.lab.slurm import SlurmLab

STARTS, ENDS = 4_000_000_000, 4_000_003_600  # in the year 2096


@pytest.fixture
def reserved(slurm_lab: SlurmLab) -> Iterator[SlurmLab]:
    """A whole node for two users, and one core of the other for an account."""
    first, second = slurm_lab.nodes
    starts = datetime.fromtimestamp(STARTS).isoformat()
    create = ("scontrol", "create", "reservation", f"starttime={starts}", "duration=60")
    slurm_lab.run(*create, "reservationname=a course", f"nodes={first}", "users=fwalice,fwbob")
    slurm_lab.run(
        *create, "reservationname=core", f"nodes={second}", "corecnt=1", "accounts=vision"
    )
    yield slurm_lab
    for name in ("a course", "core"):
        slurm_lab.run("scontrol", "delete", "reservation", name)


def test_reservations_are_read(reserved: SlurmLab) -> None:
    slurm = Slurm(reserved.cluster, reserved.environment)
    first, second = reserved.nodes
    course, core = sorted(slurm.reservations(), key=lambda record: record.name)
    when = datetime.fromtimestamp(STARTS, UTC), datetime.fromtimestamp(ENDS, UTC)
    assert (course.name, course.starts_at, course.ends_at) == ("a course", *when)
    assert (course.nodes, course.is_whole, course.users) == ((first,), True, ("fwalice", "fwbob"))
    assert (core.nodes, core.is_whole, core.accounts) == ((second,), False, ("vision",))
    assert slurm.refusals() == []


def test_without_any_there_are_none(slurm_lab: SlurmLab) -> None:
    assert Slurm(slurm_lab.cluster, slurm_lab.environment).reservations() == []
