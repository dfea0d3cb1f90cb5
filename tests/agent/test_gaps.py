"""What was lost for good: it is told until the server has heard it, and the book of it is small."""

from pathlib import Path

import pytest

from flopwatch.wire import Gap
from flopwatch_agent.gaps import GapBook
from flopwatch_agent.spool import Spool, SpooledBatch
from tests.agent.test_spool import batch, drained, put


def test_a_gap_outlives_the_agent_until_the_server_has_a_batch_that_tells_it(
    tmp_path: Path,
) -> None:
    gap = Gap(0.0, 10.0, "the spool was full")
    first = Spool(tmp_path, most_bytes=4 * 4096)
    for end in range(10, 60, 10):
        put(first, end, filler=900)
    assert first.take_gaps() == [gap]
    first.close()
    second = Spool(tmp_path)
    assert second.take_gaps() == [gap]
    put(second, 60, gaps=[gap])
    second.close()
    third = Spool(tmp_path)
    assert third.take_gaps() == [gap]  # told twice, which is once to the server
    put(third, 70, gaps=[gap])
    drained(third)
    third.close()
    assert Spool(tmp_path).take_gaps() == []


def test_a_gap_told_by_a_batch_that_is_lost_itself_is_not_forgotten(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    put(spool, 50, gaps=[Gap(10.0, 30.0, "the agent stood still")])
    spool.lose(spool.oldest(), "older than the server takes")
    assert spool.take_gaps() == [
        Gap(10.0, 30.0, "the agent stood still"),
        Gap(40.0, 50.0, "older than the server takes"),
    ]


def test_a_batch_without_samples_leaves_no_gap(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    spool.put([SpooledBatch(batch(), (0, 0))])
    spool.lose(spool.oldest(), "older than the server takes")
    assert spool.take_gaps() == []
    assert len(spool.oldest()) == 0


def test_time_without_a_sample_to_tell_is_no_loss(tmp_path: Path) -> None:
    first = Spool(tmp_path)
    put(first, 10)
    first.put([SpooledBatch(batch(), (0, 0))] * 3)
    put(first, 50)
    first.close()
    again = Spool(tmp_path)
    assert len(drained(again)) == 5
    assert again.take_gaps() == []


def test_the_book_of_gaps_stays_bounded_and_covers_all_that_was_lost(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    book = GapBook(tmp_path / "gaps.json")
    for number in range(1020):
        book.note(Gap(20.0 * number, 20.0 * number + 10, "the spool was full"))
    told = []
    while gaps := book.take():
        assert len(gaps) <= 100
        told += gaps
    assert len(told) == 1000
    assert told[0] == Gap(0.0, 20.0 * 20 + 10, "many gaps")
    assert told[-1] == Gap(20.0 * 1019, 20.0 * 1019 + 10, "the spool was full")
    spool.close()


@pytest.mark.parametrize(
    "spoilt",
    [
        b"\xff[{",
        b"{}7",
        b"7",
        b"[7]",
        b'[{"start": 0.0, "end": 10.0}]',
        b'[{"start": "0", "end": 10.0, "cause": "the spool was full"}]',
        b'[{"start": 0.0, "end": null, "cause": "the spool was full"}]',
        b'[{"start": 0.0, "end": 10.0, "cause": 7}]',
        b'[{"start": 0.0, "end": 10.0, "cause": "the spool was full", "device": "0"}]',
    ],
)
def test_a_spoilt_book_of_gaps_is_forgotten_and_no_reason_not_to_start(
    tmp_path: Path, spoilt: bytes
) -> None:
    (tmp_path / "gaps.json").write_bytes(spoilt)
    spool = Spool(tmp_path)
    assert spool.take_gaps() == []
    put(spool, 10)
    assert len(drained(spool)) == 1
