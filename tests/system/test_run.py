"""`make run` on a machine without a GPU: a simulated cluster, live, and nothing left behind."""

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.lab.postgres import public_folder
from tests.lab.processes import FLOPWATCH, free_port, wait_for


@pytest.fixture
def folder() -> Iterator[Path]:
    with public_folder() as found:
        yield found


class LocalRun:
    """`flopwatch run` in a process group of its own, as a terminal would start it."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self.log = folder / "run.log"
        self.data = folder / "data"
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(
                [str(FLOPWATCH), "run"], stdout=output, stderr=output, process_group=0,
                env={**os.environ, "FLOPWATCH_DATA_DIR": str(self.data),
                     "FLOPWATCH_PORT": str(self.port)},
            )  # fmt: skip

    def overview(self) -> dict[str, object] | None:
        assert self.process.poll() is None, self.log.read_text()
        try:
            answer = httpx.get(
                f"http://127.0.0.1:{self.port}/api/v1/overview",
                params={"cluster": "simulated"}, timeout=10,
            )  # fmt: skip
        except httpx.TransportError:
            return None
        found = answer.json() if answer.status_code == 200 else None
        return found if found and found["allocated"] and found["newest_sample_at"] else None

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


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_it_plays_a_simulated_cluster_and_leaves_no_process(
    folder: Path, end: signal.Signals
) -> None:
    run = LocalRun(folder)
    try:
        overview = wait_for(run.overview, "live figures", 60)
        assert overview["simulated"] is True
        assert f"http://127.0.0.1:{run.port}/" in run.log.read_text()
        assert "simulated cluster" in run.log.read_text()
        assert len(run.survivors()) >= 2
        if end == signal.SIGINT:  # Ctrl-C reaches the whole group
            os.killpg(run.process.pid, end)
        else:
            run.process.send_signal(end)
        code = run.process.wait(30)
        assert code == (-signal.SIGKILL if end == signal.SIGKILL else 0), run.log.read_text()
        wait_for(lambda: not run.survivors(), "no process is left", 20)
        assert "Traceback" not in run.log.read_text()
    finally:
        run.process.kill()
        run.process.wait()
