"""The feed's lines: what is taken as it is, and what is refused with its line and field."""

import json
import math
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flopwatch_server.scheduler.feed import FeedError, FeedSnapshot, Problem, parse
from flopwatch_server.scheduler.feed.lines import (
    GpusLine,
    NodeLine,
    ReservationLine,
    RunLine,
    ShareLine,
    SnapshotLine,
)
from flopwatch_server.scheduler.feed.parser import END_STATES
from flopwatch_server.scheduler.records import (
    PENDING_STATES,
    RUNNING_STATES,
    JobRecord,
    NodeGpus,
    NodeRecord,
    ReservationRecord,
    ShareRecord,
)

DOCUMENTATION = (Path(__file__).parents[2] / "docs" / "schedulers.md").read_text()

NOW = datetime(2026, 3, 12, 9, 0, tzinfo=UTC)
RUN: dict[str, Any] = {
    "kind": "run",
    "raw_job_id": 481340,
    "submitted_at": "2026-03-12T08:00:00Z",
    "state": "RUNNING",
    "name": "llama",
    "user": "mchen",
    "account": "nlp",
    "started_at": "2026-03-12T08:01:00Z",
}
PENDING = {**RUN, "state": "PENDING", "started_at": None}
SHARE = {"kind": "share", "account": "nlp", "user": "mchen"}
NODE = {"kind": "node", "name": "g1", "state": "IDLE+DRAIN"}
SNAPSHOT = {"kind": "snapshot", "time": NOW.timestamp(), "complete": True}
RESERVATION: dict[str, Any] = {
    "kind": "reservation", "name": "course", "starts_at": "2026-03-12T10:00:00+01:00",
    "ends_at": "2026-03-12T11:00:00Z", "nodes": ["g1", "g2"], "is_whole": False,
    "users": ["mchen"], "accounts": ["nlp"], "flags": ["MAINT"],
}  # fmt: skip
GPUS = [{"node": "g1", "count": 2, "ordinals": [0, 1], "type": "h100"}]


def read(*lines: dict[str, Any] | str) -> FeedSnapshot:
    texts = (line if isinstance(line, str) else json.dumps(line) for line in lines)
    return parse("\n".join(texts).encode(), NOW)


def refusals(*lines: dict[str, Any] | str) -> list[tuple[int, str]]:
    with pytest.raises(FeedError) as caught:
        read(*lines)
    return [(problem.line, problem.field) for problem in caught.value.problems]


def test_a_run_becomes_a_record_with_its_gpus() -> None:
    snapshot = read(
        {
            **RUN,
            "display_id": "481300_40",
            "array_job_id": 481300,
            "array_task_id": 40,
            "partition": "gpu",
            "qos": "high",
            "time_limit_seconds": 86400,
            "gpus": [*GPUS, {"node": "g2", "count": 1, "shared": True}],
        }
    )
    assert snapshot.jobs == [
        JobRecord(
            raw_job_id=481340,
            submitted_at=datetime(2026, 3, 12, 8, 0, tzinfo=UTC),
            state="RUNNING",
            name="llama",
            user="mchen",
            account="nlp",
            display_id="481300_40",
            partition="gpu",
            qos="high",
            started_at=datetime(2026, 3, 12, 8, 1, tzinfo=UTC),
            time_limit_seconds=86400,
            gpu_count=3,
            nodes=("g1", "g2"),
            gpus=(
                NodeGpus("g1", 2, (0, 1), "h100"),
                NodeGpus("g2", 1, None, None, shared=True),
            ),
            array_job_id=481300,
            array_task_id=40,
        )
    ]


def test_a_node_becomes_a_record() -> None:
    told = {**NODE, "reason": "fan", "gpu_count": 8, "gpu_type": "h100", "partitions": ["gpu"]}
    assert read(told).nodes == [NodeRecord("g1", "IDLE+DRAIN", "fan", 8, "h100", ("gpu",))]


def test_a_share_becomes_a_record() -> None:
    told = {
        **SHARE, "partition": "gpu", "raw_shares": 10, "norm_shares": 0.25, "raw_usage": 2**62,
        "effective_usage": 1, "fair_share": 0, "level_fs": 0.34,
    }  # fmt: skip
    assert read(told, {"kind": "share", "account": "nlp"}).shares == [
        ShareRecord("nlp", "mchen", "gpu", 10, 0.25, 2**62, 1.0, 0.0, 0.34),
        ShareRecord("nlp"),
    ]


def test_a_reservation_becomes_a_record() -> None:
    assert read(SNAPSHOT, RESERVATION).reservations == [
        ReservationRecord(
            name="course",
            starts_at=datetime(2026, 3, 12, 9, 0, tzinfo=UTC),
            ends_at=datetime(2026, 3, 12, 11, 0, tzinfo=UTC),
            nodes=("g1", "g2"),
            is_whole=False,
            users=("mchen",),
            accounts=("nlp",),
            flags=("MAINT",),
        )
    ]


def test_reservations_are_told_behind_the_line_of_a_complete_snapshot() -> None:
    assert refusals(RESERVATION) == [(1, "$.kind")]
    assert refusals(RESERVATION, SNAPSHOT) == [(1, "$.kind")]
    assert refusals({**SNAPSHOT, "complete": False}, RESERVATION) == [(2, "$.kind")]
    assert refusals(SNAPSHOT, {**RESERVATION, "ends_at": RESERVATION["starts_at"]}) == [
        (2, "$.ends_at")
    ]
    assert refusals(SNAPSHOT, {**RESERVATION, "nodes": []}) == [(2, "$.nodes")]
    assert refusals(SNAPSHOT, {**RESERVATION, "starts_at": 0}) == [(2, "$.starts_at")]
    assert refusals(SNAPSHOT, RESERVATION, RESERVATION) == [(3, "$.name")]


def test_a_level_of_which_nothing_was_used_is_infinite_and_one_of_zero_is_zero() -> None:
    levels = (("a", "Infinity"), ("b", 0), ("c", None))
    lines = [{**SHARE, "user": user, "level_fs": level} for user, level in levels]
    assert [share.level_fs for share in read(*lines).shares] == [math.inf, 0.0, None]


@pytest.mark.parametrize(
    "told",
    [
        1773302400,
        1773302400.0,
        "2026-03-12T08:00:00Z",
        "2026-03-12T08:00:00+00:00",
        "2026-03-12T13:30:00+05:30",
    ],
)
def test_a_time_is_epoch_seconds_or_has_its_offset(told: object) -> None:
    (job,) = read({**RUN, "submitted_at": told}).jobs
    assert job.submitted_at == datetime(2026, 3, 12, 8, 0, tzinfo=UTC)
    assert job.submitted_at.utcoffset() == timedelta(0)


def test_a_body_is_incremental_unless_a_snapshot_says_that_it_is_complete() -> None:
    assert read(RUN).complete is False
    assert read({**SNAPSHOT, "complete": False}, RUN).complete is False
    assert read(RUN, SNAPSHOT).complete is True


def test_an_empty_queue_is_a_snapshot_without_runs() -> None:
    assert read(SNAPSHOT) == FeedSnapshot(
        jobs=[], nodes=[], shares=[], reservations=[], complete=True
    )


def test_an_old_increment_is_taken_but_an_old_complete_snapshot_is_not() -> None:
    old = (NOW - timedelta(minutes=11)).timestamp()
    assert read({**SNAPSHOT, "time": old, "complete": False}).complete is False
    assert refusals(RUN, {**SNAPSHOT, "time": old}) == [(2, "$.time")]


def test_blank_lines_and_carriage_returns_count_but_tell_nothing() -> None:
    assert len(read("", json.dumps(RUN) + "\r", "  ", NODE).jobs) == 1
    assert refusals("", "\r", {**RUN, "raw_job_id": 0}) == [(3, "$.raw_job_id")]


def test_ids_of_64_bits_pass_unchanged() -> None:
    (job,) = read({**RUN, "raw_job_id": 2**63 - 1}).jobs
    assert (job.raw_job_id, job.display_id) == (2**63 - 1, "9223372036854775807")


@pytest.mark.parametrize(
    "name",
    [
        "a|b\tc\nd",
        '"; DROP TABLE runs; --',
        "<img src=x onerror=alert(1)>",
        "nul\0byte",
        "half \ud800 surrogate",
        "\u202edlrow",
        "x" * 100_000,
        "",
    ],
)
def test_a_hostile_name_is_carried_as_it_is(name: str) -> None:
    (job,) = read({**RUN, "name": name, "reason": name}).jobs
    assert (job.name, job.reason) == (name, name)


@pytest.mark.parametrize(
    ("line", "field"),
    [
        ("{", "$"),
        ("[]", "$"),
        ("null", "$"),
        ("[" * 100_000, "$"),
        ('{"kind": NaN}', "$"),
        ({}, "$.kind"),
        ({"kind": "job"}, "$.kind"),
        ({**RUN, "started": 1}, "$.started"),
        ({key: value for key, value in RUN.items() if key != "user"}, "$.user"),
        ({**RUN, "raw_job_id": "481340"}, "$.raw_job_id"),
        ({**RUN, "raw_job_id": 481340.5}, "$.raw_job_id"),
        ({**RUN, "raw_job_id": 2**63}, "$.raw_job_id"),
        ({**RUN, "raw_job_id": -1}, "$.raw_job_id"),
        ({**RUN, "submitted_at": "2026-03-12T08:00:00"}, "$.submitted_at"),
        ({**RUN, "submitted_at": "0001-01-01T00:00:00+14:00"}, "$.submitted_at"),
        ({**RUN, "submitted_at": 0}, "$.submitted_at"),
        ({**RUN, "submitted_at": 1773302400000}, "$.submitted_at"),
        ({**RUN, "submitted_at": 10**400}, "$.submitted_at"),
        ({**RUN, "submitted_at": True}, "$.submitted_at"),
        ({**RUN, "started_at": "Unknown"}, "$.started_at"),
        ({**RUN, "state": "R"}, "$.state"),
        ({**RUN, "state": "running"}, "$.state"),
        ({**RUN, "started_at": None}, "$.started_at"),
        ({**PENDING, "started_at": RUN["started_at"]}, "$.started_at"),
        ({**RUN, "state": "COMPLETED"}, "$.ended_at"),
        ({**RUN, "ended_at": "2026-03-12T09:00:00Z"}, "$.ended_at"),
        ({**RUN, "state": "FAILED", "ended_at": "2026-03-12T08:00:59Z"}, "$.ended_at"),
        ({**RUN, "exit_code": "0"}, "$.exit_code"),
        ({**RUN, "time_limit_seconds": "UNLIMITED"}, "$.time_limit_seconds"),
        ({**RUN, "gpu_count": -2}, "$.gpu_count"),
        ({**RUN, "display_id": "48\n"}, "$.display_id"),
        ({**RUN, "user": "u" * 257}, "$.user"),
        ({**RUN, "nodes": ["g1", ""]}, "$.nodes[1]"),
        ({**PENDING, "gpus": GPUS}, "$.gpus"),
        ({**RUN, "gpus": [*GPUS, {"node": "g2"}]}, "$.gpus[1].count"),
        ({**RUN, "gpus": [{**GPUS[0], "ordinals": [0, -1]}]}, "$.gpus[0].ordinals[1]"),
        ({**RUN, "gpus": [{**GPUS[0], "ordinals": [0]}]}, "$.gpus[0].ordinals"),
        ({**RUN, "gpus": [{**GPUS[0], "ordinals": [1, 1]}]}, "$.gpus[0].ordinals"),
        ({**RUN, "gpus": GPUS * 2}, "$.gpus[1].ordinals"),
        ({**RUN, "gpus": [{"node": "g1", "count": 10**9}]}, "$.gpus[0].count"),
        ({**NODE, "name": ""}, "$.name"),
        ({**NODE, "gpu_count": 1.5}, "$.gpu_count"),
        ({"kind": "share", "user": "mchen"}, "$.account"),
        ({**SHARE, "account": ""}, "$.account"),
        ({**SHARE, "user": ""}, "$.user"),
        ({**SHARE, "user": "u" * 257}, "$.user"),
        ({**SHARE, "raw_shares": "parent"}, "$.raw_shares"),
        ({**SHARE, "raw_shares": -1}, "$.raw_shares"),
        ({**SHARE, "norm_shares": 1.01}, "$.norm_shares"),
        ({**SHARE, "raw_usage": 2**63}, "$.raw_usage"),
        ({**SHARE, "effective_usage": -0.1}, "$.effective_usage"),
        ({**SHARE, "fair_share": "0.5"}, "$.fair_share"),
        ({**SHARE, "level_fs": "inf"}, "$.level_fs"),
        ({**SHARE, "level_fs": -1}, "$.level_fs"),
        ({**SHARE, "shares": 1}, "$.shares"),
        ({"kind": "snapshot", "complete": True}, "$.time"),
        ({**SNAPSHOT, "complete": "yes"}, "$.complete"),
    ],
)
def test_a_bad_line_is_refused_by_its_number_and_field(
    line: dict[str, Any] | str, field: str
) -> None:
    good = {**PENDING, "raw_job_id": 1}
    assert refusals(good, line, {**good, "raw_job_id": 2}) == [(2, field)]


def test_what_is_told_twice_is_refused_at_the_second_line() -> None:
    assert refusals(RUN, {**RUN, "name": "again"}) == [(2, "$.raw_job_id")]
    assert refusals(NODE, NODE) == [(2, "$.name")]
    assert refusals(SHARE, {**SHARE, "raw_shares": 2}) == [(2, "$.account")]
    assert refusals(SNAPSHOT, SNAPSHOT) == [(2, "$.kind")]


def test_a_requeued_run_is_another_run() -> None:
    again = {**RUN, "submitted_at": "2026-03-12T07:00:00Z"}
    assert len(read(RUN, again).jobs) == 2


def test_every_bad_line_is_named_up_to_a_hundred() -> None:
    assert refusals("{", RUN, "[]") == [(1, "$"), (3, "$")]
    assert len(refusals(*["{"] * 500)) == 100


@pytest.mark.parametrize("body", [b"", b"\n \n"])
def test_a_body_without_a_line_is_refused(body: bytes) -> None:
    with pytest.raises(FeedError, match="no line"):
        parse(body, NOW)


def test_a_line_that_is_no_utf8_is_refused() -> None:
    with pytest.raises(FeedError, match="line 1"):
        parse(b'{"kind":"node","name":"g\xff","state":"IDLE"}', NOW)


def test_the_example_of_the_documentation_is_taken() -> None:
    example = DOCUMENTATION.split("<<END\n")[1].split("END\n")[0]
    body = example.replace("$(date +%s)", str(int(NOW.timestamp())))
    snapshot = parse(body.encode(), NOW)
    assert [(job.raw_job_id, job.gpu_count) for job in snapshot.jobs] == [
        (481340, 2), (481352, 8), (481322, 1),
    ]  # fmt: skip
    assert (snapshot.complete, len(snapshot.nodes)) == (True, 1)
    assert [(share.user, share.fair_share) for share in snapshot.shares] == [("mchen", 0.166667)]


@pytest.mark.parametrize(
    "line", [RunLine, GpusLine, NodeLine, ShareLine, ReservationLine, SnapshotLine]
)
def test_the_documentation_names_every_field(line: type[msgspec.Struct]) -> None:
    for field in msgspec.structs.fields(line):
        assert f"`{field.name}`" in DOCUMENTATION


def test_the_documentation_names_every_state() -> None:
    for state in PENDING_STATES | RUNNING_STATES | END_STATES:
        assert f"`{state}`" in DOCUMENTATION


_anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.datetimes(
        timezones=st.just(timezone(timedelta(hours=14)))
    ).map(datetime.isoformat),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


@given(body=st.binary(max_size=200))
def test_no_bytes_make_anything_but_a_snapshot_or_a_refusal(body: bytes) -> None:
    _snapshot_or_refusal(body)


@given(changes=st.dictionaries(st.sampled_from([*RUN, "gpus", "nodes", "ended_at"]), _anything))
def test_no_values_make_anything_but_a_snapshot_or_a_refusal(changes: dict[str, Any]) -> None:
    _snapshot_or_refusal(json.dumps(RUN | changes).encode())


def _snapshot_or_refusal(body: bytes) -> None:
    try:
        outcome: FeedSnapshot | tuple[Problem, ...] = parse(body, NOW)
    except FeedError as error:
        outcome = error.problems
    assert outcome
