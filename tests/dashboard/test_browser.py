"""All pages in a real browser, over the real server and a real database."""

import inspect

import pytest
from dash import get_app
from playwright.sync_api import Page, Response

from flopwatch_server.access import sessions
from tests.dashboard import cluster
from tests.dashboard.conftest import Clock, Server, serve
from tests.dashboard.screen import JOB, go, instrument
from tests.lab.browser import complaints
from tests.lab.postgres import DatabaseFactory

PATHS = ["/", "/jobs", JOB, f"/jobs/granite/{cluster.WAITING}", "/fair-share", "/doctor", "/nope"]
WIDTHS = (390, 1280, 1440, 1920)
# Measured for one grid and one chart together, all compressed beforehand: 1,351 kB, 20 requests.
MOST_KILOBYTES = 1400
MOST_REQUESTS = 21


@pytest.mark.parametrize("path", PATHS)
def test_no_page_scrolls_sideways_complains_or_breaks_the_policy(
    page: Page, server: Server, path: str
) -> None:
    errors = complaints(page)
    go(page, server, path)
    if path == JOB:
        instrument(page)
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth") == width
    page.locator("#scheme").click()
    assert page.evaluate("window.violations") == []
    not_found = "Failed to load resource: the server responded with a status of 404"
    assert [text for text in errors if path != "/nope" or not_found not in text] == []


@pytest.mark.parametrize("path", ["/", "/jobs", JOB])
def test_a_first_visit_is_light(page: Page, server: Server, path: str) -> None:
    answers: list[Response] = []
    page.on("response", lambda answer: answers.append(answer))
    go(page, server, path)
    page.wait_for_load_state("networkidle")
    scripts = [answer for answer in answers if answer.request.resource_type == "script"]
    kilobytes = sum(answer.request.sizes()["responseBodySize"] for answer in answers) / 1000
    assert kilobytes <= MOST_KILOBYTES
    assert len(answers) <= MOST_REQUESTS
    assert all(answer.header_value("content-encoding") == "br" for answer in scripts)
    assert any("plotly.min.js" in answer.url for answer in answers) == (path != "/jobs")


def test_a_deep_link_is_drawn_and_a_wrong_one_is_404(page: Page, server: Server) -> None:
    statuses = {
        path: page.goto(server.url + path).status  # type: ignore[union-attr]
        for path in (JOB, "/jobs/granite/999", "/jobs/slate/481340", "/nope", "/api/v1/nope")
    }
    assert statuses == {
        JOB: 200, "/jobs/granite/999": 404, "/jobs/slate/481340": 404, "/nope": 404,
        "/api/v1/nope": 404,
    }  # fmt: skip
    assert page.locator("body").inner_text() == '{"detail":"there is no /api/v1/nope"}'
    go(page, server, "/jobs/granite/999")
    assert page.locator("h1").inner_text() == "Not found"


def test_a_trailing_slash_leads_to_the_page(page: Page, server: Server) -> None:
    go(page, server, JOB + "/?range=live")
    assert page.url == server.url + JOB + "?range=live"


def test_the_first_run_shows_commands_that_can_be_copied(
    page: Page, databases: DatabaseFactory, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with databases.database() as database, \
            serve(database, Clock(), tmp_path_factory.mktemp("data")) as empty:  # fmt: skip
        go(page, empty, "/")
        commands = page.locator(".code pre").all_inner_texts()
        assert commands[0] == "flopwatch token node --cluster granite --output token"
        assert f"flopwatch agent --server {empty.url} --token-file" in commands[1]
        assert commands[2] == "export FLOPWATCH_SLURM_CLUSTER=granite"


def test_who_has_signed_in_can_sign_out(
    page: Page, databases: DatabaseFactory, tmp_path_factory: pytest.TempPathFactory
) -> None:
    password = "correct horse battery"
    clock = Clock()
    with databases.database() as database, \
            serve(database, clock, tmp_path_factory.mktemp("own"), "local") as guarded:  # fmt: skip
        with database.session() as session:
            sessions.set_password(session, "ada", password, clock.now)
        page.goto(guarded.url + "/jobs")
        page.locator("[name=name]").fill("ada")
        page.locator("[name=password]").fill(password)
        page.keyboard.press("Enter")
        page.get_by_text("No scheduler has told of any job yet.").wait_for()
        page.get_by_label("Who is signed in").click()
        page.get_by_role("button", name="Sign out").click()
        page.wait_for_url("**/sign-in")
        page.goto(guarded.url + "/jobs")
        assert "/sign-in" in page.url


def test_back_from_a_job_to_the_overview_fails_no_callback(page: Page, server: Server) -> None:
    errors = complaints(page)
    go(page, server, "/")
    page.locator("#overview-lead").wait_for()
    page.locator("#overview-attention a", has_text="code-eval").click()
    page.get_by_test_id("verdict").wait_for()
    page.locator("#ranges").get_by_text("1 h").click()
    page.wait_for_url("**?range=1h")
    page.evaluate("history.go(-2)")
    page.locator("#overview-lead").wait_for()
    page.wait_for_load_state("networkidle")
    assert errors == []


def test_a_page_that_is_not_there_claims_nothing_about_the_data(page: Page, server: Server) -> None:
    go(page, server, "/nope")
    page.locator("#context").get_by_text("granite").wait_for()
    assert page.locator("#age").inner_text() == ""
    go(page, server, f"/jobs/granite/{cluster.WAITING}")
    page.locator("#age[data-level=fresh]").wait_for()


def test_every_server_callback_is_async() -> None:
    callbacks = {
        name: entry["callback"]
        for name, entry in get_app().callback_map.items()
        if "callback" in entry
    }
    assert len(callbacks) >= 2
    assert [n for n, call in callbacks.items() if not inspect.iscoroutinefunction(call)] == []
