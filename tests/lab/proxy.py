"""A proxy between a browser and a server, of the kind that knows nothing of websockets."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_CHUNK = 64 * 1024
_REFUSAL = b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


class Proxy:
    """Passes bytes on to a port of the loopback. While it is `narrow` it refuses every Upgrade."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.narrow = True
        self.refused = 0
        self._accepting = threading.Thread(target=self._accept)

    def start(self) -> None:
        """Begin to take connections."""
        self._accepting.start()

    def stop(self) -> None:
        """Take no more connections."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._accepting.join()
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):  # the listener was shut down
            while True:
                browser, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(browser,), daemon=True).start()

    def _serve(self, browser: socket.socket) -> None:
        """A browser opens a connection of its own for a websocket: its first bytes tell."""
        with browser, suppress(OSError):
            first = browser.recv(_CHUNK)
            if self.narrow and b"upgrade: websocket" in first.lower():
                self.refused += 1
                browser.sendall(_REFUSAL)
                return
            with socket.create_connection(("127.0.0.1", self._target)) as server:
                server.sendall(first)
                back = threading.Thread(target=_pass, args=(server, browser), daemon=True)
                back.start()
                _pass(browser, server)
                back.join()


def _pass(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):  # either side may leave at any time
        while chunk := source.recv(_CHUNK):
            target.sendall(chunk)
        target.shutdown(socket.SHUT_WR)


@contextmanager
def proxy(port: int) -> Iterator[Proxy]:
    """A proxy before a port for as long as the block lasts."""
    found = Proxy(port)
    found.start()
    try:
        yield found
    finally:
        found.stop()
