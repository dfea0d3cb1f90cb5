"""Child processes that never outlive the agent, however it ends."""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress

# The kernel ends the child with its parent (PR_SET_PDEATHSIG is 1). Set in the child itself: code
# between fork and exec may deadlock in a process with threads.
_GUARD = (
    "import ctypes, os, signal, sys\n"
    "ctypes.CDLL(None).prctl(1, signal.SIGKILL)\n"
    "if os.getppid() != int(sys.argv[1]): sys.exit(1)\n"
    "os.execvp(sys.argv[2], sys.argv[2:])\n"
)


def start(command: Sequence[str]) -> subprocess.Popen[bytes]:
    """Start a command whose output and complaints come through one pipe.

    The kernel takes the thread that starts it for the parent: it must outlive the child.
    """
    guard = [sys.executable, "-I", "-S", "-c", _GUARD, str(os.getpid())]
    return subprocess.Popen(
        [*guard, *command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        process_group=0,
    )


def kill(process: subprocess.Popen[bytes]) -> None:
    """End a child and all that it started."""
    if process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def output(command: Sequence[str], timeout_seconds: float) -> str:
    """What a command prints until it ends. Raises OSError where it fails or takes too long."""
    process = start(command)
    try:
        printed, _ = process.communicate(timeout=timeout_seconds)
    except subprocess.TimeoutExpired as error:
        kill(process)
        process.communicate()
        raise OSError(f"{command[0]} did not end in {timeout_seconds:g} s") from error
    text = printed.decode(errors="replace")
    if process.returncode:
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        raise OSError(lines[-1] if lines else f"{command[0]} ended with {process.returncode}")
    return text
