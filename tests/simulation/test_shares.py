"""Fair share of the simulated cluster: what its jobs used, and in what order that puts people."""

import math
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from flopwatch_simulation.cluster import Cluster
from flopwatch_simulation.people import Person
from flopwatch_simulation.shares import fair_tree, share_lines, standings, usage
from tests.simulation.readings import NOON

ANA, BEN = Person("ana", "nlp", 1), Person("ben", "nlp", 2)
CLEO = Person("cleo", "vision", 3)


@pytest.fixture(scope="module")
def told() -> list[dict[str, Any]]:
    lines = Cluster(seed=7).feed_lines(NOON, NOON - 7200)
    return [line for line in lines if line["kind"] == "share"]


def test_a_standing_is_what_sshare_shows_of_the_same_figures() -> None:
    # A capture of sshare -l: 10 and 30 shares, 41723 and 15080 of usage on their level.
    found = standings({"alice": 10, "bob": 30}, {"alice": 41_723, "bob": 15_080})
    assert found["alice"].norm_shares == 0.25
    assert found["alice"].effective_usage == pytest.approx(0.734523, abs=1e-5)
    assert found["alice"].level_fs == pytest.approx(0.340357, abs=1e-5)


def test_who_has_used_nothing_comes_before_all_others_and_where_nobody_has_all_are_equal() -> None:
    found = standings({"alice": 1, "bob": 1}, {"alice": 5, "bob": 0})
    assert found["bob"].level_fs == math.inf
    unused = standings({"alice": 1, "bob": 3}, {"alice": 0, "bob": 0})
    assert {standing.effective_usage for standing in unused.values()} == {0.0}


def test_factors_go_down_the_tree_by_rank_and_ties_share_one() -> None:
    # Fair Tree: all of a better account come before all of a worse one, whatever their own level.
    levels = {"a": (2.0, 0.1), "b": (2.0, 9.0), "c": (0.5, 3.0), "d": (0.5, 3.0), "e": (0.5, 1.0)}
    assert fair_tree(levels) == {"b": 1.0, "a": 0.8, "c": 0.6, "d": 0.6, "e": 0.2}


def test_usage_decays_by_half_in_six_hours_and_ends_after_a_day() -> None:
    hour = 3600
    job = next(iter(Cluster(seed=7).jobs(NOON, NOON)))
    held = replace(job, started_at=NOON - 12 * hour, ended_at=NOON - 12 * hour + 60)
    fresh, older = usage([held], NOON - 11 * hour), usage([held], NOON - 5 * hour)
    assert older[job.person] / fresh[job.person] == pytest.approx(0.5, rel=0.01)
    assert usage([held], NOON + 13 * hour)[job.person] == 0
    running = replace(job, started_at=NOON - 60, ended_at=NOON + hour)
    assert usage([running], NOON)[job.person] == pytest.approx(60 * job.gpu_count, rel=0.01)


def test_every_account_is_told_before_its_people_and_adds_up_to_them(
    told: list[dict[str, Any]],
) -> None:
    account: dict[str, Any] = {}
    sums: Counter[str] = Counter()
    for line in told:
        if "user" not in line:
            account[line["account"]] = line["raw_usage"]
        else:
            assert line["account"] in account
            sums[line["account"]] += line["raw_usage"]
    assert len(account) == 11
    assert account == sums


def test_shares_are_of_the_people_whose_jobs_run_and_of_some_who_used_nothing(
    told: list[dict[str, Any]],
) -> None:
    used = {(line["account"], line.get("user")): line["raw_usage"] for line in told}
    for job in Cluster(seed=7).jobs(NOON, NOON):
        if job.runs(NOON - 60):
            assert used[job.person.account, job.person.user] > 0
    levels = [line["level_fs"] for line in told if "user" in line]
    assert 3 < levels.count("Infinity") < len(levels) / 2


def test_shares_are_told_every_five_minutes() -> None:
    cluster = Cluster(seed=7)
    start = NOON // 300 * 300
    told = [
        any(line["kind"] == "share" for line in cluster.feed_lines(time, time - 30))
        for time in range(start, start + 600, 30)
    ]
    assert told == [number % 10 == 0 for number in range(20)]


def test_grants_are_the_clusters_own_and_factors_go_by_all_its_people() -> None:
    people, used = [ANA, BEN, CLEO], Counter({ANA: 10, BEN: 30, CLEO: 60})
    first, again = (list(share_lines(1, people, used)) for _ in range(2))
    assert first == again
    assert [line["account"] for line in first if "user" not in line] == ["nlp", "vision"]
    others = [list(share_lines(seed, people, used)) for seed in range(2, 8)]
    assert any(other[0]["raw_shares"] != first[0]["raw_shares"] for other in others)
    factors = {line["user"]: line["fair_share"] for line in first if "user" in line}
    assert factors["ana"] > factors["ben"]
    assert sorted(factors.values()) == pytest.approx([1 / 3, 2 / 3, 1.0])
