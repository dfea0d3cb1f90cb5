"""The whole server around a database filled by hand, and a browser."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from threading import Thread, current_thread
from typing import Literal

import pytest
import uvicorn
from fastapi import FastAPI
from playwright.sync_api import Browser, BrowserContext, Page
from sqlalchemy import event

from flopwatch.gpus import PeakTable
from flopwatch_dashboard.app import create
from flopwatch_dashboard.live.hub import Timing
from flopwatch_dashboard.protocol import OnePieceProtocol
from flopwatch_server.database.engine import Database
from flopwatch_server.house import House
from flopwatch_server.settings import Settings
from tests.dashboard import cluster
from tests.lab.browser import RECORD_VIOLATIONS, chromium
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


QUICK = Timing(tick=0.5, check=0.2, deadline=60)
"""A tick that a test need not wait for, and time for a slow machine; all else as in the product."""


@contextmanager
def serve(
    database: Database,
    clock: Clock,
    data_dir: Path,
    sign_in: Literal["demo", "local"] = "demo",
    timing: Timing = QUICK,
    port: int = 0,
) -> Iterator[Server]:
    """The product's own application on the loopback; on a free port if none is given."""
    house = House(database, Settings(data_dir=data_dir, sign_in=sign_in), PeakTable.load(), clock)
    with listening(create(house, timing), port) as url:
        yield Server(url, database, clock)


@contextmanager
def listening(app: FastAPI, port: int = 0) -> Iterator[str]:
    """An application served in a thread of this process; its address."""
    config = uvicorn.Config(
        app, host="127.0.0.1", port=port, log_level="error", http=OnePieceProtocol
    )
    server = uvicorn.Server(config)
    thread = Thread(target=server.run)
    thread.start()
    try:
        wait_for(lambda: server.started, "the server starts", 60, pause=0.05)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


@contextmanager
def asked_by_hub(database: Database) -> Iterator[list[str]]:
    """A list that fills with the statements that the hub's threads send to the database."""
    found: list[str] = []

    def note(_c: object, _u: object, statement: str, *_rest: object) -> None:
        if current_thread().name.startswith("live"):
            found.append(statement)

    event.listen(database.engine, "before_cursor_execute", note)
    try:
        yield found
    finally:
        event.remove(database.engine, "before_cursor_execute", note)


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


@pytest.fixture(scope="module")
def server(
    databases: DatabaseFactory, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """A server of this module's own over the small cluster."""
    clock = Clock()
    with databases.database() as database:
        devices = cluster.fill(database, clock.now)
        with serve(database, clock, tmp_path_factory.mktemp("data")) as running:
            running.training = devices
            yield running


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    """A profile that nobody has used, whose pages record what breaks the policy."""
    found = browser.new_context(viewport={"width": 1440, "height": 900}, color_scheme="light")
    found.add_init_script(RECORD_VIOLATIONS)
    yield found
    found.close()


@pytest.fixture
def page(context: BrowserContext) -> Page:
    """A page in that profile."""
    return context.new_page()
