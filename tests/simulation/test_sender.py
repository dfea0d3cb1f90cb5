"""What a server gets from the simulation, in which order, and after an outage."""

import gzip
import json
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from flopwatch.wire import split_batch
from flopwatch_simulation.cluster import Cluster
from flopwatch_simulation.crew import processes_for
from flopwatch_simulation.doors import Doors, Refused
from flopwatch_simulation.sender import Feeder, Patience, Sender, phase_seconds
from tests.lab.processes import FLOPWATCH, wait_for

NOON = 1_773_316_800


class Server(ThreadingHTTPServer):
    """Writes down what is posted, and answers what it is told to."""

    def __init__(self, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.status = 200
        self.posts: list[tuple[str, str, Any]] = []
        self.sent_at: list[float] = []
        self._open: list[socket.socket] = []

    def get_request(self) -> tuple[socket.socket, Any]:
        """Accept a connection and remember it."""
        connection, address = super().get_request()
        self._open.append(connection)
        return connection, address

    def server_close(self) -> None:
        """Stop listening, and hang up on whoever is connected, as a server that dies does."""
        super().server_close()
        for connection in self._open:
            with suppress(OSError):  # the client may have hung up already
                connection.shutdown(socket.SHUT_RDWR)

    def windows(self) -> list[tuple[str, int, int]]:
        """(node, first time, last time) of every batch, in the order of arrival."""
        headers = [body for path, _, body in self.posts if path == "/api/v1/ingest"]
        return [
            (header["node"], min(header["samples"]["time"]), max(header["samples"]["time"]))
            for header in headers
        ]

    def feeds(self) -> list[list[dict[str, Any]]]:
        """The lines of every feed body."""
        return [body for path, _, body in self.posts if path == "/api/v1/feed"]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        told: Any
        if self.headers["content-type"] == "application/x-ndjson":
            told = [json.loads(line) for line in body.splitlines()]
        else:
            told = json.loads(split_batch(gzip.decompress(body))[0])
            self.server.sent_at.append(float(self.headers["flopwatch-sent-at"]))
        if self.server.status == 200:
            self.server.posts.append((self.path, self.headers["authorization"], told))
        self.send_response(self.server.status)
        self.send_header("content-length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, format: str, *arguments: object) -> None:
        """Say nothing."""


@contextmanager
def listening(server: Server) -> Iterator[Server]:
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def server() -> Iterator[Server]:
    with listening(Server()) as found:
        yield found


class Clock:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.time = NOON + 3.0

    def __call__(self) -> float:
        return self.time


class Play:
    """A sender and a feeder for one server, driven by a clock of ours."""

    def __init__(self, url: str, clock: Clock, history_seconds: int = 7200, nodes: int = 2) -> None:
        cluster, patience = Cluster(seed=7, nodes=nodes), Patience(clock)
        doors = [Doors(url, "node-token", "feed-token", clock) for _ in range(2)]
        self.clock = clock
        self.sender = Sender(cluster, range(nodes), doors[0], history_seconds, patience, clock)
        self.feeder = Feeder(cluster, doors[1], history_seconds, patience, clock)

    def until_quiet(self) -> None:
        """Send all that is due, and what is left of history."""
        while self.sender.step() == 0:
            pass

    def on(self, seconds: int) -> None:
        """Let time pass, second by second."""
        for _ in range(seconds):
            self.clock.time += 1
            self.until_quiet()


def test_the_newest_interval_comes_first_then_history_backwards(server: Server) -> None:
    play = Play(server.url, Clock())
    assert not play.sender.has_introduced_all
    play.sender.step()
    assert not play.sender.has_introduced_all
    play.sender.step()
    assert play.sender.has_introduced_all
    play.until_quiet()
    windows = [(NOON, NOON)]
    end = NOON - 10
    for _ in range(4):
        windows.append((end - 1790, end))
        end -= 1800
    assert server.windows() == [
        (node, first, last) for first, last in windows for node in ("gpu001", "gpu002")
    ]


def test_each_door_gets_its_own_token_and_a_post_the_time_of_its_sending(server: Server) -> None:
    play = Play(server.url, Clock(), history_seconds=60)
    play.sender.step()
    play.feeder.step()
    assert [(path, token) for path, token, _ in server.posts] == [
        ("/api/v1/ingest", "Bearer node-token"),
        ("/api/v1/feed", "Bearer feed-token"),
    ]
    assert server.sent_at == [NOON + 3.0]


def test_sources_are_told_with_the_first_interval_and_not_again(server: Server) -> None:
    play = Play(server.url, Clock(), history_seconds=60)
    play.until_quiet()
    play.on(20)
    headers = [body for path, _, body in server.posts if path == "/api/v1/ingest"]
    told = [(header["node"], len(header["sources"])) for header in headers]
    assert told[:2] == [("gpu001", 8), ("gpu002", 8)]
    assert {count for _, count in told[2:]} == {0}
    assert len(told) == 8


def test_then_every_interval_follows_within_a_second_of_its_end(server: Server) -> None:
    play = Play(server.url, Clock(), history_seconds=60)
    play.until_quiet()
    server.posts.clear()
    server.sent_at.clear()
    play.on(60)
    times = [last for _, _, last in server.windows()]
    assert sorted(times) == sorted(list(range(NOON + 10, NOON + 61, 10)) * 2)
    late = [sent - last for sent, last in zip(server.sent_at, times, strict=True)]
    assert all(0 <= seconds <= 1 for seconds in late)


def test_the_feed_follows_every_half_minute_with_what_ended_meanwhile(server: Server) -> None:
    clock = Clock()
    feeder = Play(server.url, clock, nodes=12).feeder
    delays = []
    for _ in range(6):
        delays.append(feeder.step())
        clock.time += 30
    assert delays == [30] * 6
    feeds = server.feeds()
    assert [lines[0]["time"] for lines in feeds] == [NOON + 3 + 30 * turn for turn in range(6)]
    ended = [[line["ended_at"] for line in lines if "ended_at" in line] for lines in feeds]
    assert NOON + 3 - 7200 <= min(ended[0]) < NOON - 5000
    for turn, ends in enumerate(ended[1:], 1):
        assert all(NOON + 3 + 30 * (turn - 1) <= end <= NOON + 3 + 30 * turn for end in ends)


@pytest.mark.parametrize("status", [429, 500, 503])
def test_what_an_ailing_server_did_not_take_is_sent_when_it_is_well(
    server: Server, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = Clock()
    play = Play(server.url, clock, history_seconds=60, nodes=1)
    server.status = status
    for _ in range(30):
        assert play.sender.step() == 1.0
        clock.time += 10
    server.status = 200
    play.until_quiet()
    assert _times(server) == list(range(NOON - 60, NOON + 301, 10))
    assert capsys.readouterr().err.count("trying on") == 1


def test_a_server_that_is_just_starting_is_no_reason_to_complain(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = Clock()
    play = Play(server.url, clock, history_seconds=60, nodes=1)
    server.status = 503
    for _ in range(9):
        assert play.sender.step() == 1.0
        clock.time += 1
    server.status = 200
    play.until_quiet()
    assert _times(server)[-1] == NOON + 10
    assert capsys.readouterr().err == ""


def test_a_server_that_was_away_gets_everything_once_it_is_back() -> None:
    clock = Clock()
    first = Server()
    with listening(first):
        play = Play(first.url, clock, history_seconds=60, nodes=6)
        play.until_quiet()
        play.feeder.step()
    clock.time += 10
    assert play.sender.step() == play.feeder.step() == 1.0
    clock.time += 7200
    assert play.sender.step() == 1.0
    with listening(Server(first.server_port)) as second:
        play.until_quiet()
        play.feeder.step()
        assert _times(second) == [
            time for time in range(NOON + 10, NOON + 7211, 10) for _ in range(6)
        ]
        windows = second.windows()
        assert max(last - start for _, start, last in windows) < 1800
        # The newest of every node comes before anything older.
        assert {last for _, _, last in windows[:6]} == {NOON + 7210}
        ends = [line["ended_at"] for line in second.feeds()[0] if "ended_at" in line]
        assert NOON < min(ends) < NOON + 1200


def test_a_refusal_is_told_and_not_tried_again(server: Server) -> None:
    server.status = 401
    with pytest.raises(Refused, match="/api/v1/ingest: 401"):
        Play(server.url, Clock()).sender.step()


def test_a_clock_that_stands_still_between_intervals_sends_nothing(server: Server) -> None:
    play = Play(server.url, Clock(), history_seconds=60, nodes=2)
    play.until_quiet()
    server.posts.clear()
    # gpu001 is due at the next interval's end; the clock stands 3 s after the last.
    assert play.sender.step() == pytest.approx(7.0)
    assert server.posts == []


def test_the_posts_of_ten_thousand_nodes_come_evenly() -> None:
    phases = [phase_seconds(node, 10_000) for node in range(10_000)]
    a_second = [sum(second <= phase < second + 1 for phase in phases) for second in range(10)]
    assert max(a_second) <= 1_112
    assert max(phases) < 9.0
    assert max(phase_seconds(node, 500) for node in range(500)) < 1.0


@pytest.mark.parametrize(("nodes", "processes"), [(3, 1), (3000, 1), (3001, 2), (10_000, 4)])
def test_as_many_processes_as_the_nodes_need(nodes: int, processes: int) -> None:
    assert processes_for(nodes) == processes


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGINT])
def test_the_command_ends_with_0_when_it_is_told_to(
    server: Server, tmp_path: Path, ending: signal.Signals, processes: int
) -> None:
    child = _command(server.url, tmp_path, processes)
    names = {f"gpu{number:03d}" for number in range(1, 9)}
    wait_for(lambda: {node for node, _, _ in server.windows()} == names, "all nodes tell", 60)
    if processes == 1:  # several wait an interval for one another first
        wait_for(server.feeds, "the feed follows", 30)
    others = _children(child.pid)
    assert len(others) >= processes - 1
    child.send_signal(ending)
    assert child.wait(20) == 0
    wait_for(lambda: not any(map(_alive, others)), "no process is left", 20)


def test_processes_end_with_the_one_that_started_them(server: Server, tmp_path: Path) -> None:
    child = _command(server.url, tmp_path, 2)
    wait_for(lambda: len({node for node, _, _ in server.windows()}) == 8, "all nodes tell", 60)
    others = _children(child.pid)
    assert others
    child.kill()
    child.wait()
    wait_for(lambda: not any(map(_alive, others)), "no process is left", 20)


@pytest.mark.parametrize("processes", [1, 2])
def test_the_command_ends_with_1_and_the_reason_when_its_token_is_refused(
    server: Server, tmp_path: Path, processes: int
) -> None:
    server.status = 401
    child = _command(server.url, tmp_path, processes)
    _, errors = child.communicate(timeout=60)
    assert child.returncode == 1
    assert b"flopwatch simulate: " in errors
    assert b"401" in errors
    assert b"Traceback" not in errors


def _times(server: Server) -> list[int]:
    spans = (range(first, last + 1, 10) for _, first, last in server.windows())
    return sorted(time for span in spans for time in span)


def _children(pid: int) -> list[int]:
    """Processes that this one started."""
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _alive(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def _command(url: str, folder: Path, processes: int) -> subprocess.Popen[bytes]:
    token = folder / "token"
    token.write_text("secret\n")
    return subprocess.Popen(
        [
            FLOPWATCH, "simulate", "--server", url, "--history-hours", "0.2",
            "--processes", str(processes), "--node-token-file", token, "--feed-token-file", token,
        ],
        stderr=subprocess.PIPE, env=os.environ,
    )  # fmt: skip
