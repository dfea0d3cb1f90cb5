"""Which points a browser gets that follows a job: all that it lacks or has otherwise, no others."""

from datetime import UTC, datetime

from flopwatch_dashboard.live.reading import Ask, Cursor, Reading, Whole
from flopwatch_dashboard.pages.job.data import covers_of
from flopwatch_dashboard.pages.job.instrument import Instrument
from flopwatch_server.efficiency.schemas import SeriesGap
from flopwatch_server.efficiency.series import Grid
from tests.dashboard.builders import series

START = 1_770_000_000
STEP = 10
WHOLE_DAY = Grid(START, START + 86_400, 60)
HOUR = Grid(START, START + 3600, STEP)


def instrument(
    values: list[float | None], *, first: int = 1, covers: int = 0,
    gaps: list[tuple[int, int]] | None = None,
) -> Instrument:  # fmt: skip
    """Points of one GPU from the `first` step on; gaps are given in steps."""
    times = [START + STEP * (first + position) for position in range(len(values))]
    found = series(times, STEP, {"g1:0": {"tensor_active": values}})
    told = [SeriesGap(start=START + STEP * a, end=START + STEP * b, cause=None)
            for a, b in gaps or []]  # fmt: skip
    return Instrument(found.model_copy(update={"start": START, "gaps": told}), None, "live", covers)


def sent(now: Instrument, before: Instrument | None) -> list[float | None]:
    """The means that a message holds, in percent."""
    means: list[float | None] = now.message(before)["points"]["rows"]["tensor_active"]["mean"]
    return means


def test_only_what_is_new_is_sent() -> None:
    before = instrument([0.1, 0.2])
    assert sent(instrument([0.1, 0.2, 0.3]), before) == [30.0]
    assert sent(instrument([0.1, 0.2]), before) == []
    assert instrument([0.1, 0.2, 0.3]).message(before)["whole"] is False


def test_a_sample_that_came_late_is_sent_with_all_after_it() -> None:
    before = instrument([0.1, None, 0.3])
    assert sent(instrument([0.1, 0.2, 0.3, 0.4]), before) == [20.0, 30.0, 40.0]


def test_who_has_nothing_gets_everything_there_is() -> None:
    message = instrument([0.1, 0.2]).message(None)
    assert (message["points"]["rows"]["tensor_active"]["mean"], message["whole"]) == (
        [10.0, 20.0],
        True,
    )
    some = instrument([0.3], first=3, covers=START + 2 * STEP).message(None)
    assert some["whole"] is False


def test_points_that_were_read_for_another_are_no_news() -> None:
    before = instrument([0.3], first=3, covers=START + 2 * STEP)
    assert sent(instrument([0.1, 0.2, 0.3, 0.4]), before) == [40.0]


def test_other_steps_are_sent_as_a_whole() -> None:
    now = instrument([0.1, 0.2])
    before = Instrument(now.series.model_copy(update={"step_seconds": 60}), None, "job", 0)
    assert now.message(before)["whole"] is True


def test_a_gap_too_far_back_that_was_filled_calls_for_the_whole() -> None:
    before = instrument([0.8], first=8, covers=START + 7 * STEP, gaps=[(2, 5)])
    still = instrument([0.8, 0.9], first=8, covers=START + 7 * STEP, gaps=[(2, 5)])
    partly = instrument([0.8, 0.9], first=8, covers=START + 7 * STEP, gaps=[(2, 4)])
    assert not still.was_filled_since(before)
    assert partly.was_filled_since(before)
    filled = instrument([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9])
    assert filled.was_filled_since(before)
    assert len(sent(filled, before)) == 9
    assert filled.message(before)["whole"] is True


def test_a_gap_that_grows_or_leaves_the_window_was_not_filled() -> None:
    before = instrument([0.8], first=8, covers=START + 7 * STEP, gaps=[(0, 3), (6, 8)])
    now = instrument([0.9], first=9, covers=START + 8 * STEP, gaps=[(2, 3), (6, 9)])
    moved = Instrument(
        now.series.model_copy(update={"start": START + 2 * STEP}), None, "live", now.covers
    )
    assert not moved.was_filled_since(before)


def test_the_newest_points_are_read_at_every_tick_and_more_for_who_lacks_more() -> None:
    before = _reading(step=STEP, last=HOUR.end - 300)
    assert covers_of(Ask(before, []), HOUR) == HOUR.end - 900
    long_away = Cursor(START, STEP, START + 600)
    assert covers_of(Ask(before, [long_away]), HOUR) == START + 600
    assert covers_of(Ask(before, [None]), HOUR) == 0
    assert covers_of(Ask(before, [Cursor(START, 60, HOUR.end)]), HOUR) == 0  # of other steps
    assert covers_of(Ask(before, []), WHOLE_DAY) == 0  # the steps have become longer


def test_a_reading_follows_only_who_lacks_nothing_that_it_left_out() -> None:
    now = _reading(step=STEP, last=HOUR.end - 300, covers=HOUR.end - 900)
    assert now.follows(Cursor(START, STEP, HOUR.end - 900))
    assert not now.follows(Cursor(START, STEP, HOUR.end - 910))
    assert not now.follows(Cursor(START, 60, HOUR.end))
    assert not now.follows(None)
    assert _reading(step=STEP, last=HOUR.end).follows(None)


def test_the_few_points_of_a_chart_are_sent_again_only_when_one_has_changed() -> None:
    chart = Whole([{"x": [1], "y": [2]}], [0, 1], "24h", {})
    later = Whole([{"x": [1], "y": [2]}], [1, 2], "24h", {})
    other = Whole([{"x": [1], "y": [3]}], [1, 2], "24h", {})
    assert chart.message(chart) is None
    assert (later.message(chart) or {})["traces"] == []
    assert (other.message(chart) or {})["traces"] == other.traces


def _reading(step: int, last: int, covers: int = 0) -> Reading:
    now = datetime.fromtimestamp(HOUR.end, UTC).timestamp()
    return Reading(
        "job",
        {"newest": None, "now": now, "late_after": 30, "old_after": 100, "live": True},
        {},
        points=(step, last),
        covers=covers,
    )
