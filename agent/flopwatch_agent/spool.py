"""The queue on disk: a batch is written here before it is sent and deleted after the answer.

One file a batch, named so that names sort by age:
`<epoch>-<sequence>-<start>-<end>.batch`, its samples being of (start, end] (both 0 without any).
Files are gzip, whose checksum finds a torn one. Whatever is lost becomes a `Gap`, which the next
batch carries; when that batch is lost too, its gaps are taken over again.
"""

import contextlib
import gzip
import json
import logging
import os
import re
import threading
import zlib
from collections import deque
from pathlib import Path

from flopwatch.wire import MAX_DECODED_BYTES, Gap, split_batch

_log = logging.getLogger(__name__)

DEFAULT_BYTES = 1 << 30
MEMORY_BATCHES = 360
"""An hour of batches, kept in memory while the disk takes none."""
REFUSED_FILES = 100

_NAME = re.compile(r"\d{10}-\d{10}-(\d{10})-(\d{10})\.batch")
_BLOCK_BYTES = 4096


class Spool:
    """Batches that the server has not yet answered. Safe to use from several threads."""

    def __init__(
        self, folder: Path, most_bytes: int = DEFAULT_BYTES, memory_batches: int = MEMORY_BATCHES
    ) -> None:
        self._folder = folder
        self._refused = folder / "refused"
        self._most_bytes = most_bytes
        self._memory_batches = memory_batches
        self._lock = threading.RLock()
        self._memory: dict[str, bytes] = {}
        self._gaps: list[Gap] = []
        self._sequence = 0
        self._complaint = ""
        self._names = deque(sorted(self._found()))
        self._bytes = sum(self._size(name) for name in self._names)

    def __len__(self) -> int:
        """How many batches wait."""
        return len(self._names)

    def put(self, body: bytes, epoch: int, span: tuple[int, int]) -> None:
        """Keep a batch: on disk and synced, or in memory while the disk refuses."""
        with self._lock:
            self._sequence += 1
            name = f"{epoch:010d}-{self._sequence:010d}-{span[0]:010d}-{span[1]:010d}.batch"
            self._names.append(name)
            self._memory[name] = gzip.compress(body, compresslevel=6, mtime=0)
            self._write_memory()
            while self._bytes > self._most_bytes:
                self._lose(self._names[0], "the spool was full")
            while len(self._memory) > self._memory_batches:
                self._lose(next(iter(self._memory)), "the spool could not be written")

    def newest(self) -> str | None:
        """The name of the newest batch."""
        with self._lock:
            return self._names[-1] if self._names else None

    def oldest(self) -> str | None:
        """The name of the oldest batch."""
        with self._lock:
            return self._names[0] if self._names else None

    def read(self, name: str) -> bytes | None:
        """The gzip body of a batch, or None if it is gone or turned out to be spoilt."""
        with self._lock:
            if name not in self._names:
                return None
            try:
                body = self._load(name)
                _unpack(body)
            except (OSError, EOFError, ValueError, zlib.error) as error:
                _log.error("batch %s is spoilt: %s", name, error)
                self._lose(name, "a spool file was spoilt")
                return None
            return body

    def done(self, name: str) -> None:
        """Delete a batch that the server has."""
        with self._lock:
            if name in self._names:
                self._remove(name)

    def refuse(self, name: str, cause: str) -> None:
        """Set aside a batch that the server will never take, for a person to look at."""
        with self._lock:
            if name not in self._names:
                return
            try:
                self._set_aside(name)
            except OSError as error:
                _log.warning("batch %s can't be set aside: %s", name, error)
            self._lose(name, cause)

    def take_gaps(self) -> list[Gap]:
        """What was lost since the last call."""
        with self._lock:
            gaps, self._gaps = self._gaps, []
            return gaps

    def _found(self) -> list[str]:
        """What an earlier life left; also clears half-written files."""
        names = []
        try:
            self._refused.mkdir(mode=0o700, parents=True, exist_ok=True)
            for entry in os.scandir(self._folder):
                if entry.name.endswith(".tmp"):
                    Path(entry.path).unlink()
                elif _NAME.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                    names.append(entry.name)
        except OSError as error:
            _log.error("the spool %s is not usable: %s", self._folder, error)
        return names

    def _write_memory(self) -> None:
        """Move to disk what is in memory, oldest first, as far as the disk takes it."""
        try:
            for name in list(self._memory):
                self._write(name, self._memory[name])
                del self._memory[name]
                self._bytes += self._size(name)
        except OSError as error:
            self._say(f"the spool {self._folder} takes no batch ({error}); they wait in memory")
        else:
            self._say("")

    def _write(self, name: str, body: bytes) -> None:
        """Write, sync, rename, sync the folder: after that no crash can lose or tear it."""
        fresh = self._folder / f"{name}.tmp"
        try:
            with fresh.open("xb") as file:
                file.write(body)
                file.flush()
                os.fsync(file.fileno())
            fresh.rename(self._folder / name)
        except OSError:
            with contextlib.suppress(OSError):
                fresh.unlink(missing_ok=True)
            raise
        folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def _load(self, name: str) -> bytes:
        if name in self._memory:
            return self._memory[name]
        with open(self._folder / name, "rb", opener=_no_link) as file:
            return file.read(MAX_DECODED_BYTES)

    def _lose(self, name: str, cause: str) -> None:
        """Remove a batch unsent and note its time, and the gaps it was to tell, as gaps."""
        with contextlib.suppress(OSError, EOFError, ValueError, zlib.error):
            header = json.loads(split_batch(_unpack(self._load(name)))[0])
            for gap in header["gaps"]:
                if gap["device"] is None:
                    self._note(Gap(**gap))
        self._remove(name)
        match = _NAME.fullmatch(name)
        if match is not None and match[2] > match[1]:
            self._note(Gap(float(match[1]), float(match[2]), cause))

    def _note(self, gap: Gap) -> None:
        """Keep a gap, joined to its neighbour of the same cause."""
        for known in self._gaps:
            if known.cause == gap.cause and known.end >= gap.start and gap.end >= known.start:
                known.start, known.end = min(known.start, gap.start), max(known.end, gap.end)
                return
        self._gaps.append(gap)

    def _remove(self, name: str) -> None:
        self._names.remove(name)
        if self._memory.pop(name, None) is None:
            self._bytes -= self._size(name)
            try:
                (self._folder / name).unlink(missing_ok=True)
            except OSError as error:
                # It will be sent once more by the agent's next life, which the server sees through.
                _log.warning("batch %s can't be deleted: %s", name, error)

    def _set_aside(self, name: str) -> None:
        if name not in self._memory:
            (self._refused / name).hardlink_to(self._folder / name)  # takes no space
        kept = sorted(path for path in self._refused.iterdir() if path.is_file())
        for path in kept[:-REFUSED_FILES]:
            path.unlink()

    def _size(self, name: str) -> int:
        """What a file takes on disk: whole blocks."""
        try:
            size = (self._folder / name).stat().st_size
        except OSError:
            return 0
        return -(-size // _BLOCK_BYTES) * _BLOCK_BYTES

    def _say(self, complaint: str) -> None:
        if complaint != self._complaint:
            self._complaint = complaint
            _log.error("%s", complaint or "the spool takes batches again")


def _unpack(body: bytes) -> bytes:
    """The batch inside; raises where the checksum, the end or the header's line is missing."""
    batch = gzip.decompress(body)
    split_batch(batch)
    return batch


def _no_link(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW)
