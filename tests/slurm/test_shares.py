"""Fair share, from a captured sshare; the expected values were read off that file by hand."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from flopwatch_server.scheduler.records import SchedulerError, ShareRecord
from flopwatch_server.scheduler.slurm import Slurm
from flopwatch_server.scheduler.slurm.fields import FieldError
from flopwatch_server.scheduler.slurm.shares import COLUMNS, parse_share

CASES = Path(__file__).parent / "cases/22.05"
ALICE = {
    "Account": "   vision", "User": "alice", "Partition": "", "RawShares": "10",
    "NormShares": "0.250000", "RawUsage": "41723", "EffectvUsage": "0.734523",
    "FairShare": "0.166667", "LevelFS": "0.340357",
}  # fmt: skip


def captured_rows(case: str = "sshare.txt") -> list[dict[str, str]]:
    """A capture's rows, with two columns that the first lacks and our own call asks for."""
    names, *lines = (line.split("|") for line in (CASES / case).read_text().splitlines())
    return [
        {"Partition": "", "LevelFS": ""} | dict(zip(names, line, strict=True)) for line in lines
    ]


def slurm_that_prints(text: str) -> Slurm:
    def run(command: Sequence[str], environment: Mapping[str, str], deadline: float) -> str:
        assert command == (
            "sshare", "--all", "--noheader", "--parsable2",
            "--format=Account,User,Partition,RawShares,NormShares,RawUsage,EffectvUsage,"
            "FairShare,LevelFS",
        )  # fmt: skip
        return text

    return Slurm("lab", run=run)


def printed(*rows: Mapping[str, str]) -> str:
    return "".join("|".join(row[column] for column in COLUMNS) + "\n" for row in rows)


def test_every_captured_row_is_read_and_accounts_lose_their_indentation() -> None:
    records = [parse_share(row) for row in captured_rows()]
    assert [(record.account, record.user) for record in records] == [
        ("root", None), ("root", "root"), ("research", None), ("physics", None),
        ("physics", "alice"), ("physics", "carol"), ("physics", "root"), ("vision", None),
        ("vision", "alice"), ("vision", "bob"),
    ]  # fmt: skip


def test_a_user_in_an_account() -> None:
    [bob] = [row for row in captured_rows() if row["User"] == "bob"]
    assert parse_share(bob) == ShareRecord(
        account="vision",
        user="bob",
        raw_shares=30,
        norm_shares=0.75,
        raw_usage=15080,
        effective_usage=0.265477,
        fair_share=0.333333,
    )


def test_an_account_has_shares_and_no_factor() -> None:
    [physics] = [row for row in captured_rows() if row["Account"].strip() == "physics"][:1]
    assert parse_share(physics) == ShareRecord(
        account="physics",
        raw_shares=30,
        norm_shares=0.3,
        raw_usage=10975,
        effective_usage=0.16193,
    )


def test_the_root_of_the_tree_has_no_shares_rather_than_none_of_them() -> None:
    root = parse_share(captured_rows()[0])
    assert (root.raw_shares, root.norm_shares) == (None, None)
    assert (root.raw_usage, root.effective_usage) == (67779, 1.0)


def test_the_levels_of_a_captured_tree() -> None:
    records = [parse_share(row) for row in captured_rows("sshare_levels.txt")]
    assert [
        (record.account, record.user, record.partition, record.raw_shares, record.norm_shares,
         record.level_fs)
        for record in records
    ] == [
        ("root", None, "", None, None, None),
        ("root", "root", "", 1, 0.015873, math.inf),
        ("physics", None, "", 1, 0.015873, math.inf),
        ("physics", "bob", "", None, 0.015873, None),
        ("research", None, "", 60, 0.952381, math.inf),
        ("nlp", None, "", 7, 1.0, math.inf),
        ("nlp", "alice", "debug", 3, 1.0, math.inf),
        ("vision", None, "", None, None, None),
        ("vision", "alice", "", 1, 0.015873, 0.015873),
    ]  # fmt: skip


def test_a_level_above_one_and_one_below() -> None:
    assert parse_share(ALICE).level_fs == 0.340357
    assert parse_share({**ALICE, "LevelFS": "12.420853"}).level_fs == 12.420853


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("Account", ""),
        ("Account", "  "),
        ("RawShares", "-1"),
        ("NormShares", "1.000001"),
        ("NormShares", "0,25"),
        ("RawUsage", "4e4"),
        ("EffectvUsage", "inf"),
        ("FairShare", "nan"),
        ("LevelFS", "-nan"),
        ("LevelFS", "infinite"),
    ],
)
def test_an_unknown_shape_is_refused_by_the_name_of_its_column(column: str, value: str) -> None:
    with pytest.raises(FieldError, match=f"^{column} reads"):
        parse_share({**ALICE, column: value})


def test_the_call_asks_for_its_columns_by_name_and_leaves_out_a_bad_row() -> None:
    bad = {**ALICE, "RawUsage": "much"}
    slurm = slurm_that_prints(printed(ALICE, bad, {**ALICE, "User": "bob"}))
    assert [record.user for record in slurm.shares()] == ["alice", "bob"]


def test_a_bar_in_a_name_shifts_no_column() -> None:
    slurm = slurm_that_prints(printed({**ALICE, "Account": "vi|sion"}, ALICE))
    with pytest.raises(SchedulerError, match="rows do not have the columns Account, User"):
        slurm.shares()
