"""The agent as it runs on a node: a real process, a real socket, disk and HTTP server."""

import gzip
import json
import os
import signal
import subprocess
import sys
import threading
import time
from array import array
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from flopwatch.wire import split_batch
from flopwatch_agent.spool import Spool
from tests.agent.test_claims import let_report, reporter
from tests.lab.fake_nvml import FakeDriver
from tests.lab.spooled import waiting

TOKEN = "fpn_secret"


class IngestServer:
    """A server that takes every batch with the right token, and may be down for a while."""

    def __init__(self) -> None:
        self.batches: list[tuple[dict[str, Any], list[list[float]]]] = []
        self.refused = 0
        self.is_up = False
        self.port = 0
        self.up()

    def up(self) -> None:
        server = self
        server.is_up = True

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                if not server.is_up:
                    self.close_connection = True
                    return
                length = int(self.headers["Content-Length"])
                packed = self.rfile.read(length)
                if len(packed) < length:  # the agent was killed while it sent
                    self.close_connection = True
                    return
                body = gzip.decompress(packed)
                good = (
                    self.path == "/api/v1/ingest"
                    and self.headers["Authorization"] == f"Bearer {TOKEN}"
                    and self.headers["Content-Type"] == "application/vnd.flopwatch.batch"
                )
                if good:
                    server.batches.append(_decoded(body))
                else:
                    server.refused += 1
                self.send_response(200 if good else 401)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                """Keep the test's output clean."""

        self._http = ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        self._http.daemon_threads = True
        self.port = self._http.server_port
        threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True).start()

    def down(self) -> None:
        """Close the door: from now on connections are refused, and live ones are cut."""
        self.is_up = False
        self._http.shutdown()
        self._http.server_close()

    def sample_keys(self) -> list[tuple[str, int, int]]:
        """(UUID, epoch, time) of every sample that arrived."""
        return [
            (header["devices"][device]["uuid"], header["epoch"]["number"], ts)
            for header, _ in self.batches
            for device, ts in zip(
                header["samples"]["device"], header["samples"]["time"], strict=True
            )
        ]


def _decoded(body: bytes) -> tuple[dict[str, Any], list[list[float]]]:
    head, block = split_batch(body)
    header: dict[str, Any] = json.loads(head)
    width = len(header["samples"]["columns"])
    flat = array("f", bytes(block)).tolist()
    return header, [flat[start : start + width] for start in range(0, len(flat), width)]


class AgentProcess:
    """`flopwatch agent` with everything of its own below one folder."""

    def __init__(self, folder: Path, port: int, environment: dict[str, str]) -> None:
        self.folder = folder
        self.environment = os.environ | environment
        token = folder / "token"
        token.write_text(TOKEN)
        token.chmod(0o600)
        self.arguments = [
            str(Path(sys.executable).with_name("flopwatch")), "agent",
            "--server", f"http://127.0.0.1:{port}", "--token-file", str(token),
            "--node", "n1", "--spool", str(folder / "spool"),
            "--socket", str(folder / "hook.sock"), "--prolog-dir", str(folder / "jobs"),
        ]  # fmt: skip
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        self.process = subprocess.Popen(
            self.arguments, env=self.environment, stderr=subprocess.PIPE, text=True
        )

    def end(self, number: signal.Signals) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        self.process.communicate(timeout=20)
        return self.process.returncode

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    @property
    def spooled(self) -> int:
        return len(waiting(self.folder / "spool"))


@pytest.fixture
def server() -> Iterator[IngestServer]:
    made = IngestServer()
    yield made
    made.down()


@pytest.fixture
def agents() -> Iterator[list[AgentProcess]]:
    """Agents that a test started; those still running are ended after it."""
    started: list[AgentProcess] = []
    yield started
    for agent in started:
        if agent.process is not None and agent.process.poll() is None:
            agent.end(signal.SIGKILL)


def wait_until(condition: Callable[[], bool], seconds: float = 40.0) -> None:
    deadline, pause = time.monotonic() + seconds, threading.Event()
    while not condition():
        assert time.monotonic() < deadline, "it did not come true in time"
        pause.wait(0.05)


def listening_ports(pid: int) -> set[int]:
    """TCP ports on which a process listens, by the kernel's table (proc(5), net/tcp)."""
    own = _socket_inodes(pid)
    rows = [
        line.split()
        for table in ("tcp", "tcp6")
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]
    ]
    listening = "0A"
    return {int(row[1].rpartition(":")[2], 16) for row in rows
            if row[3] == listening and row[9] in own}  # fmt: skip


def _socket_inodes(pid: int) -> set[str]:
    found = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            link = os.readlink(entry)
        except FileNotFoundError:  # closed meanwhile
            continue
        if link.startswith("socket:["):
            found.add(link.removeprefix("socket:[").removesuffix("]"))
    return found


def test_figures_arrive_as_the_driver_tells_them_and_no_outage_or_kill_loses_any(
    tmp_path: Path, server: IngestServer, agents: list[AgentProcess]
) -> None:
    driver = FakeDriver(tmp_path)
    told = {"tensor_active": 0.42, "sm_active": 0.9, "dram_active": 0.61, "power_watts": 512.0}
    for gpu in range(8):
        driver.set(gpu, **(told | {"tensor_active": 0.1 * gpu}))
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs/77").write_text(f"SLURM_JOB_ID=77\nSLURM_JOB_UID={os.getuid()}\n")
    environment = os.environ | {"SLURM_JOB_ID": "77"}
    with reporter(tmp_path / "hook.sock", os.getuid(), environment) as job:
        driver.processes(5, [job.pid])
        driver.write()
        agent = AgentProcess(tmp_path, server.port, driver.environment())
        agents.append(agent)
        agent.start()
        wait_until((tmp_path / "hook.sock").exists)
        let_report(job)
        wait_until(lambda: bool(server.sample_keys()))
        _assert_first_batch(server, driver, told, job.pid)

        server.down()
        wait_until(lambda: agent.spooled > 0)
        agent.end(signal.SIGKILL)
        first_epoch = server.sample_keys()[0][1]
        agent.start()
        server.up()
        wait_until(lambda: any(epoch > first_epoch for _, epoch, _ in server.sample_keys()))
        assert agent.end(signal.SIGTERM) == 0
        job.terminate()
    assert agent.spooled == 0
    keys = server.sample_keys()
    assert len(keys) == len(set(keys))
    first_life = sorted({ts for _, epoch, ts in keys if epoch == first_epoch})
    assert first_life == list(range(first_life[0], first_life[-1] + 10, 10))
    assert len(first_life) >= 2
    assert len([key for key in keys if key[1] == first_epoch]) == 8 * len(first_life)
    assert server.refused == 0


def _assert_first_batch(
    server: IngestServer, driver: FakeDriver, told: dict[str, float], pid: int
) -> None:
    header, rows = next(batch for batch in server.batches if batch[1])
    devices = header["devices"]
    assert [device["uuid"] for device in devices] == [driver.uuid(gpu) for gpu in range(8)]
    assert [device["minor"] for device in devices] == [4, 5, 6, 7, 0, 1, 2, 3]
    assert {device["model"] for device in devices} == {"NVIDIA H100 80GB HBM3"}
    assert header["samples"]["device"] == list(range(8))
    assert len({ts % 10 for ts in header["samples"]["time"]}) == 1
    columns = header["samples"]["columns"]
    for gpu, row in enumerate(rows):
        figures = dict(zip(columns, row, strict=True))
        assert figures["tensor_active"] == pytest.approx(0.1 * gpu, abs=1e-6)
        assert figures["sm_active"] == pytest.approx(told["sm_active"])
        assert figures["dram_active"] == pytest.approx(told["dram_active"])
        assert figures["energy_joules"] == pytest.approx(10 * told["power_watts"], rel=0.1)
        assert figures["subsample_count"] >= 5
    (evidence,) = header["evidence"]
    assert (evidence["kind"], evidence["job_id"]) == ("environ", 77)
    assert (evidence["device"], evidence["pid"]) == (5, pid)
    reports = [each for batch, _ in server.batches for each in batch["reports"]]
    assert [(each["pid"], each["job_id"]) for each in reports] == [(pid, 77)]


def test_a_node_without_a_driver_still_tells_of_itself(
    tmp_path: Path, server: IngestServer, agents: list[AgentProcess]
) -> None:
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs/5").write_text("SLURM_JOB_ID=5\nSLURM_JOB_GPUS=0\nSLURM_JOB_UID=1001\n")
    driver = FakeDriver(tmp_path)
    driver.init_error = 9  # the driver is not loaded
    driver.write()
    agent = AgentProcess(tmp_path, server.port, driver.environment())
    agents.append(agent)
    agent.start()
    wait_until(lambda: bool(server.batches))
    assert server.port in listening_ports(os.getpid())
    assert listening_ports(agent.pid) == set()
    header, rows = server.batches[0]
    assert (header["node"], header["devices"], rows) == ("n1", [], [])
    assert [(each["kind"], each["ordinals"]) for each in header["evidence"]] == [("prolog", [0])]
    assert agent.end(signal.SIGTERM) == 0


@pytest.mark.parametrize(
    ("mode", "server_url", "complaint"),
    [
        (0o644, "http://127.0.0.1:1", "others may read the token"),
        (0o600, "127.0.0.1:1", "no http or https URL"),
    ],
)
def test_what_can_never_work_is_refused_at_the_start(
    tmp_path: Path, mode: int, server_url: str, complaint: str
) -> None:
    agent = AgentProcess(tmp_path, 1, {})
    (tmp_path / "token").chmod(mode)
    arguments = [server_url if "http:" in each else each for each in agent.arguments]
    _assert_refused(arguments, complaint)


def test_a_name_that_the_server_would_refuse_is_refused_at_the_start(tmp_path: Path) -> None:
    agent = AgentProcess(tmp_path, 1, {})
    _assert_refused(
        ["g1 (old)" if each == "n1" else each for each in agent.arguments],
        "'g1 (old)' is no name of a node",
    )


def test_a_second_agent_on_the_same_spool_is_refused(tmp_path: Path) -> None:
    first = Spool(tmp_path / "spool")
    _assert_refused(
        AgentProcess(tmp_path, 1, {}).arguments,
        f"another agent works on the spool {tmp_path / 'spool'}",
    )
    first.close()


@pytest.mark.parametrize("value", ["0", "-1", "1.5", "much"])
def test_a_cap_that_is_no_amount_is_refused_at_the_start(tmp_path: Path, value: str) -> None:
    arguments = [*AgentProcess(tmp_path, 1, {}).arguments, f"--spool-mib={value}"]
    _assert_refused(arguments, "--spool-mib needs a whole number above 0")


def _assert_refused(arguments: list[str], complaint: str) -> None:
    result = subprocess.run(arguments, capture_output=True, text=True, timeout=30)
    assert result.returncode == 2
    assert complaint in result.stderr
    assert "Traceback" not in result.stderr
