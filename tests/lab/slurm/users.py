"""Two ordinary Unix users, and a Python that they may run."""

import os
import pwd
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp

from tests.lab.slurm.daemons import LabError, wait_until


@dataclass(frozen=True)
class LabUser:
    """A Unix user with an account in Slurm; `home` is writable for that user."""

    name: str
    account: str
    uid: int
    gid: int
    home: Path

    def may(self, test: str, path: Path) -> bool:
        """Whether this user passes `test` (-r, -w, -x) on this path and the folders above."""
        command = ["test", test, str(path)]
        ids = {"user": self.uid, "group": self.gid, "extra_groups": ()}
        return subprocess.run(command, cwd="/", check=False, **ids).returncode == 0  # type: ignore[call-overload,no-any-return]


@contextmanager
def lab_folder() -> Iterator[Path]:
    """A folder for a lab, removed at the end.

    pytest's own folders are closed to other users, and too long a path does not fit a socket.
    """
    folder = Path(mkdtemp(prefix="fwlab", dir="/tmp"))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        rmtree(folder)


def ensure_user(name: str) -> pwd.struct_passwd:
    """The Unix user of this name, made when missing (and kept: another lab may use it too)."""

    def exists() -> bool:
        if any(entry.pw_name == name for entry in pwd.getpwall()):
            return True
        # Another lab may hold the lock of /etc/passwd or make the same user: look again then.
        command = ["useradd", "--no-create-home", "--shell", "/bin/bash", name]
        return subprocess.run(command, check=False, capture_output=True).returncode == 0

    wait_until(exists, f"user {name} exists", 10.0)
    return pwd.getpwnam(name)


@contextmanager
def python_command(user: LabUser, folder: Path) -> Iterator[list[str]]:
    """A command that runs Python as it runs here, with the packages that are importable here.

    The interpreter may stand in a folder closed to the user; then the system's Python of the same
    version takes its place. Closed folders of packages are mounted, read-only, below `folder`.
    """
    system = Path(f"/usr/bin/python{sys.version_info.major}.{sys.version_info.minor}")
    candidates = (Path(sys.executable), system)
    python = next((path for path in candidates if user.may("-x", path)), None)
    if python is None:
        raise LabError(f"{user.name} can run none of {', '.join(map(str, candidates))}")
    standard = os.path.dirname(os.__file__)
    packages = [
        Path(entry)
        for entry in sys.path
        if os.path.isdir(entry) and ("site-packages" in entry or not entry.startswith(standard))
    ]
    with ExitStack() as mounts:
        readable = [
            entry
            if user.may("-r", entry)
            else mounts.enter_context(_mounted(entry, folder / f"packages{place}"))
            for place, entry in enumerate(packages)
        ]
        path = os.pathsep.join(map(str, readable))
        yield ["env", f"PYTHONPATH={path}", str(python)]


@contextmanager
def _mounted(folder: Path, place: Path) -> Iterator[Path]:
    place.mkdir()
    subprocess.run(["mount", "--bind", folder, place], check=True)
    try:
        # Read-only: whoever removes the lab's folder with this still in it removes nothing of ours.
        subprocess.run(["mount", "-o", "remount,bind,ro", place], check=True)
        yield place
    finally:
        # Lazy: a job that is being killed may still run from it.
        subprocess.run(["umount", "--lazy", place], check=True)
