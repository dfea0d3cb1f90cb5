"""A job's page in a real browser."""

from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from playwright.sync_api import Browser, Page, Request

from tests.dashboard import cluster
from tests.dashboard.conftest import Server
from tests.dashboard.screen import JOB, go, instrument, line, times
from tests.lab.processes import wait_for


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


def test_a_training_without_a_sample_shows_its_mfu_as_soon_as_it_reports(
    page: Page, server: Server
) -> None:
    now = server.clock.now
    cluster.report(server.database, cluster.ENDED, now - timedelta(minutes=90))
    go(page, server, f"/jobs/granite/{cluster.ENDED}")
    assert page.get_by_test_id("train-mfu").inner_text() == "25.0 %"
    go(page, server, f"/jobs/granite/{cluster.UNWATCHED}")
    page.get_by_test_id("verdict").wait_for()
    assert page.get_by_test_id("train-mfu").count() == 0
    cluster.report(server.database, cluster.UNWATCHED, now - timedelta(minutes=5))
    page.get_by_test_id("train-mfu").wait_for(timeout=30_000)


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
        lambda: (now := line(page)) and now["color"] != light["color"] and now,
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
    wait_for(lambda: len(times(page)) == 360, "an hour of samples is drawn", 20)
    assert page.url.endswith("?range=1h")
    page.go_back()
    wait_for(lambda: times(page)[:1] == whole["x"][:1], "the whole job is back", 20)
    assert page.locator("#ranges [aria-pressed=true]").inner_text() == "Whole job"


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
