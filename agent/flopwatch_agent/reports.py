"""The socket that training processes write to.

Only the kernel's word counts for who sent a report: pid and user from SCM_CREDENTIALS. Whose job
that process is in, `ownership.claims` says. A flood costs its sender's reports, not the agent's
memory.
"""

import logging
import socket
import struct
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable
from pathlib import Path
from stat import S_ISSOCK

from flopwatch.wire import MAX_ENTRIES, MAX_REPORT_BYTES, AttributedReport, decode_report

_log = logging.getLogger(__name__)

_CREDENTIALS = struct.Struct("iII")  # struct ucred: pid, uid, gid (unix(7))
_MOST_JOBS_REMEMBERED = 4096

MOST_BYTES_OF_USER = 1 << 20
MOST_BYTES = 4 << 20

_LEAST_BYTES = -(-MOST_BYTES // MAX_ENTRIES)
"""A smaller report counts as this many, so that no more are kept than a batch may hold."""

_Sender = tuple[int, int, str]
"""Pid, uid and what the process drew for itself: nobody becomes another user's process."""

JobOf = Callable[[int, int], int | None]
"""The job of a process, by the pid and the user that the kernel names; None where none is sure."""


class ReportBook:
    """The newest report of each process since the last `take`."""

    def __init__(self, job_of: JobOf, now: Callable[[], float]) -> None:
        self._job_of = job_of
        self._now = now
        self._lock = threading.Lock()
        self._newest: dict[_Sender, tuple[AttributedReport, int]] = {}
        self._bytes: Counter[int] = Counter()
        self._jobs: OrderedDict[_Sender, int | None] = OrderedDict()
        self._sequences: OrderedDict[_Sender, int] = OrderedDict()
        self._refused = 0
        self._refused_for = ""

    def add(self, datagram: bytes, pid: int, uid: int) -> None:
        """Keep a report; one that is malformed or too much is only counted.

        The kernel says pid 0 of a sender outside of the agent's PID namespace.
        """
        if pid == 0:
            self._refuse("its sender is outside of the agent's PID namespace")
            return
        try:
            report = decode_report(datagram)
        except ValueError as error:
            self._refuse(str(error))
            return
        sender = (pid, uid, report.boot)
        attributed = AttributedReport(report, pid, uid, self._job(sender), self._now())
        with self._lock:
            if report.sequence <= self._sequences.get(sender, -1):
                return
            size = max(len(datagram), _LEAST_BYTES)
            grown = size - (self._newest[sender][1] if sender in self._newest else 0)
            if (
                self._bytes[uid] + grown > MOST_BYTES_OF_USER
                or self._bytes.total() + grown > MOST_BYTES
            ):
                self._refuse("too many reports at once")
                return
            self._bytes[uid] += grown
            self._newest[sender] = (attributed, size)
            _remember(self._sequences, sender, report.sequence)

    def take(self) -> list[AttributedReport]:
        """The newest report of each process that sent one since the last call."""
        with self._lock:
            taken = [report for report, _ in self._newest.values()]
            self._newest.clear()
            self._bytes.clear()
        return taken

    def complain(self) -> None:
        """Log how many were refused since the last call, and why the last one was."""
        count, self._refused = self._refused, 0
        if count:
            _log.warning("%d reports refused, the last because %.200r", count, self._refused_for)

    def _refuse(self, cause: str) -> None:
        self._refused += 1
        self._refused_for = cause

    def _job(self, sender: _Sender) -> int | None:
        """A last report may come from a process that is gone: its job is remembered."""
        pid, uid, _boot = sender
        job = self._job_of(pid, uid)
        if job is None:
            return self._jobs.get(sender)
        _remember(self._jobs, sender, job)
        return job


class ReportSocket:
    """Drains the datagram socket into a book, in a thread of its own: its queue is ten deep."""

    def __init__(self, path: Path, book: ReportBook) -> None:
        """Bind the socket; raise OSError where that is impossible."""
        self._book = book
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        if path.exists() and S_ISSOCK(path.lstat().st_mode):
            path.unlink()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._socket.bind(str(path))
        path.chmod(0o666)

    def start(self) -> None:
        """Begin to drain."""
        threading.Thread(target=self._drain, name="reports", daemon=True).start()

    def _drain(self) -> None:
        while True:
            # One byte more than a report may have: a longer one is seen to be too long.
            datagram, ancillary, _flags, _address = self._socket.recvmsg(
                MAX_REPORT_BYTES + 1, socket.CMSG_SPACE(_CREDENTIALS.size)
            )
            for level, kind, data in ancillary:
                if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS):
                    pid, uid, _gid = _CREDENTIALS.unpack(data)
                    self._book.add(datagram, pid, uid)


def _remember(memory: OrderedDict[_Sender, int | None] | OrderedDict[_Sender, int],
              sender: _Sender, value: int) -> None:  # fmt: skip
    memory[sender] = value
    memory.move_to_end(sender)
    if len(memory) > _MOST_JOBS_REMEMBERED:
        memory.popitem(last=False)
