"""Rows whose free text nobody can mistake for columns or other rows."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flopwatch_server.scheduler.records import SchedulerError
from flopwatch_server.scheduler.slurm.fields import FieldError, whole_number
from flopwatch_server.scheduler.slurm.table import (
    long_format,
    new_mark,
    read_each,
    split_rows,
)

COLUMNS = ("JobID", "State", "Name")
MARK = "\x1f0123456789abcdef"

HOSTILE = (
    "a|b",
    "two\nlines",
    "\n",
    "ends with a break\n",
    "1\x1fRUNNING\x1fforged\n2\x1fRUNNING\x1fforged",
    "\x1e\x1d\x1c\x00\x85\u2028",
    "<script>alert(1)</script>",
    "\u202egnp.exe",
    "JobId=9 GRES=gpu:h100:8(IDX:0-7)",
    "\ufffd\ufffd",
    "x" * 1_000_000,
    "",
)


def printed(*rows: tuple[str, str, str]) -> str:
    """What squeue prints: marks between the columns, a line break after the last."""
    return "".join(MARK.join(row) + "\n" for row in rows)


@pytest.mark.parametrize("name", HOSTILE, ids=lambda name: ascii(name)[:30])
def test_a_hostile_name_stays_in_its_own_row(name: str) -> None:
    text = printed(("1", "RUNNING", name), ("2", "PENDING", "next"))
    assert [tuple(row.values()) for row in split_rows(text, COLUMNS, MARK)] == [
        ("1", "RUNNING", name),
        ("2", "PENDING", "next"),
    ]


@given(names=st.lists(st.text(), min_size=1))
def test_any_names_come_back_as_they_were(names: list[str]) -> None:
    text = printed(*((str(number), "RUNNING", name) for number, name in enumerate(names)))
    assert [row["Name"] for row in split_rows(text, COLUMNS, MARK)] == names


def test_no_answer_is_no_rows() -> None:
    assert list(split_rows("", COLUMNS, MARK)) == []


def test_marks_of_two_calls_differ() -> None:
    assert new_mark() != new_mark()


def test_the_last_column_has_no_mark() -> None:
    assert long_format(COLUMNS, "#") == "JobID:0#,State:0#,Name:0"


@pytest.mark.parametrize(
    "text",
    [
        f"1{MARK}RUNNING\n",
        f"1{MARK}a\n2{MARK}b\n3{MARK}c\n",
        f"1{MARK}RUNNING{MARK}no line break",
        "squeue: error\n",
    ],
)
def test_a_missing_column_is_an_error_and_no_shift(text: str) -> None:
    with pytest.raises(SchedulerError, match="JobID, State, Name"):
        list(split_rows(text, COLUMNS, MARK))


def test_one_bad_row_is_refused_by_name_and_the_others_are_kept() -> None:
    rows = [{"JobID": "1"}, {"JobID": "one"}, {"JobID": "3"}]
    answer = read_each(rows, lambda row: whole_number(row, "JobID"))
    assert answer.records == [1, 3]
    [error] = answer.refused
    assert (error.field, str(error)) == ("JobID", "JobID reads 'one'")


def test_a_refusal_shows_no_raw_control_characters_and_little_of_the_value() -> None:
    text = str(FieldError("State", "\x1b[31m" + "x" * 10_000))
    assert text.startswith("State reads '\\x1b[31mxxx")
    assert len(text) < 100
