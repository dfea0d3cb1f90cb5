"""Live values in a real browser: they come by a socket, and nothing that the reader did is lost."""

from collections.abc import Iterator
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, WebSocket

from flopwatch_server.access import sessions
from flopwatch_server.database.engine import Database
from tests.dashboard import cluster
from tests.dashboard.conftest import Clock, Server, asked_by_hub, serve
from tests.dashboard.screen import JOB, go, instrument, line, times
from tests.lab.browser import complaints
from tests.lab.postgres import DatabaseFactory
from tests.lab.processes import free_port, wait_for
from tests.lab.proxy import proxy

LIVE = f"{JOB}?range=live"
STEP_MS = 10_000
PASSWORD = "correct horse battery"


def sample(server: Server) -> int:
    """Ten seconds later, every GPU that trains has one more sample; its time on the axis."""
    server.clock.advance(10)
    now = server.clock.now
    moment = now.replace(second=now.second // 10 * 10, microsecond=0)
    cluster.add_samples(server.database, server.training, moment)
    return int(moment.timestamp()) * 1000 - STEP_MS // 2


def until_point(page: Page, time: int) -> dict[str, Any]:
    """The line once the point at `time` has its value."""

    def look() -> dict[str, Any] | None:
        now = line(page)
        values = dict(zip(now["x"], now["y"], strict=True)) if now else {}
        return now if values.get(time) == 50.0 else None

    found: dict[str, Any] = wait_for(look, "the point comes", 60)
    return found


def until_live(page: Page, server: Server) -> None:
    """Wait until the page follows: a new sample is on the screen."""
    until_point(page, sample(server))


def _moment_of(time: int) -> datetime:
    """When the sample was taken that stands at a time of the axis: at the end of its interval."""
    return datetime.fromtimestamp((time + STEP_MS // 2) / 1000).astimezone()


def requests(page: Page) -> list[str]:
    """A list that fills with the addresses that the page asks for from now on by HTTP."""
    found: list[str] = []
    page.on("request", lambda request: found.append(request.url))
    return found


def sockets(page: Page) -> list[WebSocket]:
    """A list that fills with the websockets that the page opens from now on."""
    found: list[WebSocket] = []
    page.on("websocket", lambda socket: found.append(socket))
    return found


@pytest.fixture
def statements(server: Server) -> Iterator[list[str]]:
    """A list that fills with what the hub asks of the database."""
    with asked_by_hub(server.database) as found:
        yield found


def test_twenty_updates_come_without_a_request_and_keep_zoom_and_scroll(
    page: Page, server: Server
) -> None:
    go(page, server, LIVE)
    before = instrument(page)
    until_live(page, server)
    box = page.locator("#job-instrument").bounding_box()
    assert box
    row = box["y"] + 150  # inside the row of tensor activity
    page.mouse.move(box["x"] + 300, row)
    page.mouse.down()
    page.mouse.move(box["x"] + 600, row, steps=5)
    page.mouse.up()
    zoomed = wait_for(
        lambda: (now := line(page)) and now["range"] != before["range"] and now["range"],
        "the mouse zooms", 20,
    )  # fmt: skip
    page.mouse.wheel(0, 200)
    scrolled = wait_for(lambda: page.evaluate("scrollY"), "the page scrolls", 20)
    asked = requests(page)

    for _ in range(20):
        now = until_point(page, sample(server))
        assert now["range"] == zoomed
    assert now["strip"][-1] == 50.0
    assert page.evaluate("scrollY") == scrolled
    assert asked == []
    assert page.evaluate("window.violations") == []

    page.get_by_role("button", name="Reset zoom").click()
    wait_for(lambda: (line(page) or now)["range"] != zoomed, "the zoom is taken back", 20)
    assert (line(page) or {})["range"][1] >= now["x"][-1]


def test_an_open_menu_and_the_text_that_is_selected_stay(page: Page, server: Server) -> None:
    go(page, server, LIVE)
    until_live(page, server)
    page.locator("#job-head h1").select_text()
    page.locator("[data-action=scheme]").focus()
    until_point(page, sample(server))
    assert page.evaluate("getSelection().toString()") == "llama3-8b-sft"
    assert page.evaluate("document.activeElement.id") == "scheme"


def test_a_late_sample_and_one_that_was_missing_come_into_the_line(
    page: Page, server: Server
) -> None:
    go(page, server, LIVE)
    instrument(page)
    until_live(page, server)
    server.clock.advance(60)  # nobody reports for a minute
    newest = sample(server)
    now = until_point(page, newest)
    missing = [time for time, value in zip(now["x"], now["y"], strict=True) if value is None]
    assert missing
    cluster.add_samples(server.database, server.training, *map(_moment_of, missing))
    wait_for(lambda: None not in (line(page) or {"y": [None]})["y"], "the hole is filled", 60)


@pytest.mark.parametrize("outage_samples", [1, 4])
def test_after_an_outage_no_point_is_missing_and_none_is_doubled(
    page: Page, databases: DatabaseFactory, tmp_path: Path, outage_samples: int
) -> None:
    clock, port = Clock(), free_port()
    with databases.database() as database:
        devices = cluster.fill(database, clock.now)
        with serve(database, clock, tmp_path, port=port) as first:
            first.training = devices
            go(page, first, LIVE)
            instrument(page)
            until_live(page, first)
            known = times(page)
        page.evaluate("window.sameDocument = true")
        for _ in range(outage_samples):  # each takes 3 s, until the page has tried to come back
            page.wait_for_event("websocket", timeout=60_000)
            sample(Server(first.url, database, clock, devices))
        with serve(database, clock, tmp_path, port=port) as second:
            second.training = devices
            until_live(page, second)
            now = times(page)
    assert page.evaluate("window.sameDocument") is True
    assert {b - a for a, b in pairwise(now)} == {STEP_MS}
    assert None not in (line(page) or {"y": [None]})["y"][-outage_samples - 2 :]
    assert now[-1] - known[-1] == (outage_samples + 1) * STEP_MS


def test_where_no_socket_opens_the_page_asks_and_takes_the_socket_once_it_can(
    page: Page, server: Server
) -> None:
    with proxy(int(server.url.rpartition(":")[2])) as between:
        page.goto(between.url + LIVE)
        instrument(page)
        with page.expect_response(lambda answer: "/_live?" in answer.url, timeout=60_000) as polled:
            until_live(page, server)
        assert polled.value.status == 200
        assert between.refused >= 3
        between.narrow = False
        page.wait_for_event("websocket", timeout=90_000)
        until_live(page, server)
        asked = requests(page)
        for _ in range(3):
            until_point(page, sample(server))
        assert asked == []


def test_who_looks_away_asks_the_database_for_nothing_and_is_told_all_when_back(
    page: Page, server: Server, statements: list[str]
) -> None:
    go(page, server, LIVE)
    instrument(page)
    until_live(page, server)
    _look(page, away=True)
    _until_quiet(statements, page)
    missed = [sample(server) for _ in range(3)]
    statements.clear()
    page.wait_for_timeout(2000)  # several ticks
    assert statements == []
    asked = requests(page)
    _look(page, away=False)
    now = until_point(page, missed[-1])
    assert [value for time, value in zip(now["x"], now["y"], strict=True) if time in missed] == [
        50.0
    ] * 3
    assert asked == []


def _look(page: Page, *, away: bool) -> None:
    """What a browser tells when its tab is hidden or shown."""
    page.evaluate(
        """(away) => {
          Object.defineProperty(document, "hidden", { get: () => away, configurable: true });
          document.dispatchEvent(new Event("visibilitychange"));
        }""",
        away,
    )


def _until_quiet(statements: list[str], page: Page) -> None:
    """Until a whole second passes without a statement: the reading in hands has ended."""

    def quiet() -> bool:
        statements.clear()
        page.wait_for_timeout(1000)
        return not statements

    wait_for(quiet, "nothing is read any more", 60)


def test_a_paused_page_asks_for_nothing_until_it_goes_on(
    page: Page, server: Server, statements: list[str]
) -> None:
    go(page, server, "/")
    page.locator("#age[data-level=fresh]").wait_for()
    page.locator("#pause").click()
    page.locator("#age[data-level=paused]").wait_for()
    _until_quiet(statements, page)
    asked = requests(page)
    page.wait_for_timeout(2000)
    assert (asked, statements) == ([], [])
    page.locator("#pause").click()
    wait_for(lambda: statements, "it goes on", 20)


def test_who_is_paused_still_gets_the_range_that_is_asked_for(page: Page, server: Server) -> None:
    go(page, server, LIVE)
    assert len(instrument(page)["x"]) == 90
    page.locator("#pause").click()
    asked = requests(page)
    page.locator("#ranges").get_by_text("1 h").click()
    wait_for(lambda: len(times(page)) == 360, "an hour of samples is drawn", 60)
    assert [url for url in asked if "_dash" in url] == []


def test_rows_of_the_list_change_in_place_under_the_reader(page: Page, server: Server) -> None:
    go(page, server, "/jobs")
    row = page.locator(".jobs-grid .ag-row").filter(has_text="llama3-8b-sft")
    _until_a_minute_passes(server, row)
    row.locator("[col-id=user]").focus()
    row.evaluate("(element) => (element.mark = 'the same element')")
    asked = requests(page)
    _until_a_minute_passes(server, row)
    assert row.evaluate("(element) => element.mark") == "the same element"
    assert page.evaluate("document.activeElement.getAttribute('col-id')") == "user"
    assert asked == []


def _until_a_minute_passes(server: Server, row: Locator) -> None:
    elapsed = row.locator("[col-id=elapsed]")
    before = elapsed.inner_text()
    server.clock.advance(60)
    wait_for(lambda: elapsed.inner_text() != before, "a minute passes", 60)


def test_the_page_of_a_job_that_ends_says_so(page: Page, server: Server) -> None:
    go(page, server, f"/jobs/granite/{cluster.IDLE}")
    page.locator("#age").get_by_text("old").wait_for()
    cluster.end(server.database, cluster.IDLE, server.clock.now)
    page.locator("#age").get_by_text("final").wait_for(timeout=60_000)
    assert "Completed" in page.locator("#job-head").inner_text()


def test_a_signed_out_session_is_told_nothing_and_another_goes_on(
    page: Page, databases: DatabaseFactory, tmp_path: Path
) -> None:
    clock = Clock()
    with databases.database() as database:
        devices = cluster.fill(database, clock.now)
        with serve(database, clock, tmp_path, "local") as server:
            server.training = devices
            mine, other = _signed_in(page, database, clock, server), _session(database, clock)
            errors = complaints(page)
            opened = sockets(page)
            go(page, server, LIVE)
            until_live(page, server)
            with database.session() as session:
                sessions.sign_out(session, other)
            until_live(page, server)
            with database.session() as session:
                sessions.sign_out(session, mine)
            page.locator("#age").get_by_text("signed out").wait_for(timeout=60_000)
            asked = requests(page)
            page.wait_for_timeout(3000)  # longer than the first tries to come back would take
            assert [socket.is_closed() for socket in opened] == [True]
            assert asked == []
            assert errors == []


def _session(database: Database, clock: Clock) -> str:
    with database.session() as session:
        found = sessions.sign_in(session, "ada", PASSWORD, clock.now)
    assert found
    return found


def _signed_in(page: Page, database: Database, clock: Clock, server: Server) -> str:
    """The page gets the cookie of a new session."""
    with database.session() as session:
        sessions.set_password(session, "ada", PASSWORD, clock.now)
    mine = _session(database, clock)
    page.context.add_cookies(
        [{"name": "flopwatch_session", "value": mine, "url": server.url, "httpOnly": True}]
    )
    return mine
