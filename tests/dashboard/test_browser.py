"""The pages in a real browser, over the real server and a real database."""

import inspect
import re
from collections.abc import Iterator
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from dash import get_app
from playwright.sync_api import Browser, BrowserContext, Page, Request, Response

from flopwatch_server.access import sessions
from tests.dashboard import cluster
from tests.dashboard.conftest import Clock, Server, serve
from tests.lab.browser import complaints
from tests.lab.postgres import DatabaseFactory
from tests.lab.processes import wait_for

JOB = f"/jobs/granite/{cluster.TRAINING}"
PATHS = ["/", "/jobs", JOB, f"/jobs/granite/{cluster.WAITING}", "/nope"]
WIDTHS = (390, 1280, 1440, 1920)
# Measured for one grid and one chart together, all compressed beforehand: 1,351 kB, 20 requests.
MOST_KILOBYTES = 1400
MOST_REQUESTS = 21
_RECORD_VIOLATIONS = """
window.violations = [];
document.addEventListener("securitypolicyviolation", (event) =>
  window.violations.push(`${event.violatedDirective} ${event.blockedURI}`));
"""
_LINE = """() => {
  const graph = document.querySelector("#job-instrument .js-plotly-plot");
  const find = (name) => graph.data.find((trace) => trace.name === name);
  const line = find("tensor_active");
  return {
    x: line.x, y: line.y, range: graph.layout.xaxis.range,
    band: find("band tensor_active").y, strip: find("strip").z[0],
    ramp: find("strip").colorscale.map((step) => step[1]), color: line.line.color,
  };
}"""


@pytest.fixture(scope="module")
def server(
    databases: DatabaseFactory, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    clock = Clock(datetime.now().astimezone())
    with databases.database() as database:
        devices = cluster.fill(database, clock.now)
        with serve(database, clock, tmp_path_factory.mktemp("data")) as running:
            running.training = devices
            yield running


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    found = browser.new_context(viewport={"width": 1440, "height": 900}, color_scheme="light")
    found.add_init_script(_RECORD_VIOLATIONS)
    yield found
    found.close()


@pytest.fixture
def page(context: BrowserContext) -> Page:
    return context.new_page()


def go(page: Page, server: Server, path: str) -> None:
    page.goto(server.url + path)
    page.locator("#main h1").wait_for()


def instrument(page: Page) -> dict[str, Any]:
    page.locator("#job-instrument .main-svg").first.wait_for()
    found: dict[str, Any] = wait_for(lambda: _drawn(page), "the instrument is drawn", 20)
    return found


def _drawn(page: Page) -> dict[str, Any] | None:
    ready = page.evaluate(
        "() => Boolean(document.querySelector('#job-instrument .js-plotly-plot')?.data?.length)"
    )
    return page.evaluate(_LINE) if ready else None


def _x(page: Page) -> list[int]:
    """The times on the screen; none while one figure takes the place of another."""
    line = _drawn(page)
    return line["x"] if line else []


def _later_than(page: Page, newest: int) -> dict[str, Any]:
    """The line once it has a point after `newest`."""

    def look() -> dict[str, Any] | None:
        line: dict[str, Any] = page.evaluate(_LINE)
        return line if line["x"][-1] > newest else None

    found: dict[str, Any] = wait_for(look, "a point comes", 20)
    return found


def tick(page: Page) -> None:
    """What the page's clock would do within 5 s."""
    page.evaluate("() => dash_clientside.set_props('tick', { n_intervals: performance.now() })")


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


def test_the_job_page_tells_the_figures_that_were_put_in(page: Page, server: Server) -> None:
    go(page, server, JOB)
    tiles = page.get_by_test_id("tile")
    # By hand: tensor 30, 31, 32 and 33 % on four GPUs.
    assert "32 %" in tiles.filter(has_text="Tensor active").inner_text().replace("\n", " ")
    assert "46.1 GiB" in tiles.filter(has_text="Memory, max").inner_text().replace("\n", " ")
    # 25 % of the peak while training, on one of four GPUs, over the time that the job holds them.
    assert page.get_by_test_id("train-mfu").inner_text() == "25.0 %"
    assert page.locator("#job-head").inner_text().startswith("llama3-8b-sft")
    assert page.locator("#job-gpus tbody tr").count() == 4


def test_times_and_charts_are_in_the_zone_of_the_browser(browser: Browser, server: Server) -> None:
    zone = ZoneInfo("Asia/Kathmandu")  # 5 h 45 min ahead of UTC: no server's zone by chance
    with browser.new_context(timezone_id=zone.key) as context:
        page = context.new_page()
        go(page, server, JOB)
        instrument(page)
        started = page.locator("#job-head time").first
        axis = page.evaluate(
            "document.querySelector('#job-instrument .js-plotly-plot')._fullLayout.xaxis.range[0]"
        )
        moment = datetime.fromisoformat(started.get_attribute("datetime") or "").astimezone(zone)
        assert started.inner_text().endswith(f"{moment:%H:%M}")
        assert (started.get_attribute("title") or "").startswith(f"{moment:%Y-%m-%d %H:%M:%S}")
        assert axis.startswith(f"{moment:%Y-%m-%d %H:%M}")


def test_other_jobs_say_in_words_what_there_is(page: Page, server: Server) -> None:
    for job, sentence in {
        cluster.WAITING: "The job has waited for 32 GPUs for 33 min; the scheduler says Resources.",
        cluster.IDLE: "All 4 GPUs have been idle for ",
        cluster.UNWATCHED: "No samples from x001 since the job started",
    }.items():
        go(page, server, f"/jobs/granite/{job}")
        assert page.get_by_test_id("verdict").inner_text().startswith(sentence)


def test_zoom_stays_while_new_points_come(page: Page, server: Server) -> None:
    go(page, server, JOB + "?range=live")
    before = instrument(page)
    box = page.locator("#job-instrument").bounding_box()
    assert box
    row = box["y"] + 150  # inside the row of tensor activity
    page.mouse.move(box["x"] + 300, row)
    page.mouse.down()
    page.mouse.move(box["x"] + 600, row, steps=5)
    page.mouse.up()
    zoomed = wait_for(
        lambda: page.evaluate(_LINE)["range"] != before["range"] and page.evaluate(_LINE)["range"],
        "the mouse zooms", 10,
    )  # fmt: skip

    for _ in range(3):
        server.clock.advance(10)
        moment = server.clock.now.replace(second=server.clock.now.second // 10 * 10, microsecond=0)
        cluster.add_samples(server.database, server.training, moment)
        newest = page.evaluate(_LINE)["x"][-1]
        tick(page)
        now = _later_than(page, newest)
        assert now["x"][-1] - newest == 10_000
        assert now["y"][-1] == 50.0
        assert now["strip"][-1] == 50.0
        assert now["range"] == zoomed

    page.get_by_role("button", name="Reset zoom").click()
    wait_for(lambda: page.evaluate(_LINE)["range"] != zoomed, "the zoom is taken back", 10)
    assert page.evaluate(_LINE)["range"][1] >= now["x"][-1]


def test_a_live_message_holds_only_new_points(page: Page, server: Server) -> None:
    go(page, server, JOB + "?range=live")
    points = len(instrument(page)["x"])
    with page.expect_response(lambda answer: "_dash-update-component" in answer.url) as answer:
        tick(page)
    update = answer.value.json()
    sent = update["sideUpdate"]["job-instrument-live"]["data"]["points"]["x"]
    assert points == 90
    assert len(sent) <= 6
    assert "job-instrument-figure" not in update["sideUpdate"]


def test_a_band_is_closed_polygons_one_for_each_unbroken_run(page: Page, server: Server) -> None:
    go(page, server, JOB)
    made = page.evaluate("flopwatch.polygons([1, 2, 3, 4], [5, 6, null, 7], [8, 9, null, 7])")
    assert made == {
        "x": [1, 2, 2, 1, 1, None, 4, 4, 4],
        "y": [8, 9, 6, 5, 8, None, 7, 7, 7],
    }


def test_another_colour_scheme_repaints_without_a_request(page: Page, server: Server) -> None:
    go(page, server, JOB)
    light = instrument(page)
    page.locator("#pause").click()
    requests: list[Request] = []
    page.on("request", lambda request: requests.append(request))
    page.locator("#scheme").click()  # system to light: the same colours
    page.locator("#scheme").click()  # light to dark
    dark = wait_for(
        lambda: page.evaluate(_LINE) if page.evaluate(_LINE)["color"] != light["color"] else None,
        "the figure is repainted", 10,
    )  # fmt: skip
    assert requests == []
    assert (light["color"], dark["color"]) == ("#0a6684", "#62bad7")
    assert (light["ramp"][0], dark["ramp"][0]) == ("#eaf2f5", "#17303a")
    page.reload()
    assert page.locator("html").get_attribute("data-mantine-color-scheme") == "dark"


def test_a_range_of_the_control_is_kept_in_the_address_and_taken_back(
    page: Page, server: Server
) -> None:
    go(page, server, JOB)
    whole = instrument(page)
    page.locator("#ranges").get_by_text("1 h").click()
    wait_for(lambda: len(_x(page)) == 360, "an hour of samples is drawn", 20)
    assert page.url.endswith("?range=1h")
    page.go_back()
    wait_for(lambda: _x(page)[:1] == whole["x"][:1], "the whole job is back", 20)
    assert page.locator("#ranges [aria-pressed=true]").inner_text() == "Whole job"


def test_jobs_are_filtered_sorted_and_opened_by_the_address(page: Page, server: Server) -> None:
    go(page, server, "/jobs")
    names = page.locator(".jobs-grid a.job-name")
    names.first.wait_for()
    assert names.first.inner_text() == "code-eval"  # most idle GPU-h
    page.locator("#jobs-facets").get_by_role("checkbox", name=re.compile("Pending")).click()
    wait_for(lambda: names.count() == 3, "the pending job is gone", 20)
    assert "state=RUNNING" in page.url
    page.locator(".jobs-grid").get_by_text("Tensor", exact=True).click()
    wait_for(lambda: names.first.inner_text() == "llama3-8b-sft", "sorted by tensor", 20)
    assert "sort=-tensor_active" in page.url
    page.reload()
    names.first.wait_for()
    assert names.first.inner_text() == "llama3-8b-sft"
    names.first.click()
    page.get_by_test_id("verdict").wait_for()
    assert page.url == server.url + JOB


def test_a_row_stays_in_focus_while_the_list_is_read_again(page: Page, server: Server) -> None:
    go(page, server, "/jobs")
    cell = page.locator(".jobs-grid [col-id=user]").filter(has_text="mchen").first
    cell.wait_for()
    page.locator(".jobs-grid .ag-row [col-id=user]").first.focus()
    with page.expect_response(lambda answer: "getRowsResponse" in (answer.request.post_data or "")):
        tick(page)
    assert page.evaluate("document.activeElement.getAttribute('col-id')") == "user"


def test_search_finds_a_job_in_any_state(page: Page, server: Server) -> None:
    go(page, server, "/")
    page.keyboard.press("/")
    page.keyboard.type("done")
    page.keyboard.press("Enter")
    page.locator(".jobs-grid a.job-name").first.wait_for()
    assert page.locator(".jobs-grid a.job-name").all_inner_texts() == ["done"]
    assert page.url.endswith("/jobs?q=done")


def test_no_match_says_so_and_offers_a_way_out(page: Page, server: Server) -> None:
    go(page, server, "/jobs?q=nobody")
    page.get_by_text("No job matches these filters.").wait_for()
    page.get_by_role("button", name="Clear filters").click()
    page.locator(".jobs-grid a.job-name").first.wait_for()


def test_a_paused_page_asks_for_nothing_until_it_goes_on(page: Page, server: Server) -> None:
    page.clock.install()
    go(page, server, "/")
    page.locator("#age[data-level=fresh]").wait_for()
    page.locator("#pause").click()
    page.locator("#age[data-level=paused]").wait_for()
    asked: list[Request] = []
    page.on("request", lambda request: asked.append(request))
    page.clock.run_for(30_000)
    assert asked == []
    with page.expect_request(lambda request: "_dash-update-component" in request.url):
        page.locator("#pause").click()


def test_old_data_is_marked_by_a_shape(page: Page, server: Server) -> None:
    go(page, server, JOB)
    page.locator("#age[data-level=fresh]").wait_for()
    server.clock.advance(40)
    try:
        page.reload()
        page.locator("#age[data-level=late]").wait_for()
        server.clock.advance(80)
        page.reload()
        page.locator("#age[data-level=old]").wait_for()
    finally:
        server.clock.advance(-120)


def test_the_first_run_shows_commands_that_can_be_copied(
    page: Page, databases: DatabaseFactory, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with databases.database() as database, \
            serve(database, Clock(), tmp_path_factory.mktemp("data")) as empty:  # fmt: skip
        go(page, empty, "/")
        commands = page.locator(".code pre").all_inner_texts()
        assert commands[0] == "flopwatch token node --cluster granite --output token"
        assert f"flopwatch agent --server {empty.url} --token-file" in commands[1]
        assert commands[2] == "FLOPWATCH_SLURM_CLUSTER=granite flopwatch server"


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
    assert len(callbacks) >= 4
    assert [n for n, call in callbacks.items() if not inspect.iscoroutinefunction(call)] == []
