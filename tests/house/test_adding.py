"""docs/adding.md, followed to the letter in a copy of the house, which is then lived in."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from shutil import copytree, ignore_patterns
from typing import Any

import httpx
import pytest

from tests.house.recipes import commands, follow
from tests.house.rules import ROOT, violations
from tests.lab.browser import chromium
from tests.lab.fake_nvml import FakeDriver
from tests.lab.postgres import public_folder
from tests.lab.processes import Process, Server, running, wait_for

RECIPES = (ROOT / "docs/adding.md").read_text()
CLUSTER = "granite"
NODE = "gpu01"
MEMORY_CLOCK_MHZ = 2619
BIN = Path(sys.executable).parent

# As `qstat -f -F json` of OpenPBS prints a job that runs and one that waits.
QSTAT = """\
echo '{"timestamp": '$(date +%s)', "pbs_version": "23.06.06", "pbs_server": "pbs", "Jobs": {
"1021.pbs": {"Job_Name": "train", "Job_Owner": "mchen@login1", "job_state": "R", "queue": "gpuq",
  "ctime": "'"$(date -d '-10 minutes' '+%a %b %e %T %Y')"'", "Account_Name": "nlp",
  "stime": "'"$(date -d '-9 minutes' '+%a %b %e %T %Y')"'",
  "exec_vnode": "(gpu01:ncpus=8:ngpus=2:mem=8388608kb)+(gpu02:ncpus=8:ngpus=2)",
  "Resource_List": {"ncpus": 16, "ngpus": 4}},
"1022.pbs": {"Job_Name": "wait", "Job_Owner": "anna@login1", "job_state": "Q", "queue": "gpuq",
  "ctime": "'"$(date -d '-2 minutes' '+%a %b %e %T %Y')"'", "Resource_List": {"ngpus": 1}}}}'
"""

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def house() -> Iterator[Path]:
    """A copy of this house with everything that the recipes add."""
    with public_folder() as folder:
        copy = folder / "house"
        leave = ignore_patterns(".git", ".venv", ".*_cache", "__pycache__", "*.egg-info")
        copytree(ROOT, copy, ignore=leave)
        follow(RECIPES, copy)
        yield copy


@pytest.fixture(scope="module")
def lived_in(house: Path) -> Iterator[tuple[Server, Path]]:
    """A server and an agent of that house, and the folder in which the commands are typed."""
    with ExitStack() as stack:
        folder = stack.enter_context(public_folder())
        driver = FakeDriver(folder, gpus=2)
        driver.set(0, gpm=0)
        driver.set(1, gpm=0)
        driver.write()
        site_file = folder / "site-file"
        site_file.write_text(
            f"{driver.uuid(0)} sm_active 0.5\n{driver.uuid(0)} tensor_active 0.25\n"
        )
        server = stack.enter_context(Server(folder, PYTHONPATH=_rooms(house)))
        agent = Process(
            "agent", "--server", server.url, "--token-file", server.token("node", CLUSTER),
            "--node", NODE, "--spool", folder / "spool", "--socket", folder / "hook.sock",
            "--site-file", site_file,
            log=folder / "agent.log",
            environment={**driver.environment(), "PYTHONPATH": _rooms(house)},
        )  # fmt: skip
        stack.enter_context(running(agent))
        _type_commands(server, folder, house)
        yield server, folder


def _type_commands(server: Server, folder: Path, house: Path) -> None:
    """The commands of the recipes, with a `qstat` that prints what OpenPBS does."""
    qstat = folder / "bin" / "qstat"
    qstat.parent.mkdir()
    qstat.write_text("#!/bin/sh\n" + QSTAT)
    qstat.chmod(0o755)
    (folder / "pbs_feed.py").write_text((house / "pbs_feed.py").read_text())
    script = "\n".join(["set -eu -o pipefail", *commands(RECIPES)])
    environment = {
        **os.environ, **server.settings, "FLOPWATCH_URL": server.url,
        "PATH": f"{qstat.parent}:{BIN}:{os.environ['PATH']}",
    }  # fmt: skip
    del environment["FLOPWATCH_PORT"]
    done = subprocess.run(
        ["bash", "-c", script], cwd=folder, env=environment, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_the_recipes_keep_the_rules_of_the_house(house: Path) -> None:
    assert list(violations(house)) == list(violations(ROOT))
    for check in (["ruff", "check", "."], ["ruff", "format", "--check", "."], ["lint-imports"]):
        _run(house, str(BIN / check[0]), *check[1:])


def test_the_tests_of_the_recipes_pass(house: Path) -> None:
    _run(
        house, str(BIN / "pytest"), "-q", "-p", "no:cacheprovider", "tests/agent/test_site_file.py"
    )


def test_a_scheduler_that_feeds_its_jobs_has_them_on_the_pages(
    lived_in: tuple[Server, Path],
) -> None:
    server, _ = lived_in
    rows = {row["job_id"]: row for row in server.get("jobs", cluster=CLUSTER)["rows"]}
    assert {name: (row["state"], row["gpus"], row["user"]) for name, row in rows.items()} == {
        "1021": ("RUNNING", 4, "mchen"),
        "1022": ("PENDING", 1, "anna"),
    }


def test_a_new_metric_and_a_new_collector_are_told_by_the_api(
    lived_in: tuple[Server, Path],
) -> None:
    server, folder = lived_in
    now = int(time.time())
    run = {
        "kind": "run", "raw_job_id": 7, "submitted_at": now - 120, "started_at": now - 60,
        "state": "RUNNING", "name": "seen", "user": "eve", "account": "nlp",
        "gpus": [{"node": NODE, "count": 1, "ordinals": [0]}],
    }  # fmt: skip
    token = (folder / "feed.token").read_text().strip()
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/x-ndjson"}
    feed = f"{server.url}/api/v1/feed"
    httpx.post(feed, content=json.dumps(run), headers=headers).raise_for_status()

    def told() -> dict[str, Any] | None:
        path = f"jobs/{CLUSTER}/7/series"
        found = server.get(path, metrics="memory_clock_mhz,sm_active,tensor_active")
        values = {
            name: [value for value in device["values"][name] if value is not None]
            for device in found["devices"]
            for name in ("memory_clock_mhz", "sm_active", "tensor_active")
        }
        return values if values and all(values.values()) else None

    values = wait_for(told, "a sample with the new metric", 120)
    assert set(values["memory_clock_mhz"]) == {MEMORY_CLOCK_MHZ}
    assert set(values["sm_active"]) == {0.5}
    assert set(values["tensor_active"]) == {0.25}


def test_a_new_page_is_in_the_navigation_and_shows_itself(lived_in: tuple[Server, Path]) -> None:
    server, _ = lived_in
    with chromium() as browser:
        page = browser.new_page()
        page.goto(server.url)
        page.get_by_role("navigation").get_by_role("link", name="Partitions").click()
        page.get_by_role("heading", name="Partitions", exact=True).wait_for()
        row = (
            page.get_by_role("table", name="Partitions").get_by_role("row").filter(has_text="gpuq")
        )
        assert row.inner_text().split() == ["gpuq", "–", "4", "1"]


def _rooms(house: Path) -> str:
    """Where Python finds this house's packages, before those of the one that it was copied from."""
    return ":".join(str(house / room) for room in ("agent", "server", "dashboard"))


def _run(house: Path, *command: str) -> None:
    done = subprocess.run(
        command, cwd=house, env={**os.environ, "PYTHONPATH": _rooms(house)}, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
