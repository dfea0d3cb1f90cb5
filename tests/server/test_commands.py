"""`flopwatch token` and `flopwatch admin`, as a person calls them."""

import os
import stat
import subprocess
from pathlib import Path
from socket import socket

import pytest

from flopwatch_server.access import sessions, tokens
from flopwatch_server.clock import utc_now
from flopwatch_server.database.engine import Database
from tests.lab.processes import FLOPWATCH, free_port


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


def test_a_misspelt_setting_is_not_ignored(database: Database) -> None:
    made = call(database, "server", FLOPWATCH_SIGNIN="local")
    assert made.returncode == 1
    assert made.stderr == "FLOPWATCH_SIGNIN is no setting; did you mean FLOPWATCH_SIGN_IN?\n"


def test_variables_of_the_agent_and_the_hook_may_stand_beside(database: Database) -> None:
    beside = {"FLOPWATCH_SOCKET": "/tmp/s", "FLOPWATCH_AGENT_NODE": "g1"}
    made = call(database, "token", "node", "--cluster", "granite", **beside)
    assert made.returncode == 0, made.stderr


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"FLOPWATCH_DATABASE_URL": "mysql://u:secret@h/d"}, "use postgresql://"),
        ({"FLOPWATCH_DATABASE_URL": "no url"}, "FLOPWATCH_DATABASE_URL"),
        ({"FLOPWATCH_DATABASE_URL": "postgresql://u:secret@127.0.0.1:9/d"}, "does not answer"),
        ({"FLOPWATCH_GPU_PEAKS": "/no/such/file"}, "FLOPWATCH_GPU_PEAKS"),
    ],
)
def test_what_a_server_cannot_use_is_said_in_one_line_without_secrets(
    database: Database, settings: dict[str, str], said: str
) -> None:
    made = call(database, "server", FLOPWATCH_PORT=str(free_port()), **settings)
    assert made.returncode == 1
    last = made.stderr.splitlines()[-1]
    assert said in last
    assert "Traceback" not in made.stderr
    assert "secret" not in made.stderr


def test_a_data_folder_that_can_not_be_one_is_named(database: Database, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    made = subprocess.run(
        [str(FLOPWATCH), "server"], capture_output=True, text=True, check=False, timeout=60,
        env={**os.environ, "FLOPWATCH_DATA_DIR": str(tmp_path / "file"),
             "FLOPWATCH_PORT": str(free_port())},
    )  # fmt: skip
    assert made.returncode == 1
    assert "give another folder in FLOPWATCH_DATA_DIR" in made.stderr
    assert "Traceback" not in made.stderr


def test_a_port_in_use_is_said_before_anything_starts(database: Database) -> None:
    with socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        made = call(database, "run", FLOPWATCH_PORT=port)
    assert made.returncode == 1
    assert made.stdout == ""
    assert made.stderr.startswith(f"can't listen on 127.0.0.1, port {port}: ")


def test_without_sign_in_a_server_beyond_this_machine_is_refused(database: Database) -> None:
    made = call(database, "server", FLOPWATCH_HOST="0.0.0.0")
    assert made.returncode == 1
    assert "FLOPWATCH_SIGN_IN=local" in made.stderr


def test_an_unknown_command_names_those_that_exist(database: Database) -> None:
    made = call(database, "serve")
    assert made.returncode == 2
    assert "server" in made.stderr
