"""What one process takes from another: whatever is wrong with it is named, and nothing else."""

import json
from dataclasses import asdict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flopwatch.wire import MAX_REPORT_BYTES, Report, as_text, decode_report, encode_report

GOOD = Report(
    boot="6e8aff41", sequence=3, rank=0, world_size=8, device_name="NVIDIA H200",
    device_uuid="GPU-1", train_flops={"bfloat16": 1e18}, forward_only_flops={},
    train_seconds=12.5, elapsed_seconds=20.0, steps=30,
)  # fmt: skip


def altered(**changes: Any) -> bytes:
    return json.dumps({**asdict(GOOD), **changes}).encode()


def test_a_report_survives_the_way() -> None:
    assert decode_report(encode_report(GOOD)) == GOOD


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"sequence": -1}, "sequence"), ({"sequence": 1.5}, "sequence"),
        ({"rank": True}, "rank"), ({"steps": 1 << 53}, "steps"), ({"steps": "9"}, "steps"),
        ({"train_seconds": -0.1}, "train_seconds"), ({"elapsed_seconds": None}, "elapsed_seconds"),
        ({"train_flops": []}, "train_flops"), ({"train_flops": {"bf16": "x"}}, "train_flops.bf16"),
        ({"train_flops": {"bf16": 1e31}}, "train_flops.bf16"),
        ({"phase_seconds": {str(n): 0 for n in range(65)}}, "phase_seconds"),
        ({"boot": 5}, "boot"), ({"device_name": "a\nb"}, "device_name"),
        ({"reason": "r" * 257}, "reason"), ({"device_uuid": 7}, "device_uuid"),
        ({"version": 2}, "version"), ({"unheard_of": 1}, "unheard_of"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_report_is_named(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        decode_report(altered(**changes))


@pytest.mark.parametrize(
    "datagram",
    [b"", b"[]", b"{}", b"\xff\xfe", b"nul", b"[" * 8000, b'{"boot":NaN}', b"1" * 5000,
     b" " * (MAX_REPORT_BYTES + 1)],
)  # fmt: skip
def test_what_is_no_report_is_refused_with_one_kind_of_error(datagram: bytes) -> None:
    with pytest.raises(ValueError, match="report"):
        decode_report(datagram)


def test_counts_of_flops_too_large_for_other_decoders_become_floats() -> None:
    report = decode_report(altered(train_flops={"bfloat16": 10**25}))
    assert report.train_flops == {"bfloat16": 1e25}
    assert isinstance(report.train_flops["bfloat16"], float)


@given(st.text(max_size=400))
def test_any_text_becomes_one_that_a_report_can_carry(text: str) -> None:
    carried = as_text(text)
    assert decode_report(altered(reason=carried)).reason == carried
    assert as_text(carried) == carried
