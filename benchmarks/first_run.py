"""How long from `make run` in a fresh clone to the first live figure in a browser.

The clone is empty of everything ours: no venv, no data. Packages come from pip's cache as it is.
"""

import json
import os
import re
import signal
import subprocess
import tempfile
import time
from pathlib import Path

from tests.lab.browser import chromium
from tests.lab.processes import free_port

GOAL_SECONDS = 70


def main() -> None:
    """Clone, run, look; the last line is JSON."""
    repository = Path(__file__).parent.parent
    with tempfile.TemporaryDirectory(prefix="flopwatch-first-run-") as folder:
        os.chmod(folder, 0o755)
        clone = Path(folder) / "clone"
        subprocess.run(["git", "clone", "--quiet", str(repository), str(clone)], check=True)
        with chromium() as browser:
            page = browser.new_page()
            print(json.dumps({"bench": "first_run", **_run(clone, page)}))


def _run(clone: Path, page) -> dict[str, float | bool]:  # type: ignore[no-untyped-def]
    port = free_port()
    environment = {
        **os.environ,
        "FLOPWATCH_PORT": str(port),
        "FLOPWATCH_DATA_DIR": str(clone.parent / "data"),
    }
    began = time.monotonic()
    process = subprocess.Popen(["make", "run"], cwd=clone, env=environment, process_group=0)
    try:
        address = f"http://127.0.0.1:{port}/"
        served = _wait_until_served(page, address, process)
        allocated = page.get_by_test_id("tile").filter(has_text=re.compile(r"\d+\s*of \d+ GPUs"))
        allocated.first.wait_for(timeout=120_000)
        page.locator("text=/^[0-9]+ s old$/").first.wait_for(timeout=120_000)
        live = time.monotonic()
    finally:
        os.killpg(process.pid, signal.SIGINT)
        process.wait(30)
    seconds = round(live - began, 1)
    return {
        "seconds_to_first_answer": round(served - began, 1),
        "seconds_to_first_live_figure": seconds,
        "goal_seconds": GOAL_SECONDS,
        "reached": seconds <= GOAL_SECONDS,
    }


def _wait_until_served(page, address: str, process: subprocess.Popen[bytes]) -> float:  # type: ignore[no-untyped-def]
    from playwright.sync_api import Error

    while process.poll() is None:
        try:
            page.goto(address)
        except Error:  # nobody listens yet
            time.sleep(0.2)
            continue
        return time.monotonic()
    raise SystemExit(f"make run ended with {process.returncode}")


if __name__ == "__main__":
    main()
