"""The embedded PostgreSQL keeps what was committed and never outlives its owner."""

import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from shutil import copytree, rmtree
from tempfile import mkdtemp

import psycopg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from flopwatch_server.database.embedded import (
    EmbeddedPostgres,
    InUseError,
    attach,
    find_binaries,
)
from flopwatch_server.database.engine import Database
from flopwatch_server.database.migrate import upgrade
from flopwatch_server.schema import metadata
from tests.lab.postgres import postgres
from tests.lab.processes import wait_for


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that the unprivileged account of PostgreSQL can enter, unlike pytest's own."""
    path = Path(mkdtemp(prefix="fwpg", dir="/tmp"))
    path.chmod(0o755)
    yield path
    rmtree(path)


def own_a_server(folder: Path, pipe: Connection) -> None:
    """Start a server, commit a row, say the server's pid, and wait to be killed."""
    server = EmbeddedPostgres(folder)
    with psycopg.connect(server.start(), autocommit=True) as connection:
        connection.execute("CREATE TABLE kept (n int)")
        connection.execute("INSERT INTO kept VALUES (42)")
        pipe.send(server.pid)
        time.sleep(600)


def rows(url: str) -> list[tuple[int]]:
    with psycopg.connect(url) as connection:
        return connection.execute("SELECT n FROM kept").fetchall()


def exists(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split(") ")[1][0] != "Z"
    except FileNotFoundError:
        return False


def test_after_kill_9_of_its_owner_the_server_ends_and_keeps_what_was_committed(
    folder: Path,
) -> None:
    ours, theirs = multiprocessing.Pipe()
    owner = multiprocessing.get_context("spawn").Process(target=own_a_server, args=(folder, theirs))
    owner.start()
    assert ours.poll(60)
    pid = ours.recv()
    assert owner.pid is not None
    os.kill(owner.pid, signal.SIGKILL)
    owner.join()
    server = EmbeddedPostgres(folder)
    try:
        assert rows(server.start()) == [(42,)]
        assert not exists(pid)
    finally:
        server.stop()
    assert "database system was shut down" in (folder / "postgres.log").read_text()


def test_after_kill_9_of_the_server_itself_a_new_one_recovers(folder: Path) -> None:
    server = EmbeddedPostgres(folder)
    try:
        with psycopg.connect(server.start(), autocommit=True) as connection:
            connection.execute("CREATE TABLE kept (n int)")
            connection.execute("INSERT INTO kept VALUES (1)")
            assert server.pid is not None
            os.kill(server.pid, signal.SIGKILL)
        server.stop()
        assert rows(server.start()) == [(1,)]
    finally:
        server.stop()


def test_a_second_owner_is_refused_but_may_attach(folder: Path) -> None:
    first = EmbeddedPostgres(folder / "postgres")
    try:
        first.start()
        with pytest.raises(InUseError, match="in use by another Flopwatch server"):
            EmbeddedPostgres(folder / "postgres").start()
        with attach(None, folder) as url, psycopg.connect(url) as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)
        assert first.pid is not None
        assert exists(first.pid)
    finally:
        first.stop()


def test_attaching_where_no_server_runs_starts_one_for_the_while(folder: Path) -> None:
    with attach(None, folder) as url, psycopg.connect(url) as connection:
        found = connection.execute("SELECT pg_backend_pid()").fetchone()
        assert found is not None
    wait_for(lambda: not exists(found[0]), "the server has ended", 10)


def test_an_initdb_that_was_killed_half_way_is_begun_anew(folder: Path) -> None:
    data = folder / "data"
    data.mkdir()
    (data / "base").mkdir()
    (data / "postgresql.conf").write_text("half a line")
    server = EmbeddedPostgres(folder)
    try:
        with psycopg.connect(server.start()) as connection:
            assert connection.execute("SHOW fsync").fetchone() == ("on",)
    finally:
        server.stop()


@pytest.mark.parametrize("version", ["pginstall", "pginstall18"])
def test_root_can_run_binaries_from_a_folder_that_only_root_can_enter(
    folder: Path, tmp_path: Path, version: str
) -> None:
    wheel = find_binaries().parents[1]
    home = tmp_path / "home"
    for part in (wheel, wheel.with_name(f"{wheel.name}.libs")):
        copytree(part, home / part.name, symlinks=True)
    home.chmod(0o700)
    with (
        postgres(folder, home / wheel.name / version / "bin") as server,
        psycopg.connect(server.url) as connection,
    ):
        assert connection.execute("SELECT 1").fetchone() == (1,)


def test_it_listens_on_no_network_and_its_socket_is_private(folder: Path) -> None:
    server = EmbeddedPostgres(folder)
    try:
        with psycopg.connect(server.start()) as connection:
            assert connection.execute("SHOW listen_addresses").fetchone() == ("",)
            where = connection.execute("SHOW unix_socket_directories").fetchone()
        assert where is not None
        assert Path(where[0]).stat().st_mode & 0o077 == 0
    finally:
        server.stop()
    assert not Path(where[0]).exists()


def test_migrations_build_exactly_the_tables_of_the_models_and_may_run_twice(
    database: Database,
) -> None:
    upgrade(database)
    with database.engine.connect() as connection:
        options = {"compare_type": True, "compare_server_default": True}
        context = MigrationContext.configure(connection, opts=options)
        found = compare_metadata(context, metadata)
    # Partitions of samples are made by the server as days come, not by a migration.
    assert [step for step in found if "samples_2" not in str(step)] == []
