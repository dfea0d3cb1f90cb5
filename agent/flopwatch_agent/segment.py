"""A segment: one file of the spool, up to 4 MiB of records one after the other.

A record stands in its file as

    header | body | header | state

A header has a mark, by which a reader that met spoilt bytes finds the next one, and a checksum of
its own. It stands before and after the body, so that wherever a byte is flipped or the file torn,
at most one record is lost and its time is still known. The state is one of two words and is
overwritten in place once the server has the record.
"""

import contextlib
import logging
import os
import re
import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from stat import S_ISREG

_log = logging.getLogger(__name__)

SEGMENT_BYTES = 4 << 20
_BLOCK_BYTES = 4096

_MARK = b"\xf1\r\nspool"
_BEFORE, _AFTER = b"<", b">"
_ANY_MARK = re.compile(re.escape(_MARK) + b"[<>]")
_HEADER = struct.Struct("<8scQqqII")
_CHECKSUM = struct.Struct("<I")
_HEADER_BYTES = _HEADER.size + _CHECKSUM.size
_WAITING, _DONE = b"wait", b"done"
_FRAME_BYTES = 2 * _HEADER_BYTES + len(_WAITING)

MOST_RECORDS = SEGMENT_BYTES // _FRAME_BYTES + 1
"""A segment holds no more, however small they are."""


@dataclass(frozen=True, slots=True)
class Record:
    """What its header tells of a body: its place in the order, the time (start, end] of its
    samples in seconds since 1970 (both 0 without any), its bytes and their CRC-32.

    `offset` is where the body begins in its segment.
    """

    sequence: int
    start: int
    end: int
    length: int
    checksum: int
    offset: int = -1

    @property
    def framed_bytes(self) -> int:
        """What it takes in a segment."""
        return self.length + _FRAME_BYTES

    @property
    def state_offset(self) -> int:
        """Where its state stands."""
        return self.offset + self.length + _HEADER_BYTES


def record_of(body: bytes, sequence: int, span: tuple[int, int]) -> Record:
    """The record that a body will be."""
    return Record(sequence, *span, len(body), zlib.crc32(body))


def scan(segment: bytes) -> Iterator[tuple[Record, bool]]:
    """Every record of which a whole header is left, each once and in order; and if it is done.

    Its body may be spoilt all the same: whoever reads it compares the checksum.
    """
    known, body_end = -1, 0
    for mark in _ANY_MARK.finditer(segment):
        found = _header_at(segment, mark.start())
        if found is None or found.sequence <= known or mark.start() < body_end:
            continue
        known, body_end = found.sequence, found.offset + found.length
        state = segment[found.state_offset : found.state_offset + len(_DONE)]
        yield found, state == _DONE


class Segment:
    """One file of records. Every OSError is the caller's to deal with, except where said."""

    def __init__(self, path: Path, waiting: dict[int, Record] | None = None) -> None:
        """`waiting` is None for a file of an earlier life, which `load` reads."""
        self.path = path
        self.waiting = waiting
        self.holes: list[tuple[int, int]] = []  # the times of records of which no header is left
        self.sealed = waiting is None
        self._size = path.lstat().st_size if self.sealed else 0
        self._next = -1

    @property
    def disk_bytes(self) -> int:
        """What it takes on disk: whole blocks."""
        return -(-self._size // _BLOCK_BYTES) * _BLOCK_BYTES

    def has_room(self, record: Record, most_bytes: int) -> bool:
        """Whether the record may be appended: it is the next in order, and there is room."""
        fits = self._size + record.framed_bytes <= most_bytes
        return not self.sealed and record.sequence == self._next and fits

    def load(self) -> dict[int, Record]:
        """The records that wait, by sequence. The file is read once."""
        if self.waiting is None:
            found = list(scan(self._read(0, self._size)))
            self.waiting = {record.sequence: record for record, done in found if not done}
            self.holes = list(_holes(record for record, _ in found))
        return self.waiting

    def append(self, items: Sequence[tuple[Record, bytes]]) -> None:
        """Write records and sync them, all or none; after a failure the segment takes no more."""
        written, offset = [], self._size
        for record, _ in items:
            written.append(replace(record, offset=offset + _HEADER_BYTES))
            offset += record.framed_bytes
        frames = b"".join(map(_framed, written, [body for _, body in items]))
        try:
            self._write(frames)
        except OSError:
            self.sealed = True
            raise
        self._size, self._next = offset, written[-1].sequence + 1
        self.load().update((record.sequence, record) for record in written)

    def read(self, record: Record) -> bytes:
        """The body of a record; raise ValueError where it is spoilt."""
        body = self._read(record.offset, record.length)
        if len(body) != record.length or zlib.crc32(body) != record.checksum:
            raise ValueError(f"record {record.sequence} of {self.path} is spoilt")
        return body

    def mark_done(self, record: Record) -> None:
        """Remember, in the file too, that a record need not be sent any more.

        Not synced: after a crash the record may be sent once more, which the server sees through.
        """
        self.load().pop(record.sequence, None)
        try:
            with _opened(self.path, os.O_WRONLY) as file:
                os.pwrite(file, _DONE, record.state_offset)
        except OSError as error:
            _log.warning("%s can't be marked: %s", self.path, error)

    def delete(self) -> None:
        """Remove the file; where that is refused, its records may be sent once more."""
        try:
            self.path.unlink(missing_ok=True)
        except OSError as error:
            _log.warning("%s can't be deleted: %s", self.path, error)

    def _read(self, offset: int, length: int) -> bytes:
        with _opened(self.path, os.O_RDONLY) as file:
            return os.pread(file, length, offset)

    def _write(self, frames: bytes) -> None:
        fresh = not self._size
        with _opened(self.path, os.O_WRONLY | (os.O_CREAT | os.O_EXCL if fresh else 0)) as file:
            try:
                rest = memoryview(frames)
                while rest:
                    rest = rest[os.pwrite(file, rest, self._size + len(frames) - len(rest)) :]
                os.fsync(file)
            except OSError:
                with contextlib.suppress(OSError):  # what is left there is found to be torn
                    os.ftruncate(file, self._size)
                    if fresh:
                        self.path.unlink()
                raise
        if fresh:
            with _opened(self.path.parent, os.O_RDONLY | os.O_DIRECTORY) as folder:
                os.fsync(folder)


def _header(record: Record, side: bytes) -> bytes:
    header = _HEADER.pack(
        _MARK, side, record.sequence, record.start, record.end, record.length, record.checksum
    )
    return header + _CHECKSUM.pack(zlib.crc32(header))


def _header_at(segment: bytes, at: int) -> Record | None:
    """What a header says, with the place of its body; None where it is spoilt or torn."""
    header = segment[at : at + _HEADER.size]
    if segment[at + _HEADER.size : at + _HEADER_BYTES] != _CHECKSUM.pack(zlib.crc32(header)):
        return None
    _, side, sequence, start, end, length, checksum = _HEADER.unpack(header)
    offset = at + _HEADER_BYTES if side == _BEFORE else at - length
    return Record(sequence, start, end, length, checksum, offset)


def _holes(records: Iterable[Record]) -> Iterator[tuple[int, int]]:
    """The times between records with samples, where a missing sequence tells of another one."""
    before: Record | None = None
    last, is_missing = None, False
    for record in records:
        is_missing |= last is not None and record.sequence > last + 1
        last = record.sequence
        if not record.end:
            continue
        if before is not None and is_missing and record.start > before.end:
            yield before.end, record.start
        before, is_missing = record, False


def _framed(record: Record, body: bytes) -> bytes:
    return _header(record, _BEFORE) + body + _header(record, _AFTER) + _WAITING


def private(path: str | Path, flags: int) -> int:
    """Open a file that is for the agent's eyes only (an opener of `open`)."""
    # Links are not followed, and a FIFO must not make us wait for its other end.
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)


@contextlib.contextmanager
def _opened(path: Path, flags: int) -> Iterator[int]:
    """A descriptor of a folder, or of a file of our own."""
    file = private(path, flags)
    try:
        status = os.fstat(file)
        ours = status.st_uid == os.geteuid() and S_ISREG(status.st_mode)
        if not ours and not flags & os.O_DIRECTORY:
            raise PermissionError(f"{path} is not a file of our own")
        yield file
    finally:
        os.close(file)
