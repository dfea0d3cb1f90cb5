"""Flopwatch's own processes, started as their users start them and ended with the test."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from socket import socket
from types import TracebackType
from typing import Any, Self, TypeVar

import httpx

from flopwatch_server.database.embedded import EmbeddedPostgres

Found = TypeVar("Found")
FLOPWATCH = Path(sys.executable).parent / "flopwatch"


class ProcessError(AssertionError):
    """A process ended or did not get ready; the text holds the end of its log."""


def free_port() -> int:
    """A TCP port of the loopback that nobody listens on."""
    (port,) = free_ports(1)
    return port


def free_ports(count: int) -> list[int]:
    """TCP ports that nobody listens on, from below the range that outgoing connections take.

    One that the system gives out could be an outgoing connection's before it is listened on.
    """
    free: list[int] = []
    for port in random.SystemRandom().sample(range(16000, 32000), 2000):
        with socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) != 0:
                free.append(port)
        if len(free) == count:
            return free
    raise RuntimeError(f"fewer than {count} free ports")


def wait_for(
    look: Callable[[], Found], what: str, deadline_seconds: float, pause: float = 0.2
) -> Found:
    """What `look` finds once it is not None or False; ProcessError after the deadline."""
    deadline = time.monotonic() + deadline_seconds
    while time.monotonic() < deadline:
        found = look()
        if found:
            return found
        time.sleep(pause)
    raise ProcessError(f"{what}: not within {deadline_seconds:g} s")


class Process:
    """One `flopwatch ...` process with its output in a file."""

    def __init__(
        self, *arguments: str | Path, log: Path, environment: Mapping[str, str], nice: int = 0
    ) -> None:
        self._command = ["nice", "-n", str(nice), str(FLOPWATCH), *map(str, arguments)]
        self._log = log
        self._environment = {**os.environ, **environment}
        self._child: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, again if it has ended."""
        with self._log.open("ab") as output:
            self._child = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                env=self._environment,
            )  # fmt: skip

    def kill(self) -> None:
        """kill -9."""
        assert self._child is not None
        self._child.kill()
        self._child.wait()

    def stop(self) -> int:
        """End it as a service manager does; its exit code."""
        assert self._child is not None
        if self._child.poll() is None:
            self._child.send_signal(signal.SIGTERM)
        return self._child.wait(30)

    def alive(self) -> bool:
        """Whether it runs."""
        return self._child is not None and self._child.poll() is None

    def tail(self) -> str:
        """The end of what it wrote."""
        return self._log.read_text(errors="replace")[-4000:]


class Server:
    """`flopwatch server` on a free port, with its data under `folder`."""

    def __init__(self, folder: Path, **settings: str) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.folder = folder
        self.settings = {
            "FLOPWATCH_DATA_DIR": str(folder / "data"),
            "FLOPWATCH_PORT": str(self.port),
            **settings,
        }
        self.process = Process("server", log=folder / "server.log", environment=self.settings)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.process.alive():
            self.process.stop()

    def start(self) -> None:
        """Start it and wait until it answers."""
        self.process.start()
        try:
            wait_for(self._answers, "the server answers", 150)
        except ProcessError:
            if self.process.alive():
                self.process.stop()
            raise

    def get(self, path: str, **parameters: str) -> Any:
        """JSON of GET /api/v1/<path>."""
        answer = httpx.get(f"{self.url}/api/v1/{path}", params=parameters, timeout=20)
        if answer.status_code != 200:
            raise ProcessError(f"{path}: {answer.status_code} {answer.text}\n{self.process.tail()}")
        return answer.json()

    def token(self, kind: str, cluster: str, node: str | None = None) -> Path:
        """A new token in a file, made by the command that an admin uses."""
        path = self.folder / f"{kind}-{cluster}-{node or 'any'}.token"
        command = [str(FLOPWATCH), "token", kind, "--cluster", cluster, "--output", str(path)]
        command += ["--node", node] if node else []
        subprocess.run(command, check=True, env={**os.environ, **self.settings}, timeout=150)
        return path

    def database_url(self) -> str:
        """URL of the server's embedded database, to look behind the API."""
        return EmbeddedPostgres(self.folder / "data" / "postgres").url

    def _answers(self) -> bool:
        if not self.process.alive():
            raise ProcessError(f"the server ended:\n{self.process.tail()}")
        try:
            return httpx.get(f"{self.url}/api/v1/health", timeout=5).status_code == 200
        except httpx.TransportError:
            return False


@contextmanager
def running(*processes: Process) -> Iterator[None]:
    """These processes for as long as the block lasts."""
    with ExitStack() as stack:
        for process in processes:
            process.start()
            stack.callback(process.stop)
        yield
