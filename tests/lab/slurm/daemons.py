"""Processes that the lab starts in the foreground, owns, and ends by their own id."""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path


class LabError(RuntimeError):
    """A part of the lab did not do its part; the text says which and ends with its log."""


def wait_until(condition: Callable[[], bool], what: str, deadline_seconds: float) -> None:
    """Poll `condition` until it holds; raises LabError naming `what` after the deadline."""
    end = time.monotonic() + deadline_seconds
    while not condition():
        if time.monotonic() > end:
            raise LabError(f"not within {deadline_seconds:g} s: {what}")
        time.sleep(0.05)


class Daemon:
    """One daemon, run as `user`, that dies with the lab's process even when that is killed."""

    def __init__(
        self,
        name: str,
        command: Sequence[str | Path],
        log: Path,
        ready: Callable[[], bool],
        *,
        user: str = "root",
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self._log = log
        self._ready = ready
        self._environment = environment
        self._process: subprocess.Popen[bytes] | None = None
        privileges = ["--reuid", user, "--regid", user, "--clear-groups", "--pdeathsig", "TERM"]
        self._command = ["setpriv", *privileges, "--", *map(str, command)]

    def start(self, deadline_seconds: float = 30.0) -> None:
        """Start it and wait until it answers; raises LabError with the end of its log."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment,
                cwd=self._log.parent,
                start_new_session=True,
            )
        process = self._process

        def answers_or_ended() -> bool:
            return process.poll() is not None or self._ready()

        try:
            wait_until(answers_or_ended, f"{self.name} answers", deadline_seconds)
            if process.poll() is not None:
                raise LabError(f"{self.name} ended with {process.returncode}")
        except LabError as error:
            tail = self._log.read_text(errors="replace")[-3000:]
            raise LabError(f"{error}\n{tail}") from None

    def stop(self) -> None:
        """Ask it to end, and kill it when it does not within 10 s. Nothing when not running."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End it at once, as a crash would; slurmctld then forgets its last seconds."""
        self._end(signal.SIGKILL)

    def _end(self, by: signal.Signals) -> None:
        if self._process is None:
            return
        self._process.send_signal(by)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None


def step_processes(slurm_conf: str) -> list[int]:
    """Ids of the processes of this cluster's jobs and of the daemons of their steps.

    Not every process with this SLURM_CONF: a client of the cluster is none of ours to end. The
    daemon of a step is known as the parent of its processes: in 24.11 its title has overwritten
    its environment.
    """
    wanted = f"SLURM_CONF={slurm_conf}".encode()
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        # A process may end while it is looked at, or be closed even to root (then it isn't ours).
        with contextlib.suppress(FileNotFoundError, ProcessLookupError, PermissionError):
            variables = (folder / "environ").read_bytes().split(b"\0")
            in_job = any(variable.startswith(b"SLURM_JOB_ID=") for variable in variables)
            if wanted in variables and in_job:
                found.add(int(folder.name))
                parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
                if Path(f"/proc/{parent}/comm").read_text().strip() == "slurmstepd":
                    found.add(parent)
    return sorted(found)


def kill_processes(pids: Iterable[int]) -> None:
    """Kill these; one that has ended meanwhile is fine."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def cgroup_pids(group: Path) -> list[int]:
    """Ids of the processes in a cgroup and the groups below it, ascending."""
    files = group.rglob("cgroup.procs") if group.is_dir() else ()
    return sorted({int(pid) for file in files for pid in file.read_text().split()})


def thaw(group: Path) -> None:
    """Thaw a freezer cgroup and the groups below: what a step left frozen can't even be killed."""
    for file in group.rglob("freezer.state") if group.is_dir() else ():
        file.write_text("THAWED")


def remove_cgroup(group: Path) -> None:
    """Remove a cgroup and the groups below it, the leaf first; its processes must have ended."""
    for child in (path for path in group.iterdir() if path.is_dir()):
        remove_cgroup(child)
    wait_until(lambda: _rmdir(group), f"{group} is empty and removed", 5.0)


def _rmdir(group: Path) -> bool:
    try:
        group.rmdir()
    except OSError:  # busy: the kernel frees a killed process a moment later
        return False
    return True
