"""The job's instrument: what is drawn for a series of a few points, computed by hand."""

import itertools
from typing import Any

from flopwatch_dashboard.format import axis_time
from flopwatch_dashboard.pages.job import figures
from flopwatch_dashboard.pages.job.mfu_panel import mfu_top, minute_line
from flopwatch_dashboard.pages.job.points import points_of
from flopwatch_server.efficiency.schemas import MfuPoint, SeriesGap
from tests.dashboard.builders import series

START = 1_773_306_000
TIMES = [START + 60, START + 120, START + 180]
TWO_GPUS = series(
    TIMES,
    60,
    {
        "g014:0": {"tensor_active": [0.30, 0.32, None], "power_watts": [400.0, 420.0, None]},
        "g014:1": {"tensor_active": [0.20, None, None], "power_watts": [300.0, None, None]},
    },
    {"g014:0": ["active", "idle", "unknown"], "g014:1": ["idle", "idle", "unknown"]},
)


def test_a_row_holds_mean_and_band_over_the_gpus_that_are_known() -> None:
    row = points_of(TWO_GPUS, ("tensor_active",)).rows["tensor_active"]
    assert row.mean == [25.0, 32.0, None]
    assert row.low == [20.0, 32.0, None]
    assert row.high == [30.0, 32.0, None]
    assert row.text == ["25 % (20–30)", "32 % (32)", None]


def test_power_keeps_its_unit() -> None:
    row = points_of(TWO_GPUS, ("tensor_active", "power_watts")).rows["power_watts"]
    assert row.mean == [350.0, 420.0, None]
    assert row.text[0] == "350 W (300–400)"


def test_a_metric_that_no_gpu_has_is_drawn_nowhere() -> None:
    row = points_of(TWO_GPUS, ("tensor_active", "dram_active")).rows["dram_active"]
    assert row.mean == row.low == row.high == row.text == [None, None, None]


def test_points_stand_in_the_middle_of_what_they_cover() -> None:
    assert points_of(TWO_GPUS, ("tensor_active",)).x[0] == axis_time(START + 30)


def test_the_strip_marks_idle_minutes_gpu_by_gpu() -> None:
    points = points_of(TWO_GPUS, ("tensor_active",))
    assert points.labels == ["g014:0", "g014:1"]
    assert points.strip == [[30.0, 32.0, None], [20.0, None, None]]
    assert points.idle == [[None, 1.0, None], [1.0, 1.0, None]]


def test_with_many_gpus_a_row_of_the_strip_is_a_node() -> None:
    gpus = {f"g{node}:{ordinal}": {"tensor_active": [0.1 * node]}
            for node in range(1, 6) for ordinal in range(8)}  # fmt: skip
    states = {place: ["idle" if place.startswith("g1:") else "active"] for place in gpus}
    states["g2:0"] = ["idle"]
    points = points_of(series([START + 60], 60, gpus, states), ("tensor_active",))
    assert points.labels == ["g1", "g2", "g3", "g4", "g5"]
    assert [row[0] for row in points.strip] == [10.0, 20.0, 30.0, 40.0, 50.0]
    assert [row[0] for row in points.idle] == [1.0, None, None, None, None]


def test_all_rows_share_one_time_axis_and_none_overlaps() -> None:
    layout = figures.instrument(TWO_GPUS, 700.0, "job", live=True)["layout"]
    domains = [layout[axis]["domain"] for axis in ("yaxis", "yaxis2", "yaxis3", "yaxis4", "yaxis5")]
    assert all(upper[0] > lower[1] for upper, lower in itertools.pairwise(domains))
    assert domains[-1][0] == 0
    assert layout["xaxis"]["anchor"] == "y5"
    assert {trace.get("xaxis", "x") for trace in _traces()} == {"x"}


def test_a_figure_names_tokens_in_place_of_colours() -> None:
    assert "#" not in str(figures.instrument(TWO_GPUS, 700.0, "job", live=True))


def test_a_gap_is_a_sunken_column_that_tells_its_length() -> None:
    gapped = TWO_GPUS.model_copy(
        update={"start": START, "end": START + 21600,
                "gaps": [SeriesGap(start=START + 3600, end=START + 4140, cause=None)]}
    )  # fmt: skip
    marks = figures.marks(gapped, None)
    assert [shape["fillcolor"] for shape in marks["shapes"]] == ["--sunken"]
    assert marks["shapes"][0]["x1"] - marks["shapes"][0]["x0"] == 540_000
    assert [note["text"] for note in marks["annotations"]] == ["no data 9 min"]


def test_a_gap_too_narrow_for_words_has_none() -> None:
    gapped = TWO_GPUS.model_copy(
        update={"start": START, "end": START + 86400,
                "gaps": [SeriesGap(start=START, end=START + 60, cause=None)]}
    )  # fmt: skip
    marks = figures.marks(gapped, None)
    assert len(marks["shapes"]) == 1
    assert marks["annotations"] == []


def test_the_power_limit_is_a_dashed_line_with_words_on_it() -> None:
    marks = figures.marks(TWO_GPUS, 700.0)
    assert [(s["y0"], s["line"]["dash"]) for s in marks["shapes"]] == [(700.0, "dash")]
    assert [note["text"] for note in marks["annotations"]] == ["limit 700 W"]
    assert marks["annotations"][0]["yanchor"] == "bottom"  # curves stay under the limit


def test_the_mfu_line_breaks_where_a_minute_was_not_reported() -> None:
    points = [MfuPoint(time=START + 60, train_mfu=0.25), MfuPoint(time=START + 120, train_mfu=0.26),
              MfuPoint(time=START + 300, train_mfu=0.24)]  # fmt: skip
    _, y = minute_line(points)
    assert y == [25.0, 26.0, None, 24.0]


def test_the_mfu_scale_is_the_next_usual_end() -> None:
    assert mfu_top([MfuPoint(time=START, train_mfu=0.249)]) == 40
    assert mfu_top([MfuPoint(time=START, train_mfu=0.0004)]) == 1


def _traces() -> list[dict[str, Any]]:
    traces: list[dict[str, Any]] = figures.instrument(TWO_GPUS, None, "job", live=True)["data"]
    return traces
