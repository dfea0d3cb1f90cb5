"""A Redis server of a test's own."""

import subprocess
from pathlib import Path
from types import TracebackType
from typing import Self

from redis import Redis
from redis.exceptions import RedisError

from tests.lab.processes import free_port, wait_for


class RedisServer:
    """A running redis-server on a free port of the loopback that keeps nothing on disk."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self.client = Redis.from_url(self.url)
        self._folder = folder
        self._child: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start it, empty, and wait until it answers."""
        with (self._folder / "redis.log").open("ab") as log:
            self._child = subprocess.Popen(
                ["redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--save", "",
                 "--dir", str(self._folder)], stdout=log, stderr=log,
            )  # fmt: skip
        wait_for(self._answers, "Redis answers", 30)

    def stop(self) -> None:
        """End it; what it held is lost."""
        assert self._child is not None
        self._child.terminate()
        self._child.wait(30)

    def _answers(self) -> bool:
        try:
            return bool(self.client.ping())
        except RedisError:
            return False
