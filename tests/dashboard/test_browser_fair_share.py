"""The fair-share page in a real browser: accounts, what is chosen of them, and its course."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from playwright.sync_api import Page
from sqlalchemy import update

from flopwatch.gpus import PeakTable
from flopwatch_dashboard.address import Address, find_place
from flopwatch_dashboard.live.reading import Ask, Reading
from flopwatch_dashboard.pages.fair_share.live import live
from flopwatch_dashboard.services import Visit, read_as
from flopwatch_server.access.principal import Principal
from flopwatch_server.house import House
from flopwatch_server.jobs.models import Run
from flopwatch_server.settings import Settings
from tests.dashboard import cluster, shares
from tests.dashboard.conftest import Clock, Server, serve
from tests.dashboard.screen import go
from tests.dashboard.visitors import served_to
from tests.lab.browser import complaints
from tests.lab.postgres import DatabaseFactory
from tests.lab.processes import wait_for

WIDTHS = (390, 1280, 1440, 1920)
_COURSE = """() => document.querySelector("#fair-share-course .js-plotly-plot")?.data
  ?.map((trace) => ({ y: [...trace.y], x: [...trace.x] }))"""


@pytest.fixture(scope="module")
def server(
    databases: DatabaseFactory, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """The small cluster, of whose fair share was told two hours and five minutes ago."""
    clock = Clock()
    with databases.database() as database:
        cluster.fill(database, clock.now)
        with database.session() as session:
            less = replace(shares.ALICE, effective_usage=0.5, level_fs=0.5, fair_share=0.25)
            shares.tell(session, clock.now - timedelta(hours=2), less)
            shares.tell(session, clock.now - timedelta(minutes=5))
        with serve(database, clock, tmp_path_factory.mktemp("data")) as running:
            yield running


def course(page: Page, lines: int) -> list[dict[str, Any]]:
    """The lines of the chart, once it has so many."""

    def drawn() -> list[dict[str, Any]] | None:
        found: list[dict[str, Any]] | None = page.evaluate(_COURSE)
        return found if found and len(found) == lines else None

    return wait_for(drawn, "the course is drawn", 20)


def rows(page: Page, table: str) -> list[list[str]]:
    body = page.get_by_role("table", name=table, exact=True).locator("tbody tr")
    return [row.locator("td").all_inner_texts() for row in body.all()]


def test_accounts_are_a_tree_with_what_was_told_and_a_dash_for_what_was_not(
    page: Page, server: Server
) -> None:
    go(page, server, "/fair-share")
    assert rows(page, "Accounts") == [
        # account, users, waiting GPUs, shares, share, usage, its bar, level
        ["root", "3", "32", "1", "–", "100 %", "", "–"],
        ["science", "3", "32", "100", "100 %", "100 %", "", "1.00"],
        ["vision", "3", "0", "70", "70 %", "84 %", "", "0.84"],
        ["nlp", "0", "32", "30", "30 %", "16 %", "", "1.85"],
    ]
    dash = page.get_by_role("table", name="Accounts").locator("[data-tip]").first
    assert dash.get_attribute("data-tip") == (
        "It is the root of the tree: nothing competes with it."
    )
    assert page.locator("#fair-share-lead").inner_text() == (
        "1 of 3 accounts has used more than its share; vision, 1.2 times as much. "
        "1 job waits for 32 GPUs."
    )
    assert rows(page, "Waiting by account and reason") == [["nlp", "Resources", "32", "1"]]


def test_an_account_and_a_user_are_chosen_by_the_address_alone(page: Page, server: Server) -> None:
    errors = complaints(page)
    posts: list[str] = []
    page.on("request", lambda request: posts.append(request.url)
            if "_dash-update-component" in request.url else None)  # fmt: skip
    go(page, server, "/fair-share")
    page.locator("#fair-share-accounts").get_by_role("link", name="vision").click()
    usage, share = course(page, 2)
    assert page.url == server.url + "/fair-share?account=vision"
    assert (usage["y"], share["y"]) == ([83.81, 83.81], [70, 70])
    assert rows(page, "Users") == [
        ["alice", "25 %", "73 %", "", "0.34", "0.167"],
        ["carol", "25 %", "0 %", "", "nothing used yet", "0.500"],
        ["bob", "50 %", "27 %", "", "–", "0.333"],
    ]
    page.locator("#fair-share-users").get_by_role("link", name="alice").click()
    usage, _, factor = course(page, 3)
    assert page.url == server.url + "/fair-share?account=vision&user=alice"
    assert (usage["y"], factor["y"]) == ([50, 73.45, 73.45], [0.25, 0.166667, 0.166667])
    page.reload()
    course(page, 3)
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth") == width
    page.go_back()
    course(page, 2)
    page.get_by_role("link", name="All accounts").click()
    page.locator("#fair-share-users").wait_for(state="detached")
    assert page.url == server.url + "/fair-share"
    assert page.evaluate("window.violations") == []
    assert errors == []
    assert len(posts) <= 12  # two for the first page, no more for each of the five that follow


def test_what_is_told_while_the_page_is_open_comes_into_the_same_chart(
    page: Page, server: Server
) -> None:
    go(page, server, "/fair-share?account=vision&user=carol")
    before = course(page, 3)
    page.evaluate("document.querySelector('#fair-share-course .js-plotly-plot').ours = true")
    server.clock.advance(300)
    used = replace(shares.SHARES[-1], raw_usage=9, effective_usage=0.13, level_fs=1.92)
    with server.database.session() as session:
        shares.tell(session, server.clock.now, used)
    wait_for(lambda: course(page, 3)[0]["y"][-1] == 13, "the new usage", 20)
    assert course(page, 3)[0]["x"][-1] == before[0]["x"][-1] + 600_000  # both are when it was told
    assert page.evaluate("document.querySelector('#fair-share-course .js-plotly-plot').ours")
    assert ["carol", "25 %", "13 %", "", "1.92", "0.500"] in rows(page, "Users")


def test_a_reading_is_the_same_again_until_something_is_told_or_waits(server: Server) -> None:
    address = Address.parse("/fair-share", "?account=vision")
    house = House(server.database, Settings(), PeakTable.load(), server.clock)

    def read(before: Reading | None) -> Reading:
        def of_place(visit: Visit) -> Reading:
            return live(visit, find_place(visit, address, {}), Ask(before, [None]))

        return read_as(house, Principal("ada", "admin"), of_place)

    first = read(None)
    server.clock.advance(5)
    again = read(first)
    assert again.parts is first.parts
    assert again.freshness["now"] == first.freshness["now"] + 5
    with server.database.session() as session:
        shares.tell(session, server.clock.now)
    told = read(again)
    assert told.freshness["newest"] == server.clock.now.timestamp()
    assert told.parts is not first.parts
    with server.database.session() as session:
        session.execute(update(Run).where(Run.display_id == cluster.WAITING).values(gpu_count=16))
    assert b"waits for 16 GPUs" in bytes(read(told).parts["fair-share-lead"])


def test_what_does_not_exist_or_may_not_be_seen_is_not_found(
    page: Page, server: Server, tmp_path_factory: pytest.TempPathFactory
) -> None:
    def statuses(there: Server) -> dict[str, int]:
        paths = ("", "?account=vision", "?account=vision&user=alice", "?account=vision&user=bob",
                 "?account=none", "?account=vision%00&user=eve")  # fmt: skip
        return {path: page.request.get(f"{there.url}/fair-share{path}").status for path in paths}

    assert list(statuses(server).values()) == [200, 200, 200, 200, 404, 404]
    with served_to(Principal("alice", "researcher"), server, tmp_path_factory) as there:
        assert list(statuses(there).values()) == [200, 404, 200, 404, 404, 404]
        go(page, there, "/fair-share")
        assert rows(page, "Associations") == [
            ["vision", "alice", "25 %", "73 %", "", "0.34", "0.167"]
        ]
        assert page.locator("#fair-share-lead").inner_text() == (
            "alice has used 2.9 times their share in vision. No job waits."
        )
        page.get_by_role("link", name="alice").click()
        course(page, 3)
        go(page, there, "/fair-share?account=vision&user=bob")
        assert page.locator("h1").inner_text() == "Not found"
        page.goto("about:blank")  # the server ends once nobody follows
