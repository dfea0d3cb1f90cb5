"""`flopwatch token` and `flopwatch admin`: what a person sets up on the server's machine."""

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from getpass import getpass
from pathlib import Path
from typing import Annotated, Literal

import typer

from flopwatch_server.access import sessions, tokens
from flopwatch_server.clock import utc_now
from flopwatch_server.database.embedded import EmbeddedPostgresError, attach
from flopwatch_server.database.engine import Database
from flopwatch_server.database.opening import UnusableDatabaseError, opened
from flopwatch_server.fleet.repository.clusters import ensure_cluster
from flopwatch_server.settings import Settings, SettingsError, load_settings


def token() -> None:
    """Entry point of `flopwatch token`."""
    typer.run(_make_token)


def admin() -> None:
    """Entry point of `flopwatch admin`."""
    typer.run(_set_password)


def _make_token(
    kind: Annotated[
        Literal["node", "feed"],
        typer.Argument(help="node: an agent's; feed: for whoever posts the scheduler feed."),
    ],
    cluster: Annotated[str, typer.Option(help="Name of the cluster, made if new.")],
    node: Annotated[
        str | None, typer.Option(help="Only this node may use it; none means any of the cluster.")
    ] = None,
    simulated: Annotated[
        bool, typer.Option("--simulated", help="A new cluster is one that is not there.")
    ] = False,
    output: Annotated[
        Path | None, typer.Option(help="Write it to this file, mode 0600, instead of the screen.")
    ] = None,
) -> None:
    """Make a token for a machine. Its value is shown once."""
    with database_or_exit() as database, database.session() as session:
        now = utc_now()
        cluster_id = ensure_cluster(session, cluster, now, simulated=simulated)
        value = tokens.create(session, kind, cluster_id, node, now)
    if output is None:
        print(value)
    else:
        tokens.write(output, value)


def _set_password(
    name: Annotated[str, typer.Option(help="Name to sign in with.")] = "admin",
) -> None:
    """Give the local admin a password: asked for, or one line on standard input."""
    password = getpass("New password: ") if sys.stdin.isatty() else sys.stdin.readline().strip()
    with database_or_exit() as database, database.session() as session:
        try:
            sessions.set_password(session, name, password, utc_now())
        except ValueError as problem:
            sys.exit(str(problem))
    print(f"{name} can sign in now, with FLOPWATCH_SIGN_IN=local")


def settings_or_exit() -> Settings:
    """Settings from the environment; what is wrong with them ends the command, said in one line."""
    try:
        return load_settings()
    except SettingsError as error:
        sys.exit(str(error))


@contextmanager
def database_or_exit() -> Iterator[Database]:
    """The server's database, brought up to date; what keeps it away ends the command."""
    settings = settings_or_exit()
    with ExitStack() as stack:
        try:
            url = stack.enter_context(attach(settings.database_url, settings.data_dir))
            database = opened(url)
        except (EmbeddedPostgresError, UnusableDatabaseError) as error:
            sys.exit(str(error))
        stack.callback(database.dispose)
        yield database
