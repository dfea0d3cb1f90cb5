"""One HTTP connection to the server, kept alive."""

import contextlib
import http.client
import os
import ssl
import time
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

from flopwatch.wire import BATCH_TYPE, SENT_AT_HEADER

_TIMEOUT_SECONDS = 10
_MOST_ANSWER_BYTES = 65536
_MOST_TOKEN_BYTES = 4096


@dataclass(frozen=True)
class Answer:
    """What the server said to a batch.

    `retry_after_seconds` is its wish, if it had one; `answered_at` is its clock in seconds since
    1970, if it told.
    """

    status: int
    retry_after_seconds: float | None
    text: str
    answered_at: float | None = None


class Connection:
    """Posts batches. Redirects are not followed: they would carry the token elsewhere."""

    def __init__(self, server: str, token_file: Path) -> None:
        """`server` is the URL below which /api/v1/ingest stands; raise ValueError if it is none."""
        self._url = _checked(server)
        self._token_file = token_file
        self._connection: http.client.HTTPConnection | None = None

    def post(self, body: bytes) -> Answer:
        """Post a gzip body; raise OSError or HTTPException where no answer came."""
        kept, self._connection = self._connection, None
        if kept is not None:
            try:
                return self._post(kept, body)
            except ConnectionError:
                pass  # the other side has closed it while it was idle, as servers and proxies do
        return self._post(self._open(), body)

    def _post(self, connection: http.client.HTTPConnection, body: bytes) -> Answer:
        path = f"{self._url.path.rstrip('/')}/api/v1/ingest"
        try:
            connection.request("POST", path, body, self._headers())
            response = connection.getresponse()
            text = response.read(_MOST_ANSWER_BYTES)
        except (OSError, http.client.HTTPException):
            connection.close()
            raise
        if response.isclosed() and not response.will_close:
            self._connection = connection
        else:
            connection.close()
        wish = response.headers.get("Retry-After", "")
        return Answer(
            response.status,
            float(wish) if wish.isascii() and wish.isdigit() else None,
            text.decode(errors="replace"),
            _seconds(response.headers.get("Date", "")),
        )

    def _open(self) -> http.client.HTTPConnection:
        host, port = self._url.hostname or "", self._url.port
        if self._url.scheme == "https":
            context = ssl.create_default_context()
            return http.client.HTTPSConnection(
                host, port, timeout=_TIMEOUT_SECONDS, context=context
            )
        return http.client.HTTPConnection(host, port, timeout=_TIMEOUT_SECONDS)

    def _headers(self) -> dict[str, str]:
        return {
            "Content-Type": BATCH_TYPE,
            "Content-Encoding": "gzip",
            # Read for every post, so that a token can be changed under a running agent.
            "Authorization": f"Bearer {read_token(self._token_file)}",
            SENT_AT_HEADER: f"{time.time():.3f}",
        }


class TokenError(OSError):
    """The token file can't be used as it is."""


def read_token(path: Path) -> str:
    """The token in a file that only its owner may read; raise OSError where that is not so."""
    with path.open("rb") as file:
        mode = os.fstat(file.fileno()).st_mode & 0o777
        if mode & 0o077:
            raise TokenError(f"{path} has mode {mode:04o}: others may read the token; chmod 600 it")
        token = file.read(_MOST_TOKEN_BYTES).decode(errors="replace").strip()
    if not token or not token.isascii() or not token.isprintable():
        raise TokenError(f"{path} holds no token: one line of printable ASCII is expected")
    return token


def _seconds(date: str) -> float | None:
    """An HTTP date in seconds since 1970; None for what is none."""
    try:
        return parsedate_to_datetime(date).timestamp()
    except ValueError:
        return None


def _checked(server: str) -> SplitResult:
    """The URL in parts, at none of which a connection could stumble later."""
    with contextlib.suppress(ValueError):  # of an address, a port or a name that can't be
        url = urlsplit(server)
        host, port = (url.hostname or "").encode("idna"), url.port
        if url.scheme in ("http", "https") and host and port != 0 and url.path.isascii():
            return url
    raise ValueError(f"{server!r} is no http or https URL")
