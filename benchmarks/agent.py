"""What the agent costs its node: `python -m benchmarks.agent`.

`flopwatch agent` as it runs on a node: 8 GPUs at 1 Hz through the fake driver, with a process on
each, batches shipped to a server on this machine that takes them all. A fake driver answers faster
than a real one, so `cpu_percent` is a floor. The last line is JSON:

* `cpu_percent`: CPU time of the agent and its children, of one core.
* `rss_mib`: its resident memory at the end.
* `start_s`: from the start of the process until the driver is first asked for a GPU's power; the
  median of a few starts.
* `samples`: how many arrived meanwhile.
"""

import gzip
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from statistics import median
from typing import Any

from tests.lab.fake_nvml import FakeDriver

from flopwatch.wire import split_batch

GPUS = 8
STARTS = 3
SETTLING_SECONDS = 11
"""Until the first interval has ended, and what a start costs is over."""

MEASURED_SECONDS = 45
_DEADLINE_SECONDS = 30
GOALS = {"cpu_percent": 1.0, "rss_mib": 50.0, "start_s": 1.0}
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_TICKS = os.sysconf("SC_CLK_TCK")


class Sink:
    """Takes every batch and counts its samples."""

    def __init__(self) -> None:
        sink = self
        self.samples = 0

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = gzip.decompress(self.rfile.read(int(self.headers["Content-Length"])))
                sink.samples += len(json.loads(split_batch(body)[0])["samples"]["time"])
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                """The last line of the output is the result."""

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._http.server_port}"
        threading.Thread(target=self._http.serve_forever, daemon=True).start()


def main() -> None:
    """Measure, and print one line of JSON last."""
    with tempfile.TemporaryDirectory() as folder:
        figures = _measure(Path(folder))
    reached = all(figures[name] <= goal for name, goal in GOALS.items())
    print(json.dumps(figures | {"gpus": GPUS, "goals": GOALS, "reached": reached}))


def _measure(folder: Path) -> dict[str, Any]:
    with subprocess.Popen(["sleep", "600"]) as job:
        try:
            driver = _busy_node(folder, job.pid)
            return _watch_agent(folder, driver, Sink())
        finally:
            job.kill()


def _busy_node(folder: Path, pid: int) -> FakeDriver:
    driver = FakeDriver(folder, gpus=GPUS)
    for gpu in range(GPUS):
        driver.set(gpu, sm_active=0.9, tensor_active=0.4, engine_active=0.97, power_watts=600)
        driver.processes(gpu, [pid])
    driver.write()
    return driver


def _watch_agent(folder: Path, driver: FakeDriver, sink: Sink) -> dict[str, Any]:
    """Start the agent a few times, and watch the last one."""
    starts = []
    for _ in range(STARTS):
        agent, seconds = _start(folder, driver, sink)
        starts.append(seconds)
        if len(starts) < STARTS:
            _end(agent)
    try:
        time.sleep(SETTLING_SECONDS)
        samples, cpu, clock = sink.samples, _cpu_seconds(agent.pid), time.monotonic()
        time.sleep(MEASURED_SECONDS)
        cpu, passed = _cpu_seconds(agent.pid) - cpu, time.monotonic() - clock
        return {
            "cpu_percent": round(100 * cpu / passed, 2),
            "rss_mib": round(_rss_mib(agent.pid), 1),
            "start_s": round(median(starts), 2),
            "samples": sink.samples - samples,
        }
    finally:
        _end(agent)


def _start(folder: Path, driver: FakeDriver, sink: Sink) -> tuple["subprocess.Popen[bytes]", float]:
    """An agent, and how long it took until its first reading."""
    token, first_reading = folder / "token", folder / "first-reading"
    token.touch(mode=0o600)
    token.write_text("fpn_benchmark")
    first_reading.unlink(missing_ok=True)
    command = [
        str(Path(sys.executable).with_name("flopwatch")), "agent", "--server", sink.url,
        "--token-file", str(token), "--node", "n1", "--spool", str(folder / "spool"),
        "--socket", str(folder / "hook.sock"), "--prolog-dir", str(folder / "jobs"),
    ]  # fmt: skip
    environment = os.environ | driver.environment() | {"FAKE_NVML_FIRST_READING": first_reading}
    began = time.time()
    agent = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + _DEADLINE_SECONDS
    while not first_reading.exists():
        if time.monotonic() > deadline:
            _end(agent)
            raise SystemExit("the agent read nothing")
        time.sleep(0.01)
    return agent, first_reading.stat().st_mtime - began


def _end(agent: "subprocess.Popen[bytes]") -> None:
    agent.terminate()
    agent.wait(30)


def _cpu_seconds(pid: int) -> float:
    """User and system time of a process and of its children that ended (proc(5), stat)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / _TICKS


def _rss_mib(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * _PAGE_BYTES / 2**20


if __name__ == "__main__":
    main()
