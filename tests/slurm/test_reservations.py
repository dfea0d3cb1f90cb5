"""Reservations as scontrol of 22.05 printed them; the expected values were read off by hand."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

import pytest

from flopwatch_server.scheduler.records import ReservationRecord, SchedulerError
from flopwatch_server.scheduler.slurm import Slurm

MAINTENANCE = (
    "ReservationName=maint day StartTime=1796023193 EndTime=1796026793 Duration=01:00:00"
    " Nodes=n1 NodeCnt=1 CoreCnt=64 Features=(null) PartitionName=(null)"
    " Flags=MAINT,IGNORE_JOBS,SPEC_NODES TRES=cpu=64 Users=root Groups=(null) Accounts=(null)"
    " Licenses=(null) State=ACTIVE BurstBuffer=(null) Watts=n/a MaxStartDelay=(null)"
)
ONE_CORE = (
    "ReservationName=one StartTime=1796026793 EndTime=1827562793 Duration=365-00:00:00"
    " Nodes=n[1-2] NodeCnt=2 CoreCnt=2 Features=(null) PartitionName=gpu Flags="
    " TRES=cpu=2 Users=(null) Groups=(null) Accounts=vision,physics Licenses=(null)"
    " State=INACTIVE BurstBuffer=(null) Watts=n/a MaxStartDelay=(null)"
)
LICENSES = (
    "ReservationName=lic StartTime=1796026793 EndTime=1827562793 Duration=365-00:00:00"
    " Nodes=(null) NodeCnt=0 CoreCnt=0 Features=(null) PartitionName=(null) Flags=ANY_NODES"
    " TRES=(null) Users=root Groups=(null) Accounts=(null) Licenses=matlab:2 State=INACTIVE"
    " BurstBuffer=(null) Watts=n/a MaxStartDelay=(null)"
)


def slurm_that_prints(*lines: str) -> Slurm:
    def run(command: Sequence[str], environment: Mapping[str, str], deadline: float) -> str:
        if command[0] == "scontrol":
            assert command[1:] == ("show", "reservation", "--oneliner")
            return "".join(f"{line}\n" for line in lines)
        assert command[0] == "sinfo"
        mark = command[-1].removeprefix("NodeList:0").partition(",")[0]
        return f"n1{mark}64\nn2{mark}64\n"

    return Slurm("lab", run=run)


def test_whole_nodes_and_parts_of_some_are_told_apart_and_licenses_left_aside() -> None:
    slurm = slurm_that_prints(MAINTENANCE, "", ONE_CORE, LICENSES)
    assert slurm.reservations() == [
        ReservationRecord(
            name="maint day",
            starts_at=datetime(2026, 11, 30, 7, 19, 53, tzinfo=UTC),
            ends_at=datetime(2026, 11, 30, 8, 19, 53, tzinfo=UTC),
            nodes=("n1",),
            users=("root",),
            flags=("MAINT", "IGNORE_JOBS", "SPEC_NODES"),
        ),
        ReservationRecord(
            name="one",
            starts_at=datetime(2026, 11, 30, 8, 19, 53, tzinfo=UTC),
            ends_at=datetime(2027, 11, 30, 8, 19, 53, tzinfo=UTC),
            nodes=("n1", "n2"),
            is_whole=False,
            accounts=("vision", "physics"),
        ),
    ]
    assert slurm.refusals() == []


def test_no_reservation_is_no_record() -> None:
    assert slurm_that_prints("No reservations in the system").reservations() == []


@pytest.mark.parametrize(
    ("line", "field"),
    [
        (MAINTENANCE.replace("EndTime=1796026793", "EndTime=2026-11-30T08:19:53"), "EndTime"),
        (MAINTENANCE.replace("StartTime=1796023193", "StartTime=Unknown"), "StartTime"),
        (MAINTENANCE.replace("Nodes=n1", "Nodes=n1;rm"), "Nodes"),
        (MAINTENANCE.replace("TRES=", "Tres="), "TRES"),
        ("something else", "EndTime"),
    ],
)
def test_an_unknown_shape_is_refused_by_its_field_and_the_others_go_on(
    line: str, field: str
) -> None:
    slurm = slurm_that_prints(line, ONE_CORE)
    assert [record.name for record in slurm.reservations()] == ["one"]
    assert [(one.call, one.field) for one in slurm.refusals()] == [("reservations", field)]
    with pytest.raises(SchedulerError, match=f"reservations: no record can be read: {field}"):
        slurm_that_prints(line).reservations()
