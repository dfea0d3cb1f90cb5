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
from flopwatch_simulation.doors import Doors, Refused
from flopwatch_simulation.sender import Sender
from tests.lab.processes import FLOPWATCH, wait_for

NOON = 1_773_316_800


class Server(ThreadingHTTPServer):
    """Writes down what is posted, and answers what it is told to."""

    def __init__(self, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.status = 200
        self.posts: list[tuple[str, str, Any]] = []
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


def sender_to(url: str, clock: Clock, history_seconds: int = 7200, nodes: int = 2) -> Sender:
    doors = Doors(url, "node-token", "feed-token")
    return Sender(Cluster(seed=7, nodes=nodes), doors, history_seconds, clock)


def test_the_newest_interval_comes_first_then_the_feed_then_history_backwards(
    server: Server,
) -> None:
    sender_to(server.url, Clock()).turn()
    windows = [(NOON, NOON)]
    end = NOON - 10
    for _ in range(4):
        windows.append((end - 1790, end))
        end -= 1800
    assert server.windows() == [
        (node, first, last) for first, last in windows for node in ("gpu001", "gpu002")
    ]
    assert [path for path, _, _ in server.posts].index("/api/v1/feed") == 2


def test_each_door_gets_its_own_token(server: Server) -> None:
    sender_to(server.url, Clock(), history_seconds=60).turn()
    tokens = {(path, token) for path, token, _ in server.posts}
    assert tokens == {
        ("/api/v1/ingest", "Bearer node-token"),
        ("/api/v1/feed", "Bearer feed-token"),
    }


def test_then_every_interval_follows_and_the_feed_every_half_minute(server: Server) -> None:
    clock = Clock()
    sender = sender_to(server.url, clock, history_seconds=60, nodes=1)
    sender.turn()
    server.posts.clear()
    for _ in range(6):
        clock.time += 10
        sender.turn()
        sender.turn()
    assert [last for _, _, last in server.windows()] == list(range(NOON + 10, NOON + 61, 10))
    assert [lines[0]["time"] for lines in server.feeds()] == [NOON + 33, NOON + 63]


@pytest.mark.parametrize("status", [429, 500, 503])
def test_what_an_ailing_server_did_not_take_is_sent_when_it_is_well(
    server: Server, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = Clock()
    sender = sender_to(server.url, clock, history_seconds=60, nodes=1)
    server.status = status
    for _ in range(30):
        sender.turn()
        clock.time += 10
    server.status = 200
    sender.turn()
    assert _times(server) == list(range(NOON - 60, NOON + 301, 10))
    assert capsys.readouterr().err.count("trying on") == 1


def test_a_server_that_is_just_starting_is_no_reason_to_complain(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = Clock()
    sender = sender_to(server.url, clock, history_seconds=60, nodes=1)
    server.status = 503
    for _ in range(9):
        sender.turn()
        clock.time += 1
    server.status = 200
    sender.turn()
    assert _times(server)[-1] == NOON + 10
    assert capsys.readouterr().err == ""


def test_a_server_that_was_away_gets_everything_once_it_is_back() -> None:
    clock = Clock()
    first = Server()
    with listening(first):
        sender = sender_to(first.url, clock, history_seconds=60, nodes=6)
        sender.turn()
    clock.time += 10
    sender.turn()
    clock.time += 7200
    sender.turn()
    with listening(Server(first.server_port)) as second:
        sender.turn()
        assert _times(second) == [
            time for time in range(NOON + 10, NOON + 7211, 10) for _ in range(6)
        ]
        assert max(last - start for _, start, last in second.windows()) < 1800
        ends = [line["ended_at"] for line in second.feeds()[0] if "ended_at" in line]
        assert NOON < min(ends) < NOON + 1200


def test_a_refusal_is_told_and_not_tried_again(server: Server) -> None:
    server.status = 401
    with pytest.raises(Refused, match="/api/v1/ingest: 401"):
        sender_to(server.url, Clock()).turn()


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGINT])
def test_the_command_ends_with_0_when_it_is_told_to(
    server: Server, tmp_path: Path, ending: signal.Signals
) -> None:
    child = _command(server.url, tmp_path)
    wait_for(lambda: len(server.windows()) >= 6, "the first interval arrives", 30)
    child.send_signal(ending)
    assert child.wait(5) == 0


def test_the_command_ends_with_1_and_the_reason_when_its_token_is_refused(
    server: Server, tmp_path: Path
) -> None:
    server.status = 401
    child = _command(server.url, tmp_path)
    _, errors = child.communicate(timeout=30)
    assert child.returncode == 1
    assert errors.startswith(b"flopwatch simulate: /api/v1/ingest: 401")


def _times(server: Server) -> list[int]:
    spans = (range(first, last + 1, 10) for _, first, last in server.windows())
    return sorted(time for span in spans for time in span)


def _command(url: str, folder: Path) -> subprocess.Popen[bytes]:
    token = folder / "token"
    token.write_text("secret\n")
    return subprocess.Popen(
        [
            FLOPWATCH, "simulate", "--server", url, "--history-minutes", "10",
            "--node-token-file", token, "--feed-token-file", token,
        ],
        stderr=subprocess.PIPE, env=os.environ,
    )  # fmt: skip
