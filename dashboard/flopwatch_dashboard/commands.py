"""`flopwatch server` and `flopwatch run`."""

import ipaddress
import logging
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Annotated

import typer
import uvicorn

from flopwatch.gpus import PeakTable
from flopwatch_dashboard.app import create
from flopwatch_dashboard.local import LocalHouse
from flopwatch_server.database.embedded import EmbeddedPostgres, EmbeddedPostgresError
from flopwatch_server.database.engine import Database
from flopwatch_server.database.migrate import upgrade
from flopwatch_server.house import House
from flopwatch_server.settings import Settings, SettingsError, load_settings

KEEP_ALIVE_SECONDS = 75


def server() -> None:
    """Entry point of `flopwatch server`."""
    typer.run(_server)


def run() -> None:
    """Entry point of `flopwatch run`."""
    typer.run(_run)


def _server(
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on.")] = None,
) -> None:
    """Run API, pages and periodic work. All settings are FLOPWATCH_* variables; see README."""
    settings = _settings(host, port)
    with _open(settings) as database:
        _serve(settings, database)


def _run(
    port: Annotated[int | None, typer.Option(help="Port to listen on.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the simulated cluster.")] = 1,
) -> None:
    """Start everything on this machine: its GPUs, or a simulated cluster where it has none."""
    settings = _settings(None, port)
    with _open(settings) as database, LocalHouse(settings, database, seed):
        _serve(settings, database)


def _settings(host: str | None, port: int | None) -> Settings:
    given = {name: value for name, value in (("host", host), ("port", port)) if value is not None}
    try:
        settings = load_settings(**given)
    except SettingsError as error:
        sys.exit(str(error))
    if settings.sign_in == "demo" and not _is_loopback(settings.host):
        sys.exit(
            f"without sign-in the server listens on this machine only, not on {settings.host}: "
            "set FLOPWATCH_SIGN_IN=local and give the admin a password with 'flopwatch admin'"
        )
    return settings


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@contextmanager
def _open(settings: Settings) -> Iterator[Database]:
    """The database, brought up to date: the one of the URL, or an embedded one."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    postgres = None
    url = settings.database_url
    try:
        if url is None:
            postgres = EmbeddedPostgres(settings.data_dir / "postgres")
            url = postgres.start()
        database = Database(url)
        upgrade(database)
        yield database
    except EmbeddedPostgresError as error:
        sys.exit(str(error))
    finally:
        if postgres is not None:
            postgres.stop()


def _end(number: int, frame: FrameType | None) -> None:
    """SIGTERM ends the server like Ctrl-C does: children and database are shut down in order."""
    raise SystemExit(0)


def _serve(settings: Settings, database: Database) -> None:
    # uvicorn shuts down by itself and then gives the signal to this handler.
    signal.signal(signal.SIGTERM, _end)
    house = House(database, settings, PeakTable.load(settings.gpu_peaks))
    print(f"Flopwatch is on http://{settings.host}:{settings.port}/", flush=True)
    uvicorn.run(
        create(house),
        host=settings.host,
        port=settings.port,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=5,
        ws_max_size=64 * 1024,
    )
