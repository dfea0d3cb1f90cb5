"""`flopwatch token` and `flopwatch admin`, as a person calls them."""

import os
import stat
import subprocess
from pathlib import Path

from flopwatch_server.access import sessions, tokens
from flopwatch_server.clock import utc_now
from flopwatch_server.database.engine import Database
from tests.lab.processes import FLOPWATCH


def call(
    database: Database, *arguments: str, stdin: str = "", **settings: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(FLOPWATCH), *arguments], capture_output=True, text=True, check=False, input=stdin,
        env={**os.environ, "FLOPWATCH_DATABASE_URL": database.conninfo, **settings}, timeout=60,
    )  # fmt: skip


def test_a_token_is_shown_once_and_is_good_for_its_node(database: Database) -> None:
    shown = call(database, "token", "node", "--cluster", "granite", "--node", "g014")
    assert shown.returncode == 0, shown.stderr
    with database.session() as session:
        identity = tokens.identify(session, shown.stdout.strip())
    assert identity is not None
    assert (identity.kind, identity.node) == ("node", "g014")


def test_a_token_in_a_file_can_be_read_by_its_owner_only(
    database: Database, tmp_path: Path
) -> None:
    path = tmp_path / "token"
    path.write_text("an older one, open to all")
    path.chmod(0o644)
    made = call(database, "token", "feed", "--cluster", "granite", "--output", str(path))
    assert (made.returncode, made.stdout) == (0, "")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with database.session() as session:
        assert tokens.identify(session, path.read_text().strip()) is not None


def test_the_admins_password_comes_from_standard_input(database: Database) -> None:
    made = call(database, "admin", stdin="correct horse battery\n")
    assert made.returncode == 0, made.stderr
    with database.session() as session:
        assert sessions.sign_in(session, "admin", "correct horse battery", utc_now())


def test_a_short_password_changes_nothing(database: Database) -> None:
    made = call(database, "admin", stdin="short\n")
    assert made.returncode == 1
    assert "12 characters" in made.stderr
    with database.session() as session:
        assert sessions.sign_in(session, "admin", "short", utc_now()) is None


def test_a_bad_setting_is_named_without_a_traceback(database: Database) -> None:
    for command in (["token", "node", "--cluster", "c"], ["server"]):
        made = call(database, *command, FLOPWATCH_PORT="many")
        assert made.returncode == 1
        assert "FLOPWATCH_PORT" in made.stderr
        assert "Traceback" not in made.stderr


def test_without_sign_in_a_server_beyond_this_machine_is_refused(database: Database) -> None:
    made = call(database, "server", FLOPWATCH_HOST="0.0.0.0")
    assert made.returncode == 1
    assert "FLOPWATCH_SIGN_IN=local" in made.stderr


def test_an_unknown_command_names_those_that_exist(database: Database) -> None:
    made = call(database, "serve")
    assert made.returncode == 2
    assert "server" in made.stderr
