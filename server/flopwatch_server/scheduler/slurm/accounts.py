"""Who is in which account and who looks after it, as slurmdbd keeps it for all its clusters."""

import re
from typing import get_args

from flopwatch_server.scheduler.records import (
    AdminLevel,
    AssociationRecord,
    SchedulerError,
    UserRecord,
)
from flopwatch_server.scheduler.slurm import fields
from flopwatch_server.scheduler.slurm.client import Client
from flopwatch_server.scheduler.slurm.shares import BAR, raw_shares
from flopwatch_server.scheduler.slurm.table import Answer, Row, read_each, split_rows

ASSOCIATION_COLUMNS = ("Account", "ParentName", "User", "Partition", "Share")
USER_COLUMNS = ("User", "AdminLevel", "Coordinators")

_ADMIN_LEVELS: dict[str, AdminLevel] = {word: word for word in get_args(AdminLevel)}
_CLUSTER_NAME = re.compile(r"^ClusterName\s*= (\S+)\s*$", re.MULTILINE)


def read_associations(client: Client) -> Answer[AssociationRecord]:
    """Every account of this cluster and every user in one."""
    cluster = f"cluster={_cluster_name(client)}"
    text = _listed(client, ASSOCIATION_COLUMNS, "associations", cluster)
    return read_each(split_rows(text, ASSOCIATION_COLUMNS, BAR), parse_association)


def read_users(client: Client) -> Answer[UserRecord]:
    """Every user that slurmdbd knows, those of other clusters too."""
    text = _listed(client, USER_COLUMNS, "users", "withcoordinators")
    return read_each(split_rows(text, USER_COLUMNS, BAR), parse_user)


def parse_association(row: Row) -> AssociationRecord:
    """One row as a record; raises FieldError naming the field of unknown shape."""
    if not row["Account"]:
        raise fields.FieldError("Account", row["Account"])
    return AssociationRecord(
        account=row["Account"],
        user=row["User"] or None,
        parent=row["ParentName"] or None,
        raw_shares=raw_shares(row, "Share"),
        partition=row["Partition"],
    )


def parse_user(row: Row) -> UserRecord:
    """One row as a record; raises FieldError naming the field of unknown shape."""
    level = _ADMIN_LEVELS.get(row["AdminLevel"])
    if level is None:
        raise fields.FieldError("AdminLevel", row["AdminLevel"])
    if not row["User"]:
        raise fields.FieldError("User", row["User"])
    coordinates = row["Coordinators"]
    return UserRecord(row["User"], level, tuple(coordinates.split(",")) if coordinates else ())


def _listed(client: Client, columns: tuple[str, ...], *what: str) -> str:
    return client.ask(
        *("sacctmgr", "--noheader", "--parsable2", "show"), *what, f"format={','.join(columns)}"
    )


def _cluster_name(client: Client) -> str:
    """What Slurm itself calls this cluster; its name in Flopwatch may be another."""
    found = _CLUSTER_NAME.search(client.ask("scontrol", "show", "config"))
    if found is None:
        raise SchedulerError("scontrol show config: no ClusterName")
    return found[1]
