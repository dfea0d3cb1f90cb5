"""A session of its own for every test, and an agent's socket to report to."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

import flopwatch.hook.session
from flopwatch.wire import MAX_REPORT_BYTES, Report, decode_report


class Agent:
    """The receiving end: what an agent would have read from its socket."""

    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(path))
        self.socket.setblocking(False)

    def reports(self) -> list[Report]:
        """All reports that have come since the last call."""
        received = []
        while True:
            try:
                received.append(decode_report(self.socket.recv(MAX_REPORT_BYTES + 1)))
            except BlockingIOError:
                return received


@pytest.fixture(autouse=True)
def socket_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A path where no agent listens yet; the process has not called Flopwatch yet either."""
    path = tmp_path / "hook.sock"
    monkeypatch.setenv("FLOPWATCH_SOCKET", str(path))
    monkeypatch.delenv("FLOPWATCH", raising=False)
    monkeypatch.setattr(flopwatch.hook.session, "_session", None)
    return path


@pytest.fixture
def agent(socket_path: Path) -> Iterator[Agent]:
    """An agent that listens."""
    listening = Agent(socket_path)
    yield listening
    listening.socket.close()
