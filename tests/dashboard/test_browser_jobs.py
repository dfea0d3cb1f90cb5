"""The jobs list and the search in a real browser."""

import re

from playwright.sync_api import Page

from tests.dashboard.conftest import Server
from tests.dashboard.screen import JOB, go
from tests.lab.processes import wait_for


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
