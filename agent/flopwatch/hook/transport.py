"""The way of a report to the node's agent: one datagram that may be lost, and never waits.

The socket is not connected: `sendto` finds an agent again after it was restarted, where a connected
socket would fail for ever. Counters are cumulative, so a lost datagram costs nothing.
"""

import os
import socket

from flopwatch.wire import DEFAULT_SOCKET, Report, encode_report


class Transport:
    """Sends reports from the process that made it, and from no fork of it."""

    def __init__(self) -> None:
        self._path = os.environ.get("FLOPWATCH_SOCKET") or DEFAULT_SOCKET
        self._pid = os.getpid()
        self._socket: socket.socket | None = None
        self.dropped = 0

    @property
    def is_own_process(self) -> bool:
        """False in a forked child, such as a worker that loads data."""
        return os.getpid() == self._pid

    def send(self, report: Report) -> None:
        """Send a report without waiting; if that fails for any reason, count it as dropped."""
        if not self.is_own_process:
            return
        datagram = encode_report(report)
        try:
            if self._socket is None:
                self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self._socket.sendto(datagram, socket.MSG_DONTWAIT, self._path)
        except OSError:
            # No agent, a stale socket, a full queue, no descriptor left: the run must not notice.
            self.dropped += 1
