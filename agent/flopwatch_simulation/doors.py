"""The two doors of a server: batches of agents, and the scheduler feed, over one connection."""

import gzip
import json
import time
from array import array
from collections.abc import Callable, Iterable
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any
from urllib.parse import urlsplit

from flopwatch.wire import BATCH_TYPE, SENT_AT_HEADER, Batch, encode_batch

INGEST_PATH = "/api/v1/ingest"
FEED_PATH = "/api/v1/feed"
FEED_TYPE = "application/x-ndjson"
_TIMEOUT_SECONDS = 30


class Unreachable(Exception):
    """The server does not answer or is overloaded: try again later."""


class Refused(Exception):
    """The server refuses what it got, and would again: a wrong token, a wrong address."""


class Doors:
    """Posts to one server. `address` is its URL, `node_token` and `feed_token` open the doors."""

    def __init__(
        self,
        address: str,
        node_token: str,
        feed_token: str,
        clock: Callable[[], float] = time.time,
    ) -> None:
        parts = urlsplit(address)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{address} is not the URL of a server, such as http://localhost:8260")
        kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        self._connection = kind(parts.hostname, parts.port, timeout=_TIMEOUT_SECONDS)
        self._base = parts.path.rstrip("/")
        self._node_token = node_token
        self._feed_token = feed_token
        self._clock = clock

    def send_batch(self, batch: Batch, values: "array[float]") -> None:
        """Post one batch; raise Unreachable or Refused."""
        body = gzip.compress(encode_batch(batch, values), compresslevel=1)
        headers = {
            "Content-Type": BATCH_TYPE,
            "Content-Encoding": "gzip",
            SENT_AT_HEADER: f"{self._clock():.3f}",
        }
        self._post(INGEST_PATH, self._node_token, headers, body)

    def send_feed(self, lines: Iterable[dict[str, Any]]) -> None:
        """Post one body of JSON lines; raise Unreachable or Refused."""
        body = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
        self._post(FEED_PATH, self._feed_token, {"Content-Type": FEED_TYPE}, body.encode())

    def close(self) -> None:
        """Hang up; the next post opens a new connection, which no server has timed out."""
        self._connection.close()

    def _post(self, path: str, token: str, headers: dict[str, str], body: bytes) -> None:
        headers = headers | {"Authorization": f"Bearer {token}"}
        try:
            self._connection.request("POST", self._base + path, body, headers)
            answer = self._connection.getresponse()
            told = answer.read()
        except (OSError, HTTPException) as error:
            self.close()
            raise Unreachable(f"{path}: {error or type(error).__name__}") from error
        if answer.status == 429 or answer.status >= 500:
            raise Unreachable(f"{path}: {answer.status} {answer.reason}")
        if answer.status >= 300:
            text = told.decode(errors="replace")[:500]
            raise Refused(f"{path}: {answer.status} {answer.reason}: {text}")
