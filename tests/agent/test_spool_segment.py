"""What a segment is worth once its file is spoilt: all of it but one record."""

from pathlib import Path

import pytest

from flopwatch_agent.segment import Record, Segment, record_of, scan

BODIES = [b"first " * 7, b"second" * 11, b"third" * 5]
SPANS = [(0, 10), (10, 20), (20, 30)]


@pytest.fixture
def segment(tmp_path: Path) -> Segment:
    """Three records, of which the server has the first."""
    made = Segment(tmp_path / "1.segment", waiting={})
    made.append(
        [
            (record_of(body, sequence, span), body)
            for sequence, (body, span) in enumerate(zip(BODIES, SPANS, strict=True), 1)
        ]
    )
    made.mark_done(made.load()[1])
    return made


def survivors(path: Path) -> tuple[set[int], dict[int, tuple[int, int]]]:
    """Sequences of the whole records in a file, and the spans of those known to be lost."""
    whole, lost = set(), {}
    again = Segment(path)
    for sequence, record in again.load().items():
        try:
            assert again.read(record) == BODIES[sequence - 1]
            whole.add(sequence)
        except ValueError:
            lost[sequence] = (record.start, record.end)
    return whole, lost


def test_records_are_found_again_with_their_state(segment: Segment) -> None:
    found = list(scan(segment.path.read_bytes()))
    assert [(record.sequence, done) for record, done in found] == [
        (1, True),
        (2, False),
        (3, False),
    ]
    assert [(record.start, record.end) for record, _ in found] == SPANS
    assert survivors(segment.path) == ({2, 3}, {})


def test_a_flipped_byte_costs_one_record_at_most_and_never_its_time(segment: Segment) -> None:
    intact = segment.path.read_bytes()
    outcomes = set()
    for place in range(len(intact)):
        spoilt = bytearray(intact)
        spoilt[place] ^= 0x40
        segment.path.write_bytes(spoilt)
        whole, lost = survivors(segment.path)
        assert {2, 3} <= whole | set(lost)
        assert all(span == SPANS[sequence - 1] for sequence, span in lost.items())
        outcomes.add((len(whole & {2, 3}), len(lost)))
    # Most bytes of a header cost nothing, as it stands twice; one of a body costs that body.
    assert outcomes == {(2, 0), (1, 1)}


def test_a_torn_tail_costs_what_was_behind_the_tear_and_no_more(segment: Segment) -> None:
    intact = segment.path.read_bytes()
    second, third = segment.load().values()
    for length in range(len(intact)):
        segment.path.write_bytes(intact[:length])
        whole, lost = survivors(segment.path)
        expected = {
            each.sequence for each in (second, third) if each.offset + each.length <= length
        }
        assert whole - {1} == expected
        assert all(span == SPANS[sequence - 1] for sequence, span in lost.items())
        assert len(lost) <= 1


def test_a_page_of_zeros_hides_nothing_beyond_it(segment: Segment) -> None:
    intact = segment.path.read_bytes()
    _, third = segment.load().values()
    segment.path.write_bytes(bytes(third.offset - 60) + intact[third.offset - 60 :])
    assert survivors(segment.path) == ({3}, {})


def test_a_body_that_looks_like_a_record_is_none(tmp_path: Path) -> None:
    inner = Segment(tmp_path / "inner.segment", waiting={})
    inner.append([(record_of(b"forged", 7, (0, 10)), b"forged")])
    body = inner.path.read_bytes()
    outer = Segment(tmp_path / "outer.segment", waiting={})
    outer.append([(record_of(body, 1, (10, 20)), body), (record_of(b"next", 2, (20, 30)), b"next")])
    found = [record for record, _ in scan(outer.path.read_bytes())]
    assert [record.sequence for record in found] == [1, 2]


def test_a_write_that_fails_leaves_the_segment_as_it_was(
    segment: Segment, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = segment.path.read_bytes()
    record = record_of(b"fourth", 4, (30, 40))

    def fail(descriptor: int) -> None:
        raise OSError("the disk is gone")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(OSError, match="the disk is gone"):
        segment.append([(record, b"fourth")])
    assert segment.path.read_bytes() == before
    assert set(segment.load()) == {2, 3}
    assert not segment.has_room(record, 1 << 20)


def test_the_time_before_1970_is_a_time_too() -> None:
    assert record_of(b"", 1, (-10, 0)) == Record(1, -10, 0, 0, 0)
