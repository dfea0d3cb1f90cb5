"""HTTP as uvicorn speaks it, but with every answer in one piece."""

import asyncio
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_MOST_GATHERED_BYTES = 64 * 1024


class OnePieceProtocol(HttpToolsProtocol):
    """Sends the head of an answer and its body together.

    uvicorn writes them one after the other. Each write costs the server as much as checking a
    token, and wakes the client once more than it has something to do.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Speak through a transport that gathers what is written."""
        super().connection_made(cast(asyncio.Transport, _Gathering(transport, self.loop)))


class _Gathering:
    """A transport that writes at the end of the loop's turn what was written during the turn."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._gathered = bytearray()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Keep `data` for the end of the turn, unless that becomes too much."""
        if not self._gathered:
            self._loop.call_soon(self._flush)
        self._gathered += data
        if len(self._gathered) > _MOST_GATHERED_BYTES:
            self._flush()

    def close(self) -> None:
        """Write what is left, then close."""
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        if self._gathered:
            self._transport.write(bytes(self._gathered))
            self._gathered.clear()
