"""Single fields of Slurm's text; the forms are those of its manual pages and of captures."""

from datetime import UTC, datetime

import pytest

from flopwatch_server.scheduler.slurm import fields
from flopwatch_server.scheduler.slurm.fields import FieldError


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30:00", 1800),
        ("0:00", 0),
        ("1:02:03", 3723),
        ("2-00:00:00", 172_800),
        ("365-23:59:59", 31_622_399),
        ("UNLIMITED", None),
        ("NOT_SET", None),
        ("", None),
    ],
)
def test_a_duration_is_read_in_seconds(text: str, seconds: int | None) -> None:
    assert fields.duration_seconds({"TimeLimit": text}, "TimeLimit") == seconds


@pytest.mark.parametrize("text", ["30", "-1:00", "1:2", "٣٠:٠٠", "30:00\n", "soon"])
def test_another_duration_is_refused_by_name(text: str) -> None:
    with pytest.raises(FieldError, match="TimeLimit reads"):
        fields.duration_seconds({"TimeLimit": text}, "TimeLimit")


def test_a_time_is_epoch_seconds_in_utc() -> None:
    row = {"Start": "1795961810"}  # date -u -d @1795961810
    assert fields.moment(row, "Start") == datetime(2026, 11, 29, 14, 16, 50, tzinfo=UTC)


@pytest.mark.parametrize("text", ["N/A", "None", "Unknown", ""])
def test_no_time_yet_is_none(text: str) -> None:
    assert fields.moment({"Start": text}, "Start") is None
    with pytest.raises(FieldError, match="Start reads"):
        fields.required_moment({"Start": text}, "Start")


@pytest.mark.parametrize("text", ["2026-11-29T12:02:59", "1e9", "9" * 18, "9" * 5000, "-1"])
def test_another_time_is_refused_by_name(text: str) -> None:
    with pytest.raises(FieldError, match="Start reads"):
        fields.moment({"Start": text}, "Start")


def test_a_number_may_need_64_bits() -> None:
    assert fields.whole_number({"JobID": "4611686018427387"}, "JobID") == 4611686018427387


@pytest.mark.parametrize("text", ["", "1.5", "-3", "٣", "1\n", " 1", "0x1", "9" * 5000])
def test_what_is_no_number_is_refused_by_name(text: str) -> None:
    with pytest.raises(FieldError, match="JobID reads"):
        fields.whole_number({"JobID": text}, "JobID")


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ("RUNNING", "RUNNING"),
        ("CANCELLED by 1002", "CANCELLED"),
        ("OUT_OF_MEMORY", "OUT_OF_MEMORY"),
    ],
)
def test_a_state_is_its_first_word(text: str, state: str) -> None:
    assert fields.state({"State": text}, "State") == state


@pytest.mark.parametrize("text", ["", "running", "R?", "3"])
def test_another_state_is_refused_by_name(text: str) -> None:
    with pytest.raises(FieldError, match="State reads"):
        fields.state({"State": text}, "State")


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("node4", ("node4",)),
        ("node[1-2]", ("node1", "node2")),
        ("gpu[08-10,12],login", ("gpu08", "gpu09", "gpu10", "gpu12", "login")),
        ("r[1-2]n[1-2]", ("r1n1", "r1n2", "r2n1", "r2n2")),
        ("None assigned", ()),
        ("", ()),
    ],
)
def test_a_host_list_is_expanded(text: str, names: tuple[str, ...]) -> None:
    assert fields.node_names({"NodeList": text}, "NodeList") == names


def test_a_host_list_keeps_the_order_that_slurm_wrote() -> None:
    assert fields.node_names({"NodeList": "z1,a[2-3]"}, "NodeList") == ("z1", "a2", "a3")


@pytest.mark.parametrize("text", ["@all", "node[1-", "a!b", "a&b", "node 1", "n\x1f1"])
def test_another_host_list_is_refused_by_name(text: str) -> None:
    with pytest.raises(FieldError, match="NodeList reads"):
        fields.node_names({"NodeList": text}, "NodeList")
