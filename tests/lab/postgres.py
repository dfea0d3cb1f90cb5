"""A PostgreSQL server of the tests' own, and databases on it that are made in a moment.

The folder can be entered by everybody, since run as root the server drops to an account that could
not enter pytest's own folders.
"""

import itertools
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
from sqlalchemy import make_url

from flopwatch_server.database.embedded import EmbeddedPostgres
from flopwatch_server.database.engine import Database
from flopwatch_server.database.migrate import upgrade

MEMORY = Path("/dev/shm")


def system_binaries() -> Path:
    """Those of the distribution's own PostgreSQL: 15 on Debian 12, a later one elsewhere."""
    return sorted(Path("/usr/lib/postgresql").glob("*/bin"))[0]


@contextmanager
def public_folder() -> Iterator[Path]:
    """A new folder in memory that every account may enter, removed in the end.

    A database is made for every test: on a slow disk that alone would take minutes.
    """
    folder = Path(tempfile.mkdtemp(prefix="flopwatch-test-", dir=MEMORY))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


@contextmanager
def postgres(folder: Path, binaries: Path | None = None) -> Iterator[EmbeddedPostgres]:
    """A running server with its data in `folder`; None means the binaries a product would use."""
    server = EmbeddedPostgres(folder, binaries)
    server.start()
    try:
        yield server
    finally:
        server.stop()


class DatabaseFactory:
    """Makes databases that are already migrated: copies of one template."""

    def __init__(self, server_url: str) -> None:
        self._url = make_url(server_url)
        self._numbers = itertools.count(1)
        self._run("CREATE DATABASE template")
        template = Database(self._named("template"))
        upgrade(template)
        template.dispose()

    @contextmanager
    def database(self) -> Iterator[Database]:
        """A new database, dropped in the end."""
        name = f"test_{next(self._numbers)}"
        self._run(f"CREATE DATABASE {name} TEMPLATE template STRATEGY file_copy")
        database = Database(self._named(name))
        try:
            yield database
        finally:
            database.dispose()
            self._run(f"DROP DATABASE {name} WITH (FORCE)")

    def _named(self, name: str) -> str:
        return self._url.set(database=name).render_as_string(hide_password=False)

    def _run(self, statement: str) -> None:
        with psycopg.connect(self._named("postgres"), autocommit=True) as connection:
            connection.execute(statement)
