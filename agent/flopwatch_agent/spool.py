"""The queue on disk: a batch is written and synced here before it is sent, and kept until the
server has it.

Batches stand in segments (segment.py), oldest first by their sequence: no clock has a say. What the
disk does not take waits in memory. Whatever is lost becomes a gap (gaps.py).
"""

import errno
import fcntl
import gzip
import itertools
import logging
import os
import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from flopwatch.wire import Gap
from flopwatch_agent.gaps import GapBook
from flopwatch_agent.segment import MOST_RECORDS, SEGMENT_BYTES, Record, Segment, private, record_of

_log = logging.getLogger(__name__)

DEFAULT_BYTES = 1 << 30
MEMORY_BATCHES = 360
"""An hour of batches, kept in memory while the disk takes none."""
REFUSED_BYTES = 4 << 20

_READ_NEVER = (errno.EIO, errno.ENOENT)  # a bad block, a file that somebody deleted
_NAME = re.compile(r"(\d{20})\.segment")
_WRITTEN_AT_ONCE = 16
_LAST_WAIT_SECONDS = 1.0
_SPOILT = "a spool file was spoilt"


class SpoolBusy(OSError):
    """Another agent works on the same folder."""


@dataclass(frozen=True)
class SpooledBatch:
    """An encoded batch, the time (start, end] of its samples ((0, 0) without any), and the gaps of
    the whole node that it tells."""

    body: bytes
    span: tuple[int, int]
    gaps: list[Gap] = field(default_factory=list)


class Spool:
    """Batches that the server has not yet answered. Safe to use from several threads."""

    def __init__(
        self, folder: Path, most_bytes: int = DEFAULT_BYTES, memory_batches: int = MEMORY_BATCHES
    ) -> None:
        """Lock the folder; raise SpoolBusy where another agent has it."""
        self._folder = folder
        self._refused = folder / "refused"
        self._most_bytes = most_bytes
        self._segment_bytes = min(SEGMENT_BYTES, most_bytes // 4)
        self._memory_batches = memory_batches
        self._lock = threading.RLock()
        self._folder_lock: int | None = None
        self._segments: list[Segment] = []
        self._unreadable: set[Segment] = set()
        self._memory: dict[int, tuple[Record, bytes]] = {}
        self._gaps = GapBook(folder / "gaps.json")
        self._sequence = 0
        self._complaint = ""
        try:
            self._enter()
        except SpoolBusy:
            raise
        except OSError as error:
            self._complain(error)

    def close(self) -> None:
        """Leave the folder to the next agent."""
        if not self._lock.acquire(timeout=_LAST_WAIT_SECONDS):
            return  # the disk hangs; the folder is free once this process has ended
        for segment in self._segments:
            segment.sealed = True
        self._tidy()
        if self._folder_lock is not None:
            os.close(self._folder_lock)
            self._folder_lock = None
        self._lock.release()

    def put(self, batches: Sequence[SpooledBatch]) -> None:
        """Keep batches: on disk and synced, or in memory while the disk refuses."""
        with self._lock:
            for batch in batches:
                body = gzip.compress(batch.body, compresslevel=6, mtime=0)
                self._gaps.carried(self._remember(body, batch.span), batch.gaps)
            self._write_memory()
            for segment in self._segments[:-1]:
                if self._bytes() > self._most_bytes:
                    self._drop(segment)
            excess = max(0, len(self._memory) - self._memory_batches)
            spare = [record for record, _ in itertools.islice(self._memory.values(), excess)]
            self.lose(spare, "the spool could not be written")

    def newest(self) -> Record | None:
        """The newest batch that waits."""
        with self._lock:
            if self._memory:
                return next(reversed(self._memory.values()))[0]
            for segment in reversed(self._segments):
                if waiting := self._load(segment):
                    return next(reversed(waiting.values()))
            return None

    def oldest(self, count: int = 1) -> list[Record]:
        """Up to so many of the oldest batches that wait, in order."""
        with self._lock:
            for segment in list(self._segments):
                if waiting := self._load(segment):
                    return list(itertools.islice(waiting.values(), count))
            return [record for record, _ in itertools.islice(self._memory.values(), count)]

    def read(self, record: Record) -> bytes | None:
        """The gzip body of a batch, or None if it is gone or turned out to be spoilt.

        Raises OSError while it can't be read for a reason that may pass; then nothing is lost.
        """
        with self._lock:
            if record.sequence in self._memory:
                return self._memory[record.sequence][1]
            segment = self._segment_of(record)
            if segment is None:
                return None
            try:
                return segment.read(record)
            except (OSError, ValueError) as error:
                if isinstance(error, OSError) and error.errno not in _READ_NEVER:
                    raise
                _log.error("a batch is lost: %s", error)
                self.lose([record], _SPOILT)
                return None

    def done(self, records: Sequence[Record]) -> None:
        """Forget batches that the server has."""
        with self._lock:
            for record in records:
                self._gaps.delivered(record.sequence)
                self._remove(record)
            self._gaps.save()
            self._tidy()

    def lose(self, records: Sequence[Record], cause: str) -> None:
        """Give batches up unsent: their time, and the gaps that they were to tell, become gaps."""
        with self._lock:
            for record in records:
                self._note_loss(record, cause)
            self._gaps.save()  # before the batch is gone
            for record in records:
                self._remove(record)
            self._tidy()

    def refuse(self, record: Record, cause: str) -> None:
        """Set aside a batch that the server will never take, for a person to look at."""
        with self._lock:
            body = self.read(record)
            if body is None:
                return
            try:
                self._set_aside(record, body)
            except OSError as error:
                _log.warning("batch %d can't be set aside: %s", record.sequence, error)
            self.lose([record], cause)

    def take_gaps(self) -> list[Gap]:
        """What was lost, for the next batch to tell. Never waits for the disk."""
        return self._gaps.take()

    def _enter(self) -> None:
        """Lock the folder and take over what an earlier life left there; once in a life."""
        if self._folder_lock is not None:
            return
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = private(self._folder / "lock", os.O_RDONLY | os.O_CREAT)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._gaps.load()
            self._segments = self._found()
        except BlockingIOError as error:
            os.close(lock)
            raise SpoolBusy(f"another agent works on the spool {self._folder}") from error
        except OSError:
            os.close(lock)
            raise
        self._folder_lock = lock
        if self._segments:
            # No sequence of the newest segment is beyond this, so it need not be read now.
            newest = int(self._segments[-1].path.stem)
            self._sequence = max(self._sequence, newest + MOST_RECORDS)
        for record, body in [self._memory.pop(sequence) for sequence in list(self._memory)]:
            self._gaps.returned(record.sequence)
            self._remember(body, (record.start, record.end))

    def _found(self) -> list[Segment]:
        names = sorted(
            entry.name
            for entry in os.scandir(self._folder)
            if _NAME.fullmatch(entry.name) and entry.is_file(follow_symlinks=False)
        )
        return [Segment(self._folder / name) for name in names]

    def _remember(self, body: bytes, span: tuple[int, int]) -> int:
        self._sequence += 1
        self._memory[self._sequence] = record_of(body, self._sequence, span), body
        return self._sequence

    def _write_memory(self) -> None:
        """Move to disk what is in memory, oldest first, as far as the disk takes it."""
        try:
            self._enter()
            while self._memory:
                segment = self._writable(next(iter(self._memory.values()))[0])
                items: list[tuple[Record, bytes]] = []
                room = self._segment_bytes - segment.disk_bytes
                for record, body in itertools.islice(self._memory.values(), _WRITTEN_AT_ONCE):
                    room -= record.framed_bytes
                    if items and (room < 0 or record.sequence != items[-1][0].sequence + 1):
                        break
                    items.append((record, body))
                segment.append(items)
                if segment not in self._segments:
                    self._segments.append(segment)
                for record, _ in items:
                    del self._memory[record.sequence]
        except OSError as error:
            self._complain(error)
        else:
            self._say("")
        self._gaps.save()

    def _writable(self, record: Record) -> Segment:
        """The segment that takes the next record: the last one, or a new one."""
        if self._segments and self._segments[-1].has_room(record, self._segment_bytes):
            return self._segments[-1]
        for segment in self._segments:
            segment.sealed = True
        self._tidy()
        number = record.sequence
        while os.path.lexists(path := self._folder / f"{number:020d}.segment"):
            number += 1  # somebody else's, or one that could not be deleted
        return Segment(path, waiting={})

    def _load(self, segment: Segment) -> dict[int, Record]:
        """The records that wait in a segment; none while it can't be read, which may pass."""
        try:
            waiting = segment.load()
        except OSError as error:
            if segment not in self._unreadable:
                _log.error("a segment is left alone for now: %s", error)
            self._unreadable.add(segment)
            return {}
        self._unreadable.discard(segment)
        while segment.holes:
            start, end = segment.holes.pop()
            _log.error("batches of %d s in %s are spoilt", end - start, segment.path)
            self._gaps.note(Gap(float(start), float(end), _SPOILT))
        if not waiting:
            self._gaps.save()
            self._tidy()
        return waiting

    def _tidy(self) -> None:
        """Delete segments of which no record waits and to which none will be added."""
        for segment in [each for each in self._segments if each.sealed and each.waiting == {}]:
            segment.delete()
            self._segments.remove(segment)

    def _drop(self, segment: Segment) -> None:
        """Make room: lose what waits in a segment and delete it, unless it can't be read."""
        for record in self._load(segment).values():
            self._note_loss(record, "the spool was full")
        self._gaps.save()
        if segment in self._segments and segment not in self._unreadable:
            segment.delete()
            self._segments.remove(segment)

    def _note_loss(self, record: Record, cause: str) -> None:
        self._gaps.returned(record.sequence)
        if record.end > record.start:
            self._gaps.note(Gap(float(record.start), float(record.end), cause))

    def _remove(self, record: Record) -> None:
        segment = self._segment_of(record)
        if segment is not None:
            segment.mark_done(record)
        self._memory.pop(record.sequence, None)

    def _segment_of(self, record: Record) -> Segment | None:
        for segment in self._segments:
            if segment.waiting and record.sequence in segment.waiting:
                return segment
        return None

    def _bytes(self) -> int:
        return sum(each.disk_bytes for each in self._segments if each not in self._unreadable)

    def _set_aside(self, record: Record, body: bytes) -> None:
        self._refused.mkdir(mode=0o700, exist_ok=True)
        name = f"{record.sequence:020d}-{record.checksum:08x}.batch"
        with open(self._refused / name, "wb", opener=private) as file:
            file.write(body)
        kept_bytes = 0
        for path in sorted(self._refused.iterdir(), key=lambda path: -path.lstat().st_mtime_ns):
            kept_bytes += path.lstat().st_size
            if kept_bytes > REFUSED_BYTES:
                path.unlink()

    def _complain(self, error: OSError) -> None:
        self._say(f"the spool {self._folder} takes no batch ({error}); they wait in memory")

    def _say(self, complaint: str) -> None:
        if complaint != self._complaint:
            self._complaint = complaint
            _log.error("%s", complaint or "the spool takes batches again")
