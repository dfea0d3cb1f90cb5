"""Pictures of the pages as a first-time visitor sees them: `make screenshots`.

They show the simulated cluster of `flopwatch run`, in both schemes.
"""

import sys
from pathlib import Path

import httpx
from playwright.sync_api import Browser, Page

from tests.lab.browser import chromium, complaints
from tests.lab.postgres import public_folder
from tests.lab.processes import Process, free_port, running, wait_for

WIDTH, HEIGHT = 1440, 900
CLUSTER = "simulated"


def main() -> None:
    """Take every page in both schemes into the folder that the command line names."""
    target = Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    with public_folder() as folder:
        port = free_port()
        environment = {"FLOPWATCH_DATA_DIR": str(folder / "data"), "FLOPWATCH_PORT": str(port)}
        with (
            running(Process("run", log=folder / "run.log", environment=environment)),
            chromium() as browser,
        ):
            base = f"http://127.0.0.1:{port}"
            job = wait_for(lambda: _reporting_job(base), "a job with history reports MFU", 180)
            pages = {"overview": "/", "jobs": "/jobs", "job": f"/jobs/{CLUSTER}/{job}",
                     "fair-share": "/fair-share?account=nlp", "doctor": "/doctor"}  # fmt: skip
            for scheme in ("light", "dark"):
                for name, path in pages.items():
                    _take(browser, scheme, base + path, target / f"{name}-{scheme}.png")


def _reporting_job(base: str) -> str | None:
    """The running job whose history is whole and that has most to tell."""
    try:
        answer = httpx.get(f"{base}/api/v1/jobs", params={"cluster": CLUSTER}, timeout=20)
    except httpx.TransportError:
        return None
    if answer.status_code != 200:
        return None
    rows = answer.json()["rows"]
    told = [row for row in rows if row["state"] == "RUNNING" and row["mfu"] and row["spark"]]
    whole = [row for row in told if row["gpus_now"]["unknown"] == 0]
    return max(whole, key=lambda row: row["elapsed_seconds"])["job_id"] if len(whole) > 2 else None


def _take(browser: Browser, scheme: str, address: str, path: Path) -> None:
    context = browser.new_context(
        viewport={"width": WIDTH, "height": HEIGHT},
        color_scheme="dark" if scheme == "dark" else "light",
    )
    page = context.new_page()
    errors = complaints(page)
    page.goto(address)
    _until_drawn(page)
    page.screenshot(path=path, full_page=True)
    context.close()
    if errors:
        raise SystemExit(f"{address}: {errors}")
    print(path)


def _until_drawn(page: Page) -> None:
    page.locator("#age[data-level='fresh']").wait_for()
    page.wait_for_load_state("networkidle")
    page.wait_for_timeout(1500)  # charts draw after their data has come


if __name__ == "__main__":
    main()
