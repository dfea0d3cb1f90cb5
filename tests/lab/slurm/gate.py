"""How a test decides when its jobs end."""

import fcntl
import os
from pathlib import Path


class Gate:
    """A file that jobs wait at until the test opens it; `script` is what waits there."""

    def __init__(self, path: Path) -> None:
        self.script = f"flock --shared {path} true"
        self._file = os.open(path, os.O_CREAT | os.O_RDONLY, 0o644)
        fcntl.flock(self._file, fcntl.LOCK_EX)

    def open(self) -> None:
        """Let all pass that wait, and all that come."""
        os.close(self._file)
