"""Accounts, who is in them and who looks after them, from a captured sacctmgr."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from flopwatch_server.scheduler.records import (
    AssociationRecord,
    People,
    SchedulerError,
    UserRecord,
)
from flopwatch_server.scheduler.slurm import Slurm
from flopwatch_server.scheduler.slurm.accounts import parse_association, parse_user
from flopwatch_server.scheduler.slurm.fields import FieldError

CAPTURE = Path(__file__).parent / "cases/22.05/sacctmgr_assoc.txt"
PARENTS = {"research": "root", "physics": "research", "vision": "research"}
VISION = {"Account": "vision", "ParentName": "research", "User": "", "Partition": "", "Share": "70"}
ALICE = {"User": "alice", "AdminLevel": "None", "Coordinators": ""}

ASSOCIATIONS = ("sacctmgr", "--noheader", "--parsable2", "show", "associations", "cluster=granite",
                "format=Account,ParentName,User,Partition,Share")  # fmt: skip
USERS = ("sacctmgr", "--noheader", "--parsable2", "show", "users", "withcoordinators",
         "format=User,AdminLevel,Coordinators")  # fmt: skip
CONFIG = ("scontrol", "show", "config")


def captured_rows() -> list[dict[str, str]]:
    """The capture's rows with the parent, which it lacks and our own call asks for."""
    names, *lines = (line.split("|") for line in CAPTURE.read_text().splitlines())
    rows = [dict(zip(names, line, strict=True)) for line in lines]
    return [
        row | {"ParentName": "" if row["User"] else PARENTS.get(row["Account"], "")} for row in rows
    ]


def slurm_that_prints(answers: Mapping[Sequence[str], str]) -> Slurm:
    def run(command: Sequence[str], environment: Mapping[str, str], deadline: float) -> str:
        return answers[command]

    return Slurm("the name in Flopwatch", run=run)


def test_every_captured_association_is_read() -> None:
    records = [parse_association(row) for row in captured_rows()]
    assert records == [
        AssociationRecord("root", None, None, 1),
        AssociationRecord("root", "root", None, 1),
        AssociationRecord("research", None, "root", 60),
        AssociationRecord("physics", None, "research", 30),
        AssociationRecord("physics", "alice", None, 5),
        AssociationRecord("physics", "carol", None, 1),
        AssociationRecord("physics", "root", None, 1),
        AssociationRecord("vision", None, "research", 70),
        AssociationRecord("vision", "alice", None, 10),
        AssociationRecord("vision", "bob", None, 30),
    ]


def test_who_shares_with_the_parent_has_no_shares() -> None:
    assert parse_association({**VISION, "Share": "parent"}).raw_shares is None


def test_a_user_may_be_in_an_account_for_one_partition() -> None:
    row = {**VISION, "ParentName": "", "User": "alice", "Partition": "debug"}
    assert parse_association(row) == AssociationRecord("vision", "alice", None, 70, "debug")


@pytest.mark.parametrize(
    ("columns", "record"),
    [
        ({}, UserRecord("alice", "None", ())),
        ({"AdminLevel": "Operator"}, UserRecord("alice", "Operator", ())),
        ({"AdminLevel": "Administrator"}, UserRecord("alice", "Administrator", ())),
        ({"Coordinators": "physics"}, UserRecord("alice", "None", ("physics",))),
        ({"Coordinators": "physics,vision"}, UserRecord("alice", "None", ("physics", "vision"))),
    ],
)
def test_a_user_has_a_level_and_accounts_to_look_after(
    columns: dict[str, str], record: UserRecord
) -> None:
    assert parse_user({**ALICE, **columns}) == record


@pytest.mark.parametrize(("column", "value"), [("Account", ""), ("Share", "many")])
def test_an_association_of_unknown_shape_is_refused_by_column(column: str, value: str) -> None:
    with pytest.raises(FieldError, match=f"^{column} reads"):
        parse_association({**VISION, column: value})


@pytest.mark.parametrize(("column", "value"), [("User", ""), ("AdminLevel", "Not Set")])
def test_a_user_of_unknown_shape_is_refused_by_column(column: str, value: str) -> None:
    with pytest.raises(FieldError, match=f"^{column} reads"):
        parse_user({**ALICE, column: value})


def test_people_are_those_of_this_cluster_by_the_name_that_slurm_gives_it() -> None:
    slurm = slurm_that_prints(
        {
            CONFIG: "ClusterId               = 7\nClusterName             = granite\n",
            ASSOCIATIONS: "vision|root|||70\nvision||alice||10\n",
            USERS: "alice|None|vision\nelsewhere|Operator|\n",
        }
    )
    assert slurm.people() == People(
        associations=(
            AssociationRecord("vision", None, "root", 70),
            AssociationRecord("vision", "alice", None, 10),
        ),
        users=(UserRecord("alice", "None", ("vision",)),),
    )


def test_a_configuration_without_a_name_is_an_error_and_not_all_clusters() -> None:
    with pytest.raises(SchedulerError, match="no ClusterName"):
        slurm_that_prints({CONFIG: "ClusterId = 7\n"}).people()
