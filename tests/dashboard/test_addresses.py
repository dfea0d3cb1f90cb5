"""Addresses: which page they mean, and what they ask of the service."""

import pytest

from flopwatch_dashboard.address import Address, Place, job_path, jobs_path
from flopwatch_dashboard.pages import all_pages
from flopwatch_dashboard.pages.jobs.query import job_query, sort_of_model
from flopwatch_server.fleet.schemas import ClusterView

GRANITE = ClusterView(name="granite", simulated=False)


def place(search: str) -> Place:
    return Place(Address.parse("/jobs", search), {}, (GRANITE,), GRANITE)


def test_pages_are_found_by_themselves_in_the_order_of_the_rail() -> None:
    assert [page.name for page in all_pages() if page.icon] == [
        "Overview",
        "Jobs",
        "Fair share",
        "Doctor",
    ]


@pytest.mark.parametrize(
    ("path", "name"),
    [("/", "Overview"), ("/jobs", "Jobs"), ("/jobs/granite/481340", "Job"),
     ("/jobs/granite/123_4", "Job"), ("/jobs/granite", None), ("/nope", None),
     ("/jobs/granite/1/2", None)],
)  # fmt: skip
def test_a_path_means_one_page_or_none(path: str, name: str | None) -> None:
    found = [page.name for page in all_pages() if page.match(path) is not None]
    assert found == ([name] if name else [])


def test_a_job_path_survives_ids_and_names_with_odd_characters() -> None:
    path = job_path("a b/c", "123_[4-5]")
    assert path == "/jobs/a%20b%2Fc/123_%5B4-5%5D"


def test_the_plain_address_asks_for_running_and_pending_jobs_with_gpus() -> None:
    query = job_query(place(""), offset=0, limit=100)
    assert query.states == ("RUNNING", "PENDING")
    assert query.gpus_min == 1
    assert query.sort == "-idle_gpu_hours"
    assert query.cluster == "granite"


def test_filters_of_the_address_reach_the_service() -> None:
    query = job_query(
        place("?state=FAILED,TIMEOUT&user=kadri,osei&account=nlp&gpus=any&sort=elapsed&q=llama"),
        offset=100, limit=100,
    )  # fmt: skip
    assert query.states == ("FAILED", "TIMEOUT")
    assert query.users == ("kadri", "osei")
    assert query.accounts == ("nlp",)
    assert query.gpus_min is None
    assert query.sort == "elapsed"
    assert query.text == "llama"
    assert query.offset == 100


def test_a_search_looks_among_all_states() -> None:
    assert job_query(place("?q=481340"), offset=0, limit=1).states == ()


@pytest.mark.parametrize("search", ["?sort=password", "?sort=-", "?q=%00", "?user=" + "x" * 9999])
def test_nonsense_in_the_address_does_not_break_the_page(search: str) -> None:
    job_query(place(search), offset=0, limit=1)


def test_the_order_of_the_grid_goes_before_that_of_the_address() -> None:
    assert sort_of_model([{"colId": "mfu", "sort": "desc"}]) == {"sort": "-mfu"}
    assert sort_of_model([{"colId": "spark", "sort": "asc"}]) == {}
    assert sort_of_model([]) == {}


def test_a_link_to_the_list_keeps_commas_readable() -> None:
    assert jobs_path(state="RUNNING,PENDING") == "/jobs?state=RUNNING,PENDING"
