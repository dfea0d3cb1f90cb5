"""Sentences and the stack of the overview, for figures written by hand."""

import itertools
from typing import Any

import pytest
from dash import html

from flopwatch_dashboard.pages.overview import (
    accounts,
    attention,
    figures,
    side,
    states,
    tiles,
    words,
)
from flopwatch_dashboard.pages.overview.data import OverviewData
from flopwatch_dashboard.words import gpus_in_words
from flopwatch_server.efficiency.schemas import (
    AccountHours,
    GpuCounts,
    JobRow,
    Overview,
    StateCounts,
)
from flopwatch_server.settings import Thresholds
from tests.dashboard.builders import NOW, run


def overview(**facts: Any) -> Overview:
    known: dict[str, Any] = {
        "cluster": "granite", "simulated": False, "gpus": 1000, "allocated": 774, "free": 202,
        "reserved": 0, "down": 24, "gpus_now": GpuCounts(active=654, low=64, idle=42, shared=14),
        "tensor_active": 0.26, "mfu": None, "reporting_jobs": 0, "running_jobs": 35,
        "pending_jobs": 5, "power_watts": None, "power_limit_watts": None,
        "newest_sample_at": NOW, "history": [], "history_tensor": [], "history_power_watts": [],
        "attention": [], "accounts": [], "partitions": [], "agents_reporting": 124,
        "agents_silent": [], "sources": [],
    }  # fmt: skip
    return Overview(**known | facts)


def data_of(found: Overview) -> OverviewData:
    return OverviewData(found, NOW, "24h", "demo", Thresholds(low_sm_active=0.2))


def _all(part: Any) -> list[Any]:
    """A component and everything inside it."""
    if isinstance(part, list | tuple):
        return [found for child in part for found in _all(child)]
    inside = getattr(part, "children", None)
    return [part, *(_all(inside) if inside is not None else [])]


def row(gpus_now: GpuCounts, sm_active: float | None = None) -> JobRow:
    facts = run().model_dump()
    return JobRow(
        **facts, state_now="idle", gpus_now=gpus_now, sm_active=sm_active, tensor_active=0.14,
        dram_active=None, power_watts=None, mfu=None, idle_gpu_hours=1.0, idle_since=None,
        spark=[],
    )  # fmt: skip


def text(parts: list[Any]) -> str:
    return "".join(p.children if isinstance(p, html.Em) else p for p in parts)


def test_the_lead_says_what_is_allocated_what_it_does_and_who_holds_the_idle_ones() -> None:
    holders = [row(GpuCounts(idle=7))] * 6 + [row(GpuCounts(low=8))]
    assert text(words.lead(overview(attention=holders))) == (
        "774 of 1,000 GPUs are allocated. 654 do work, 64 run low, 14 are shared, 42 are idle; "
        "six jobs hold the idle ones."
    )


def test_the_lead_of_a_cluster_without_idle_gpus_says_so() -> None:
    found = overview(gpus_now=GpuCounts(active=774))
    assert text(words.lead(found)) == (
        "774 of 1,000 GPUs are allocated. 774 do work, 0 run low, none is idle."
    )


@pytest.mark.parametrize(
    ("gpus", "allocated", "now", "expected"),
    [
        (1, 0, {}, "The only GPU is not allocated."),
        (2, 0, {}, "None of 2 GPUs is allocated."),
        (1, 1, {"unknown": 1}, "The only GPU is allocated. 0 do work, 0 run low, 1 shows no data, "
                               "none is idle."),
        (2, 2, {"active": 1, "shared": 1}, "Both GPUs are allocated. 1 does work, 0 run low, "
                                           "1 is shared, none is idle."),
        (8, 8, {"low": 1, "idle": 7}, "All 8 GPUs are allocated. 0 do work, 1 runs low, "
                                      "7 are idle."),
    ],
)  # fmt: skip
def test_the_lead_of_a_machine(
    gpus: int, allocated: int, now: dict[str, int], expected: str
) -> None:
    found = overview(gpus=gpus, allocated=allocated, gpus_now=GpuCounts(**now))
    assert text(words.lead(found)) == expected


def test_before_a_scheduler_has_told_of_jobs_no_gpu_is_called_free_or_allocated() -> None:
    found = overview(gpus=8, allocated=None, free=None, down=0, gpus_now=GpuCounts())
    assert text(words.lead(found)) == "No scheduler has told of any job yet; 8 GPUs report."
    labels = [label.children for label in states.state_labels(found)]
    assert [(number.children, word) for number, word in labels] == [("8", "No data")]
    notes = [part.title for part in _all(tiles.tile_strip(found)) if hasattr(part, "title")]
    assert notes.count("no scheduler yet") == 5
    assert attention.attention_card(data_of(found)).children[1].children == (
        "No scheduler has told of any job yet."
    )


def test_the_bands_have_labels_from_the_base_line_up() -> None:
    labels = [label.children for label in states.state_labels(overview(free=196, reserved=6))]
    assert [(number.children, word) for number, word in labels] == [
        ("42", "Idle"), ("64", "Low"), ("654", "Active"), ("14", "Shared, no data"),
        ("196", "Free"), ("6", "Reserved"), ("24", "Down"),
    ]  # fmt: skip


def test_the_definitions_are_those_of_the_site() -> None:
    definitions = side.side(data_of(overview()))[-1]
    said = [part.children for part in _all(definitions) if isinstance(part, html.P)]
    assert said == [
        "Idle: SM activity under 1 % and utilization 0 for the whole minute. Low: SM under 20 %. "
        "Unknown minutes are never counted as idle."
    ]


def test_the_bar_of_an_account_is_as_long_as_its_gpu_hours() -> None:
    rows = [AccountHours(account="nlp", allocated=8, active=1, low=1, idle=0),
            AccountHours(account="cv", allocated=4, active=2, low=1, idle=1)]  # fmt: skip
    shown = accounts.accounts_card(data_of(overview(accounts=rows)))
    bars = [bar for bar in _all(shown) if getattr(bar, "className", "") == "mix-bar"]
    lengths = [sum(float(part.style["width"][:-1]) for part in bar.children) for bar in bars]
    assert lengths == [100.0, 50.0]


def test_the_course_of_a_tile_breaks_while_nobody_watched() -> None:
    history = [StateCounts(time=0, watched=False), StateCounts(time=600, idle=2, free=6)]
    made = tiles.job_tiles(overview(history=history), 774)
    assert made[2].history == [None, 2]


def test_the_lead_does_not_count_holders_beyond_what_the_service_tells() -> None:
    many = [row(GpuCounts(idle=1))] * 10
    assert text(words.lead(overview(attention=many))).endswith("42 are idle.")


@pytest.mark.parametrize(
    ("number", "held", "expected"),
    [(12, 32, "12 of 32 GPUs"), (8, 8, "All 8 GPUs"), (2, 2, "Both GPUs"), (1, 1, "The only GPU")],
)
def test_gpus_are_counted_in_words(number: int, held: int, expected: str) -> None:
    assert gpus_in_words(number, held) == expected


def test_what_needs_attention_names_the_idle_ones_first() -> None:
    assert words.what(row(GpuCounts(active=20, idle=12))) == "12 of 32 GPUs idle"
    assert words.what(row(GpuCounts(low=8), sm_active=0.12)) == "All 8 GPUs low, SM 12 %"


def test_labels_stand_at_the_middle_of_their_band() -> None:
    positions = figures.label_positions([500.0, 500.0], 1000.0)
    top, height = figures.MARGIN_TOP, figures.PLOT_HEIGHT
    assert positions == [top + 0.75 * height, top + 0.25 * height]


def test_labels_of_thin_bands_keep_a_line_apart() -> None:
    positions = figures.label_positions([1.0, 1.0, 1.0, 997.0], 1000.0)
    assert all(lower - upper >= 17 for lower, upper in itertools.pairwise(positions))


def test_each_step_begins_with_its_ten_minutes_and_the_last_one_is_closed() -> None:
    history = [StateCounts(time=600_000, active=3), StateCounts(time=600_600, active=5)]
    traces = figures.states_points(overview(history=history), "24h").traces
    active = traces[figures.STACK.index("active")]
    assert active["y"] == [3, 5, 5]
    assert [b - a for a, b in zip(active["x"], active["x"][1:], strict=False)] == [600_000, 600_000]


def test_idle_is_on_the_base_line() -> None:
    assert figures.STACK[:3] == ("idle", "low", "active")
