"""The jobs list and the search in a real browser."""

import re

import pytest
from playwright.sync_api import Page

from tests.dashboard import cluster
from tests.dashboard.conftest import Server
from tests.dashboard.screen import JOB, go
from tests.lab.processes import wait_for


def search_for(page: Page, server: Server, text: str) -> None:
    """Type it into the search box, by keys alone."""
    go(page, server, "/")
    page.locator("#context [data-cluster]").wait_for()
    page.keyboard.press("/")
    page.keyboard.type(text)
    page.keyboard.press("Enter")


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
    search_for(page, server, "done")
    page.locator(".jobs-grid a.job-name").first.wait_for()
    assert page.locator(".jobs-grid a.job-name").all_inner_texts() == ["done"]
    assert page.url.endswith("/jobs?q=done")


@pytest.mark.parametrize("job_id", [cluster.TRAINING, cluster.ENDED])
def test_the_whole_id_of_a_job_opens_the_job(page: Page, server: Server, job_id: str) -> None:
    search_for(page, server, job_id)
    page.get_by_test_id("verdict").wait_for()
    assert page.url == f"{server.url}/jobs/granite/{job_id}"


def test_a_part_of_an_id_and_an_id_of_no_job_lead_to_the_list(page: Page, server: Server) -> None:
    search_for(page, server, "4813")
    page.locator(".jobs-grid a.job-name").first.wait_for()
    assert page.url.endswith("/jobs?q=4813")
    search_for(page, server, "999999")
    page.get_by_text("No job matches these filters.").wait_for()


def test_no_match_says_so_and_offers_a_way_out(page: Page, server: Server) -> None:
    go(page, server, "/jobs?q=nobody")
    page.get_by_text("No job matches these filters.").wait_for()
    page.get_by_role("button", name="Clear filters").click()
    page.locator(".jobs-grid a.job-name").first.wait_for()
