"""How Slurm's commands are run: a fixed environment, a deadline, errors that name the command."""

import os
import subprocess
from collections.abc import Callable, Mapping, Sequence

from flopwatch_server.scheduler.records import SchedulerError

Runner = Callable[[Sequence[str], Mapping[str, str], float], str]
"""Runs a command in an environment within so many seconds and returns what it prints.

It raises SchedulerError when the command is missing, fails, or is late.
"""

DEADLINE_SECONDS = 30.0
"""Measured: below 1 s for 2,000 jobs; 9 s until squeue gives up on a dead controller."""

FILTERS = ("SQUEUE_", "SACCT_", "SINFO_", "SLURM_BITSTR_LEN", "SLURM_CLUSTERS")
"""Variables that would hide records or change their shape."""

FIXED = {
    "LC_ALL": "C.UTF-8", "SLURM_TIME_FORMAT": "%s", "TZ": "UTC", "SLURM_BITSTR_LEN": "1000",
}  # fmt: skip
"""All times as epoch seconds, and those that we write as UTC; lists of an array's tasks up to so
many letters, of which Slurm prints 64 else."""


def run_command(command: Sequence[str], environment: Mapping[str, str], deadline: float) -> str:
    """Run it as a process; bytes that are not UTF-8 become U+FFFD (see Runner for the errors)."""
    name = command[0]
    try:
        done = subprocess.run(
            command,
            env=environment,
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=deadline,
            check=False,
        )
    except FileNotFoundError:
        raise SchedulerError(f"{name}: no such command") from None
    except subprocess.TimeoutExpired:
        raise SchedulerError(f"{name}: no answer within {deadline:g} s") from None
    if done.returncode != 0:
        reason = done.stderr.decode(errors="replace").strip()[-500:]
        raise SchedulerError(f"{name}: exit status {done.returncode}: {reason}")
    return done.stdout.decode(errors="replace")


class Client:
    """Asks one Slurm cluster; `environment` (SLURM_CONF, PATH) is laid over this process's own."""

    def __init__(
        self,
        environment: Mapping[str, str] | None = None,
        run: Runner = run_command,
        deadline_seconds: float = DEADLINE_SECONDS,
    ) -> None:
        merged = {**os.environ, **(environment or {})}
        kept = {key: value for key, value in merged.items() if not key.startswith(FILTERS)}
        self._environment = {**kept, **FIXED}
        self._run = run
        self._deadline_seconds = deadline_seconds

    def ask(self, *command: str) -> str:
        """What the command prints; raises SchedulerError naming it."""
        return self._run(command, self._environment, self._deadline_seconds)
