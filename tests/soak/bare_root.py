"""A Debian with nothing on it but what the README asks for, and a fresh clone in it."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

ASKED_FOR = ("make", "python3", "python3-venv", "git")
"""What the README tells a user to have. Anything else, `make` has to get by itself."""

_REPOSITORY = Path(__file__).parents[2]
_ENTER = Path(__file__).parent / "enter_root.sh"
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_PROXIES = ("http_proxy", "https_proxy", "no_proxy")


class BareRoot:
    """The root, with the clone in /root/flopwatch.

    It shares nothing with this machine but the kernel, its network, and how pip finds packages.
    """

    def __init__(self, folder: Path, suite: str) -> None:
        self.path = folder
        self._settings, self._mounts = _pip_of_this_machine()
        subprocess.run(
            ["debootstrap", "--variant=minbase", f"--include={','.join(ASKED_FOR)}", suite,
             str(folder)], check=True, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        folder.chmod(0o755)  # inside it is /
        for name in ("resolv.conf", "hosts"):
            (folder / "etc" / name).write_bytes(Path("/etc", name).read_bytes())
        subprocess.run(
            ["git", "clone", "--quiet", "--no-hardlinks", str(_REPOSITORY), str(self.clone)],
            check=True,
        )

    @property
    def clone(self) -> Path:
        """Where the clone is, seen from outside."""
        return self.path / "root" / "flopwatch"

    def start(
        self, *command: str, log: Path, environment: Mapping[str, str]
    ) -> subprocess.Popen[bytes]:
        """Run a command in the clone, in a process group of its own as in a terminal."""
        inside = {"PATH": _PATH, "HOME": "/root", "LANG": "C.UTF-8", **self._settings}
        with log.open("wb") as output:
            return subprocess.Popen(
                ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", str(_ENTER),
                 str(self.path), " ".join(self._mounts), "/root/flopwatch", *command],
                stdin=subprocess.DEVNULL, stdout=output, stderr=output, process_group=0,
                env={**inside, **environment},
            )  # fmt: skip

    def survivors(self) -> str:
        """What still ran when the last command had ended: nothing, it is hoped."""
        return (self.path / "survivors").read_text().strip()


@contextmanager
def bare_root(folder: Path, suite: str = "bookworm") -> Iterator[BareRoot]:
    """A root in `folder`, of this release of Debian, removed in the end."""
    try:
        yield BareRoot(folder, suite)
    finally:
        subprocess.run(["rm", "-rf", "--one-file-system", str(folder)], check=True)


def run_pytest(root: BareRoot, command: list[str], log: Path, deadline_seconds: float) -> None:
    """Run a command that ends with pytest: all its tests must pass, and none be left out."""
    process = root.start(*command, log=log, environment={})
    try:
        status = process.wait(deadline_seconds)
    finally:
        process.kill()
        process.wait()
        print(log.read_text(errors="replace")[-6000:])
    assert status == 0
    summary = log.read_text(errors="replace").splitlines()[-1]
    assert re.search(r"\b[1-9]\d* passed", summary), summary
    assert not re.search(r"failed|error|skipped|xfailed", summary), summary


def _pip_of_this_machine() -> tuple[dict[str, str], list[str]]:
    """The variables that tell pip where packages are, and the files that those and others name."""
    settings = {
        name: value
        for name, value in os.environ.items()
        if name.startswith("PIP_") or name.lower() in _PROXIES
    }
    told = [sys.executable, "-m", "pip", "config"]
    debug = subprocess.run([*told, "debug"], check=True, capture_output=True, text=True).stdout
    files = [line.split(",")[0].strip() for line in debug.splitlines() if "exists: True" in line]
    values = subprocess.run([*told, "list"], check=True, capture_output=True, text=True).stdout
    words = [word for line in values.splitlines()
             for word in shlex.split(line.partition("=")[2]) for word in word.split()]  # fmt: skip
    named = [urlsplit(word).path if word.startswith("file:") else word for word in words]
    roots = {_local_root(Path(path)) for path in named if path.startswith("/")}
    return settings, sorted({*files, *roots})


def _local_root(path: Path) -> str:
    """The folder that also holds the files beside an index: its links go up from `simple`."""
    return str(path.parent if path.name == "simple" else path)
