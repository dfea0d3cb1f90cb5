"""`make run`, with a GPU and without one: live figures, and nothing left behind."""

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.lab.browser import chromium
from tests.lab.fake_nvml import FakeDriver
from tests.lab.postgres import public_folder
from tests.lab.processes import FLOPWATCH, free_port, wait_for


@pytest.fixture
def folder() -> Iterator[Path]:
    with public_folder() as found:
        yield found


class LocalRun:
    """`flopwatch run` in a process group of its own, as a terminal would start it."""

    def __init__(self, folder: Path, driver: FakeDriver, **settings: str) -> None:
        self.port = free_port()
        self.log = folder / "run.log"
        self.data = folder / "data"
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(
                [str(FLOPWATCH), "run"], stdout=output, stderr=output, process_group=0,
                env={**os.environ, **driver.environment(), "FLOPWATCH_DATA_DIR": str(self.data),
                     "FLOPWATCH_PORT": str(self.port), **settings},
            )  # fmt: skip

    def live_overview(self, cluster: str) -> dict[str, object] | None:
        """The overview of a cluster once it has a sample."""
        assert self.process.poll() is None, self.log.read_text()
        try:
            answer = httpx.get(
                f"http://127.0.0.1:{self.port}/api/v1/overview",
                params={"cluster": cluster}, timeout=10,
            )  # fmt: skip
        except httpx.TransportError:
            return None
        found = answer.json() if answer.status_code == 200 else None
        return found if found and found["newest_sample_at"] else None

    def end(self, number: signal.Signals) -> int:
        """End it by a signal, Ctrl-C as a terminal gives it: to the whole group."""
        if number == signal.SIGINT:
            os.killpg(self.process.pid, number)
        else:
            self.process.send_signal(number)
        return self.process.wait(60)

    def survivors(self) -> list[str]:
        """Command lines of processes that still name this run's data folder or port."""
        marks = (str(self.data).encode(), f"127.0.0.1:{self.port}".encode())
        found = []
        for entry in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                line = entry.read_bytes()
            except OSError:  # it ended meanwhile
                continue
            if any(mark in line for mark in marks):
                found.append(line.replace(b"\0", b" ").decode())
        return found


def _measured(run: LocalRun) -> dict[str, object] | None:
    overview = run.live_overview("workstation")
    return overview if overview and overview["power_watts"] is not None else None


def _held(run: LocalRun) -> object:
    overview = run.live_overview("simulated")
    return overview and overview["allocated"]


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_it_plays_a_simulated_cluster_and_leaves_no_process(
    folder: Path, end: signal.Signals
) -> None:
    driver = FakeDriver(folder)
    driver.init_error = 9  # the driver is not loaded
    driver.write()
    run = LocalRun(folder, driver)
    try:
        overview = wait_for(lambda: run.live_overview("simulated"), "live figures", 150)
        assert overview["simulated"] is True
        wait_for(lambda: _held(run), "the feed's jobs hold GPUs", 120)
        assert f"http://127.0.0.1:{run.port}/" in run.log.read_text()
        assert "simulated cluster" in run.log.read_text()
        assert len(run.survivors()) >= 2
        assert run.end(end) == (-signal.SIGKILL if end == signal.SIGKILL else 0)
        wait_for(lambda: not run.survivors(), "no process is left", 60)
        assert "Traceback" not in run.log.read_text()
    finally:
        run.process.kill()
        run.process.wait()


def test_every_page_says_that_the_cluster_is_simulated(folder: Path) -> None:
    run = LocalRun(folder, FakeDriver(folder, gpus=0))
    try:
        wait_for(lambda: _held(run), "the feed's jobs hold GPUs", 150)
        base = f"http://127.0.0.1:{run.port}"
        rows = httpx.get(f"{base}/api/v1/jobs", params={"cluster": "simulated"}).json()["rows"]
        with chromium() as browser:
            page = browser.new_page()
            for path in ("/", "/jobs", f"/jobs/simulated/{rows[0]['job_id']}", "/no-such-page"):
                page.goto(base + path)
                page.get_by_text("simulated", exact=True).first.wait_for(timeout=60_000)
    finally:
        assert run.end(signal.SIGTERM) == 0


def test_with_a_gpu_it_watches_this_machine_and_simulates_nothing(folder: Path) -> None:
    driver = FakeDriver(folder, gpus=2)
    for gpu in range(2):
        driver.set(gpu, power_watts=450)
    driver.write()
    run = LocalRun(folder, driver)
    try:
        overview = wait_for(lambda: _measured(run), "live figures of a whole minute", 200)
        assert overview["simulated"] is False
        assert (overview["gpus"], overview["free"]) == (2, None)  # no scheduler tells
        assert overview["power_watts"] == pytest.approx(900)
        assert "watching it" in run.log.read_text()
        assert run.end(signal.SIGINT) == 0
        wait_for(lambda: not run.survivors(), "no process is left", 60)
        assert "Traceback" not in run.log.read_text()
    finally:
        run.process.kill()
        run.process.wait()
