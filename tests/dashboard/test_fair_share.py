"""Sentences, tree and course of the fair-share page, for figures written by hand."""

import math
from datetime import timedelta
from typing import Any

import pytest
from dash import html

from flopwatch_dashboard.pages.fair_share import figures, waiting, words
from flopwatch_dashboard.pages.fair_share.data import Chosen, FairShareData, tree
from flopwatch_server.jobs.schemas import WaitingDemand, WaitingGroup
from flopwatch_server.people.schemas import (
    AssociationShare,
    FairShare,
    ShareHistory,
    SharePoint,
)
from tests.dashboard.builders import NOW


def share(account: str, user: str | None = None, **facts: Any) -> AssociationShare:
    known = {"partition": "", "parent": None, "raw_shares": 10, "changed_at": NOW}
    return AssociationShare(account=account, user=user, **known | facts)


def data(
    *shares: AssociationShare, groups: list[WaitingGroup] | None = None,
    points: list[SharePoint] | None = None, gone_at: Any = None, **told: Any,
) -> FairShareData:  # fmt: skip
    known = {"told_at": NOW, "error": None, "error_since": None}
    course = ShareHistory(cluster="granite", account="nlp", user=None, partition="",
                          gone_at=gone_at, points=points or [])  # fmt: skip
    return FairShareData(
        told=FairShare(cluster="granite", shares=list(shares), **known | told),
        waiting=WaitingDemand(cluster="granite", told_at=NOW, groups=groups or []),
        chosen=Chosen("nlp"), course=course, since=NOW - timedelta(days=7), now=NOW, sees_all=True,
    )  # fmt: skip


def text(part: Any) -> str:
    if isinstance(part, list | tuple):
        return "".join(map(text, part))
    if isinstance(part, html.Time):
        return part.dateTime
    inside = getattr(part, "children", part)
    return inside if isinstance(inside, str) else text(inside)


def test_the_tree_puts_each_account_before_those_below_it_the_furthest_over_first() -> None:
    accounts = [
        share("root"), share("b", parent="root", level_fs=2.0),
        share("a", parent="root", level_fs=math.inf), share("c", parent="root"),
        share("d", parent="a", level_fs=3.0), share("e", parent="root", level_fs=0.5),
    ]  # fmt: skip
    found = [(line.share.account, line.depth) for line in tree(accounts)]
    assert found == [("root", 0), ("e", 1), ("b", 1), ("a", 1), ("d", 2), ("c", 1)]


def test_an_account_whose_parent_may_not_be_seen_stands_at_the_root() -> None:
    assert [line.depth for line in tree([share("nlp", parent="science")])] == [0]


@pytest.mark.parametrize(
    ("shares", "expected"),
    [
        ([share("a", level_fs=0.5), share("b", level_fs=0.25), share("c", level_fs=1.5)],
         "2 of 3 accounts have used more than their share; b most, 4.0 times as much."),
        ([share("a", level_fs=0.5), share("b", level_fs=0.0)],
         "2 of 2 accounts have used more than their share; b most, without having any."),
        ([share("a", level_fs=0.0004)],
         "1 of 1 account has used more than its share; a, 2,500 times as much."),
        ([share("a", "ana", level_fs=0.0)], "ana has no share in a and has used some."),
        ([share("a", level_fs=1.0), share("b", level_fs=math.inf)],
         "No account has used more than its share."),
        ([share("a", "ana", level_fs=0.4)], "ana has used 2.5 times their share in a."),
        ([share("a", "ana", level_fs=math.inf)], "ana has used nothing yet in a."),
        ([share("a", "ana")], "No association has a share of its own."),
    ],
)  # fmt: skip
def test_the_lead_says_who_is_furthest_over_their_share(
    shares: list[AssociationShare], expected: str
) -> None:
    assert words.lead(data(*shares)) == f"{expected} No job waits."


def test_what_was_never_told_says_why_and_what_it_takes() -> None:
    asked = data(told_at=None, error="sacctmgr: no such command", error_since=NOW)
    told = text(words.why_unknown(asked))
    assert "sacctmgr: no such command" in told
    assert "AccountingStorageType=accounting_storage/slurmdbd" in told
    assert "PriorityType=priority/multifactor" in told
    assert text(words.why_unknown(data(told_at=None))).startswith("No scheduler has told")
    assert words.lead(asked).startswith("No fair share is known.")


def test_what_is_told_no_more_says_since_when_and_of_when_it_is() -> None:
    before = NOW - timedelta(hours=3)
    failing = data(told_at=before, error="sshare: down", error_since=NOW)
    assert text(words.stale(failing)) == (
        f"Fair share has not been told since {NOW.isoformat()}: sshare: down. "
        f"Shown is what was told at {before.isoformat()}."
    )
    assert words.stale(data()) is None


@pytest.mark.parametrize(
    ("told", "reason"),
    [
        (share("root", raw_shares=1), "It is the root of the tree: nothing competes with it."),
        (share("nlp", "bo", raw_shares=None),
         "It has no shares of its own: it counts with those of its parent."),
        (share("nlp", "bo", changed_at=None), "Not told yet."),
        (share("nlp", "bo"), "The scheduler does not tell it."),
    ],
)  # fmt: skip
def test_a_level_that_is_unknown_is_a_dash_with_its_reason(
    told: AssociationShare, reason: str
) -> None:
    dash: Any = words.level(told)
    assert (dash.children, getattr(dash, "data-tip")) == ("–", reason)


def test_levels_lose_their_decimals_where_they_tell_nothing() -> None:
    assert [words.level_text(level) for level in (0.0, 0.3404, 9.994, 9.996, 1204.0)] == [
        "0.00", "0.34", "9.99", "10", "1,204",
    ]  # fmt: skip


def test_what_waits_is_counted_and_what_nobody_told_is_no_zero() -> None:
    known = WaitingGroup(pending_class="limit", account="nlp", runs=2, tasks=41, gpus=82)
    unknown = WaitingGroup(pending_class="limit", account="cv", runs=1, tasks=1, unknown_runs=1)
    assert waiting.gpus([known]) == "82"
    assert waiting.gpus([known, unknown]) == "82"
    assert waiting.gpus([]) == "0"
    assert text(waiting.gpus([unknown])) == "–"
    strip = text(waiting.tile_strip(data(groups=[known, unknown])))
    assert "3 jobs, 1 of unknown size" in strip
    assert "2 jobs, 41 tasks" in text(waiting.tile_strip(data(groups=[known])))


POINTS = [
    SharePoint(at=NOW - timedelta(days=9), effective_usage=0.1, norm_shares=0.2),
    SharePoint(at=NOW - timedelta(days=2), effective_usage=0.4, norm_shares=0.2),
]


def days(figure: dict[str, Any], line: int = 0) -> list[float]:
    """The times of a line, in days from now."""
    return [x / 86_400_000 - NOW.timestamp() / 86_400 for x in figure["data"][line]["x"]]


def test_a_figure_holds_until_the_next_and_the_last_one_until_now() -> None:
    made = figures.course_figure(data(points=POINTS), "7d")
    assert days(made) == pytest.approx([-7, -2, 0])
    assert [line["y"] for line in made["data"]] == [[10, 40, 40], [20, 20, 20]]
    assert made["data"][0]["line"]["shape"] == "hv"
    assert made["layout"]["yaxis"]["ticktext"] == ["25", "50 %"]


def test_the_course_ends_where_it_is_told_no_more() -> None:
    failing = data(points=POINTS, told_at=NOW - timedelta(days=1), error="down", error_since=NOW)
    assert days(figures.course_figure(failing, "7d"))[-1] == pytest.approx(-1)
    gone = data(points=POINTS, gone_at=NOW - timedelta(days=1.5))
    assert days(figures.course_figure(gone, "7d"))[-1] == pytest.approx(-1.5)


def test_a_course_that_has_just_begun_fills_its_chart() -> None:
    for told_seconds_ago, shown in ((300, 300_000), (2, 60_000)):
        young = [SharePoint(at=NOW - timedelta(seconds=told_seconds_ago), effective_usage=0.1)]
        start, end = figures.course_figure(data(points=young), "7d")["layout"]["xaxis"]["range"]
        assert end - start == shown


def test_a_factor_has_a_row_of_its_own() -> None:
    points = [SharePoint(at=NOW - timedelta(days=1), effective_usage=0.1, fair_share=0.25)]
    made = figures.course_figure(data(points=points), "7d")
    assert made["data"][2]["y"] == [0.25, 0.25]
    assert made["data"][2]["yaxis"] == "y2"
