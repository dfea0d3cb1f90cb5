"""`flopwatch server` and `flopwatch run`."""

import gc
import ipaddress
import logging
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from socket import AF_INET, AF_INET6, SO_REUSEADDR, SOCK_STREAM, SOL_SOCKET, socket
from types import FrameType
from typing import Annotated

import typer
import uvicorn

from flopwatch.gpus import PeakTable, PeakTableError
from flopwatch_dashboard.app import create
from flopwatch_dashboard.local import LocalHouse
from flopwatch_dashboard.protocol import OnePieceProtocol
from flopwatch_server.access.repository import has_account
from flopwatch_server.database.embedded import EmbeddedPostgres, EmbeddedPostgresError
from flopwatch_server.database.engine import Database
from flopwatch_server.database.opening import UnusableDatabaseError, opened
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
    with _listening(settings) as door, _open(settings) as database:
        _serve(settings, database, door)


def _run(
    port: Annotated[int | None, typer.Option(help="Port to listen on.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the simulated cluster.")] = 1,
) -> None:
    """Start everything on this machine: its GPUs, or a simulated cluster where it has none."""
    settings = _settings(None, port)
    with (
        _listening(settings) as door,
        _open(settings) as database,
        LocalHouse(settings, database, seed),
    ):
        _serve(settings, database, door)


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
def _listening(settings: Settings) -> Iterator[socket]:
    """The door, bound before anything else starts: another program may stand in it."""
    family = AF_INET6 if ":" in settings.host else AF_INET
    with socket(family, SOCK_STREAM) as door:
        door.setsockopt(SOL_SOCKET, SO_REUSEADDR, 1)
        try:
            door.bind((settings.host, settings.port))
        except OSError as error:
            sys.exit(
                f"can't listen on {settings.host}, port {settings.port}: {error.strerror}; "
                "give another FLOPWATCH_HOST or FLOPWATCH_PORT"
            )
        yield door


@contextmanager
def _open(settings: Settings) -> Iterator[Database]:
    """The database, brought up to date: the one of the URL, or an embedded one."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    with ExitStack() as stack:
        try:
            url = settings.database_url
            if url is None:
                postgres = EmbeddedPostgres(settings.data_dir / "postgres")
                url = postgres.start()
                stack.callback(postgres.stop)
            database = opened(url)
        except (EmbeddedPostgresError, UnusableDatabaseError) as error:
            sys.exit(str(error))
        yield database


def _peaks(settings: Settings) -> PeakTable:
    try:
        return PeakTable.load(settings.gpu_peaks)
    except (PeakTableError, OSError) as error:
        sys.exit(f"FLOPWATCH_GPU_PEAKS: {error}")


def _end(number: int, frame: FrameType | None) -> None:
    """SIGTERM ends the server like Ctrl-C does: children and database are shut down in order."""
    raise SystemExit(0)


def _serve(settings: Settings, database: Database, door: socket) -> None:
    # uvicorn shuts down by itself and then gives the signal to this handler.
    signal.signal(signal.SIGTERM, _end)
    house = House(database, settings, _peaks(settings))
    config = uvicorn.Config(
        create(house),
        http=OnePieceProtocol,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=5,
        ws_max_size=64 * 1024,
        ws_per_message_deflate=False,  # it would compress the same text anew for every viewer
    )
    print(f"Flopwatch is on http://{settings.host}:{settings.port}/", flush=True)
    if settings.sign_in == "local" and not _has_admin(database):
        print("Nobody can sign in yet: set the admin's password with 'flopwatch admin'", flush=True)
    # What was loaded until now stays for ever: a full collection that looks at it again and again
    # would hold up every answer. A post makes hundreds of objects that end with it, by themselves:
    # to look for circles among them at every second post costs a tenth of all.
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000)
    with suppress(KeyboardInterrupt):  # uvicorn has shut down and hands Ctrl-C on
        uvicorn.Server(config).run(sockets=[door])


def _has_admin(database: Database) -> bool:
    with database.session() as session:
        return has_account(session)
