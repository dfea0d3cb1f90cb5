"""Commands as a person starts them: below a login, and not below the test."""

import os
import subprocess
import sys
from pathlib import Path

_LOGIN = """
import os, sys
child = os.fork()
if not child:
    print(os.getpid(), flush=True)
    os.execvp(sys.argv[1], sys.argv[1:])
sys.stdin.read()
os.waitpid(child, 0)
"""


class Tree:
    """A command as a login starts it, and all that it starts; `pid` is the command's."""

    def __init__(self, *command: str | Path, **environment: str) -> None:
        self._login = subprocess.Popen(
            ["login", "-c", _LOGIN, *map(str, command)], executable=sys.executable,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, **environment},
        )  # fmt: skip
        self.pid = self.told_pid()

    def told_pid(self) -> int:
        """A pid that one of its processes wrote."""
        assert self._login.stdout is not None
        return int(self._login.stdout.readline())

    def end(self) -> None:
        """Let the command see the end of its input, and wait for its own end."""
        if self._login.poll() is None:
            self._login.communicate(timeout=30)
