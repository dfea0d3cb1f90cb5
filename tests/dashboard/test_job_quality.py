"""What the data-quality panel says of sources and events, in words."""

import pytest

from flopwatch.wire import EVENT_KINDS
from flopwatch_dashboard.pages.job.quality import EVENT_WORDS, activity_from, event_line
from flopwatch_server.efficiency.schemas import RunEvent, RunQuality, SourceUse
from tests.dashboard.builders import NOW


def quality(*sources: SourceUse) -> RunQuality:
    return RunQuality(samples_received=6, samples_expected=6, missing={}, sources=list(sources),
                      events=[])  # fmt: skip


def event(kind: str, value: int, detail: str = "") -> RunEvent:
    return RunEvent(place="g014:3", device_uuid="GPU-3", at=NOW, kind=kind, value=value,
                    detail=detail)  # fmt: skip


def test_each_source_is_named_with_its_period_and_why_not_a_better_one() -> None:
    gpm = SourceUse(name="gpm", period_seconds=1, passed_over={}, gpus=6)
    page = SourceUse(name="dcgm_exporter", period_seconds=30, gpus=1,
                     passed_over={"gpm": "unsupported"})  # fmt: skip
    why = {"gpm": "no permission", "dcgm_exporter": "connection refused"}
    none = SourceUse(name=None, period_seconds=None, gpus=1, passed_over=why)
    assert activity_from(quality(gpm, page, none)) == [
        "6 GPUs: gpm, every 1 s",
        "1 GPU: dcgm_exporter, every 30 s; not gpm: unsupported",
        "1 GPU: nothing; not gpm: no permission; not dcgm_exporter: connection refused",
    ]


def test_every_kind_of_event_has_words() -> None:
    assert set(EVENT_WORDS) == set(EVENT_KINDS)


@pytest.mark.parametrize(
    ("told", "line"),
    [
        (event("xid", 79), "g014:3, Xid 79"),
        (event("pcie_width", 8, "of 16 lanes"), "g014:3, PCIe lanes: 8 (of 16 lanes)"),
        (event("clock_reasons", 4, "power cap"), "g014:3, clocks held down (power cap)"),
        (event("clock_reasons", 0), "g014:3, clocks free again"),
        (event("row_remap_failed", 1), "g014:3, a memory row could not be taken out of use"),
    ],
)
def test_an_event_is_told_in_words(told: RunEvent, line: str) -> None:
    assert event_line(told) == line
