"""The two commands of the README, on a Debian that has nothing else."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.lab.processes import free_port, wait_for
from tests.soak.bare_root import BareRoot, bare_root, run_pytest


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BareRoot]:
    with bare_root(tmp_path_factory.mktemp("root")) as root:
        yield root


def live_figures(port: int) -> bool:
    """Whether the pages' overview has samples and jobs that hold GPUs."""
    address = f"http://127.0.0.1:{port}/api/v1/overview"
    try:
        answer = httpx.get(address, params={"cluster": "simulated"}, timeout=10)
    except httpx.TransportError:
        return False
    if answer.status_code != 200:
        return False
    overview = answer.json()
    return bool(overview["newest_sample_at"] and overview["allocated"])


@pytest.mark.timeout(900)
def test_make_run_leads_to_live_figures_and_ctrl_c_leaves_nothing(
    root: BareRoot, tmp_path: Path
) -> None:
    port, log = free_port(), tmp_path / "run.log"
    process = root.start("make", "run", log=log, environment={"FLOPWATCH_PORT": str(port)})
    try:
        wait_for(
            lambda: process.poll() is not None or live_figures(port), "live figures", 600, pause=1
        )
        assert process.poll() is None, log.read_text()
        page = httpx.get(f"http://127.0.0.1:{port}/", timeout=30)
        assert page.status_code == 200
        assert "<title>Flopwatch" in page.text
        os.killpg(process.pid, signal.SIGINT)
        process.wait(60)
        assert root.survivors() == ""
        assert "Traceback" not in log.read_text()
    finally:
        process.kill()
        process.wait()


@pytest.mark.timeout(2700)
def test_make_test_installs_what_it_needs_and_passes(root: BareRoot, tmp_path: Path) -> None:
    run_pytest(root, ["make", "test"], tmp_path / "test.log", 2600)
