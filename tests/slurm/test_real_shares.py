"""People and fair share of a running Slurm: what is expected follows from what was set up."""

import math

import pytest

from flopwatch_server.scheduler.records import (
    AssociationRecord,
    SchedulerError,
    ShareRecord,
    UserRecord,
)
from flopwatch_server.scheduler.slurm import Slurm
from tests.lab.slurm import SlurmLab, wait_until


@pytest.fixture(scope="module")
def slurm(slurm_lab: SlurmLab) -> Slurm:
    """The lab, named as Slurm does not name it, with accounts below those that it begins with."""
    for change in (
        ("add", "account", "group", "parent=root", "fairshare=60"),
        ("add", "account", "team", "parent=group", "fairshare=7"),
        ("add", "account", "guests", "parent=group", "fairshare=parent"),
        ("add", "user", "fwalice", "account=team", "partition=debug", "fairshare=3"),
        ("add", "user", "fwbob", "account=guests", "fairshare=parent"),
        ("add", "coordinator", "account=group", "names=fwbob"),
        ("modify", "user", "fwalice", "set", "adminlevel=operator"),
    ):
        slurm_lab.run("sacctmgr", "--immediate", *change)
    return Slurm("another name", slurm_lab.environment)


def test_accounts_users_and_their_shares_are_read(slurm: Slurm) -> None:
    associations = set(slurm.people().associations)
    assert associations >= {
        AssociationRecord("root", None, None, 1),
        AssociationRecord("group", None, "root", 60),
        AssociationRecord("team", None, "group", 7),
        AssociationRecord("guests", None, "group", None),
        AssociationRecord("team", "fwalice", None, 3, "debug"),
        AssociationRecord("guests", "fwbob", None, None),
        AssociationRecord("vision", "fwalice", None, 1),
        AssociationRecord("physics", "fwbob", None, 1),
    }


def test_who_looks_after_an_account_looks_after_those_below_it(slurm: Slurm) -> None:
    users = {user.name: user for user in slurm.people().users}
    assert set(users["fwbob"].coordinates) == {"group", "team", "guests"}
    assert users["fwalice"] == UserRecord("fwalice", "Operator", ())
    assert users["root"].admin_level == "Administrator"


def test_the_fair_share_of_those_who_have_used_nothing(slurm: Slurm) -> None:
    def shares() -> dict[tuple[str, str | None, str], ShareRecord]:
        return {(one.account, one.user, one.partition): one for one in slurm.shares()}

    alice = ("team", "fwalice", "debug")
    wait_until(lambda: alice in shares(), "slurmctld knows the new user", 20.0)
    found = shares()
    assert found[alice].raw_shares == 3
    assert (found[alice].raw_usage, found[alice].effective_usage) == (0, 0.0)
    assert found["root", "root", ""].level_fs == math.inf  # a new one's comes a period later
    assert found["guests", None, ""].norm_shares is None
    assert found["guests", "fwbob", ""].level_fs is None
    assert found["root", None, ""].norm_shares is None
    assert slurm.refusals() == []


def test_without_slurmdbd_people_are_not_known_but_shares_are(
    slurm: Slurm, slurm_lab: SlurmLab
) -> None:
    slurm_lab.slurmdbd.stop()
    try:
        with pytest.raises(SchedulerError, match=r"sacctmgr: exit status 1: .*Connection refused"):
            slurm.people()
        assert len(slurm.shares()) > 0
    finally:
        slurm_lab.slurmdbd.start()
