"""The whole server around a database filled by hand, and a browser."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from threading import Thread
from typing import Literal

import pytest
import uvicorn
from playwright.sync_api import Browser

from flopwatch.gpus import PeakTable
from flopwatch_dashboard.app import create
from flopwatch_server.database.engine import Database
from flopwatch_server.house import House
from flopwatch_server.settings import Settings
from tests.lab.browser import chromium
from tests.lab.postgres import DatabaseFactory, postgres, public_folder
from tests.lab.processes import wait_for


@dataclass
class Clock:
    """What time it is, as far as the server knows; tests move it."""

    now: datetime = field(default_factory=lambda: datetime.now().astimezone())

    def __call__(self) -> datetime:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


@dataclass
class Server:
    """A server that runs in this process, with its database and its clock.

    `training` are the ids of the devices of the job that trains, where there is one.
    """

    url: str
    database: Database
    clock: Clock
    training: list[int] = field(default_factory=list)


@contextmanager
def serve(
    database: Database, clock: Clock, data_dir: Path, sign_in: Literal["demo", "local"] = "demo"
) -> Iterator[Server]:
    """The product's own application on a free port of the loopback."""
    house = House(database, Settings(data_dir=data_dir, sign_in=sign_in), PeakTable.load(), clock)
    config = uvicorn.Config(create(house), host="127.0.0.1", port=0, log_level="error")
    server = uvicorn.Server(config)
    thread = Thread(target=server.run)
    thread.start()
    try:
        wait_for(lambda: server.started, "the server starts", 60, pause=0.05)
        port = server.servers[0].sockets[0].getsockname()[1]
        yield Server(f"http://127.0.0.1:{port}", database, clock)
    finally:
        server.should_exit = True
        thread.join()


@pytest.fixture(scope="session")
def databases() -> Iterator[DatabaseFactory]:
    """Makes migrated databases on one PostgreSQL for this room."""
    with public_folder() as folder, postgres(folder) as server:
        yield DatabaseFactory(server.url)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """The system's Chromium, for one module: as long as it lives, no other event loop can run."""
    with chromium() as found:
        yield found
