"""Fair share, as sshare prints it: usage moves with slurmctld's PriorityCalcPeriod.

sshare and sacctmgr separate columns by bars and know no other mark. No owner of a job chooses what
stands in these: accounts and users are named by admins.
"""

import math

from flopwatch_server.scheduler.records import ShareRecord
from flopwatch_server.scheduler.slurm import fields
from flopwatch_server.scheduler.slurm.client import Client
from flopwatch_server.scheduler.slurm.table import Answer, Row, read_each, split_rows

BAR = "|"
COLUMNS = (
    "Account",
    "User",
    "Partition",
    "RawShares",
    "NormShares",
    "RawUsage",
    "EffectvUsage",
    "FairShare",
    "LevelFS",
)


def read_shares(client: Client) -> Answer[ShareRecord]:
    """The fair share of every account and of every user in one."""
    text = client.ask(
        "sshare", "--all", "--noheader", "--parsable2", f"--format={','.join(COLUMNS)}"
    )
    return read_each(split_rows(text, COLUMNS, BAR), parse_share)


def parse_share(row: Row) -> ShareRecord:
    """One row as a record; raises FieldError naming the field of unknown shape.

    The account is indented by its depth in the tree. Of an account without shares of its own, as
    the root is, NormShares says 0.
    """
    account = row["Account"].lstrip(" ")
    if not account:
        raise fields.FieldError("Account", row["Account"])
    shares = raw_shares(row, "RawShares")
    has_part = shares is not None or row["User"]
    return ShareRecord(
        account=account,
        user=row["User"] or None,
        partition=row["Partition"],
        raw_shares=shares,
        norm_shares=_fraction(row, "NormShares") if has_part else None,
        raw_usage=fields.optional_number(row, "RawUsage"),
        effective_usage=_fraction(row, "EffectvUsage"),
        fair_share=_fraction(row, "FairShare"),
        level_fs=math.inf if row["LevelFS"] == "inf" else fields.decimal(row, "LevelFS"),
    )


def raw_shares(row: Row, field: str) -> int | None:
    """A count of shares; None for "parent", and for the root of the tree, which has none."""
    return None if row[field] in ("", "parent") else fields.whole_number(row, field)


def _fraction(row: Row, field: str) -> float | None:
    value = fields.decimal(row, field)
    if value is not None and value > 1:
        raise fields.FieldError(field, row[field])
    return value
