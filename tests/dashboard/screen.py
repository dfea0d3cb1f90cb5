"""What the tests of the pages look at in a browser."""

from typing import Any

from playwright.sync_api import Page

from tests.dashboard import cluster
from tests.dashboard.conftest import Server
from tests.lab.processes import wait_for

JOB = f"/jobs/granite/{cluster.TRAINING}"
_LINE = """() => {
  const graph = document.querySelector("#job-instrument .js-plotly-plot");
  const find = (name) => graph?.data?.find((trace) => trace.name === name);
  const line = find("tensor_active");
  return line && {
    x: line.x, y: line.y, range: graph.layout.xaxis.range,
    band: find("band tensor_active").y, strip: find("strip").z[0],
    ramp: find("strip").colorscale.map((step) => step[1]), color: line.line.color,
  };
}"""


def go(page: Page, server: Server, path: str) -> None:
    """Open an address and wait for its page."""
    page.goto(server.url + path)
    page.locator("#main h1").wait_for()


def line(page: Page) -> dict[str, Any] | None:
    """The line of tensor activity; None while one figure takes the place of another."""
    found: dict[str, Any] | None = page.evaluate(_LINE)
    return found


def instrument(page: Page) -> dict[str, Any]:
    """The line of tensor activity, once it is drawn."""
    page.locator("#job-instrument .main-svg").first.wait_for()
    return wait_for(lambda: line(page), "the instrument is drawn", 20)


def times(page: Page) -> list[int]:
    """The times of the points on the screen."""
    found = line(page)
    return found["x"] if found else []
