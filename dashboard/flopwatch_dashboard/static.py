"""Files that never change while the server runs: small, compressed beforehand, cached for long.

Dash compresses nothing or everything anew at each request; brotli at its best takes seconds for a
large bundle. So a file is sent quickly compressed the first time anybody asks for it, and at its
best from then on: that is made in a thread, once for ever, kept by the hash of the content.
"""

import asyncio
import gzip
import hashlib
import logging
import os
import re
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import brotli  # type: ignore[import-untyped]
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HERE = Path(__file__).parent
ASSETS = HERE / "assets"
PLOTLY = HERE / "vendor" / "plotly-cartesian.min.js"
PLOTLY_PATH = "/_dash-component-suites/plotly/package_data/plotly.min.js"
FONT_URL = "/assets/fonts/inter-latin-opsz-5.3.0.woff2"

_PREFIXES = ("/_dash-component-suites/", "/assets/", "/_favicon")
_FINGERPRINT = re.compile(r"\.v[\w.]+m\d+\.|/fonts/|-[0-9a-f]{16}\.(css|js|svg)$")
_FOR_A_YEAR = "public, max-age=31536000, immutable"
_ASK_AGAIN = "public, no-cache"
_COMPRESSIBLE = ("text/", "application/javascript", "application/json", "image/svg")
_TYPES = {
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
_QUICK = 5
_BEST = 11
_MOST_FILES = 256
_logger = logging.getLogger(__name__)


@dataclass
class StaticFile:
    """One file as it is sent; `encoded` fills up with its compressed forms."""

    body: bytes
    media_type: str
    digest: str = field(init=False)
    encoded: dict[str, bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.digest = hashlib.sha256(self.body).hexdigest()

    @property
    def compressible(self) -> bool:
        return self.media_type.startswith(_COMPRESSIBLE)


@dataclass(frozen=True)
class OurFiles:
    """Our files at addresses that hold the hash of their content: what may be cached for ever."""

    css: str
    js: str
    head: str
    icon: str
    files: dict[str, StaticFile]


def our_files() -> OurFiles:
    """All style sheets as one file, all scripts as one, and the two that come before them."""
    found: dict[str, StaticFile] = {PLOTLY_PATH: StaticFile(PLOTLY.read_bytes(), _TYPES["js"])}

    def add(name: str, kind: str, paths: Iterable[Path]) -> str:
        file = StaticFile(b"\n".join(path.read_bytes() for path in paths), _TYPES[kind])
        url = f"/assets/{name}-{file.digest[:16]}.{kind}"
        found[url] = file
        return url

    return OurFiles(
        css=add("flopwatch", "css", sorted((ASSETS / "css").glob("*.css"))),
        js=add("flopwatch", "js", sorted((ASSETS / "js").glob("*.js"))),
        head=add("head", "js", [ASSETS / "head.js"]),
        icon=add("icon", "svg", [ASSETS / "favicon.svg"]),
        files=found,
    )


class StaticFiles:
    """ASGI middleware outside of everything: answers for files, asks the inside once for each.

    `given` are files at fixed paths. These files are the same for everybody and hold no data, so
    they need no sign-in.
    """

    def __init__(self, app: ASGIApp, given: dict[str, StaticFile], cache: Path) -> None:
        self._app = app
        self._given = given
        self._files: dict[str, StaticFile] = {}
        self._cache = cache
        self._work: set[asyncio.Task[None]] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_file = scope["type"] == "http" and scope["path"].startswith(_PREFIXES)
        if not is_file or scope["method"] != "GET":
            await self._app(scope, receive, send)
            return
        path: str = scope["path"]
        file = self._given.get(path) or self._files.get(path)
        if file is None:
            start, body = await _ask(self._app, scope, receive)
            media_type = Headers(raw=start["headers"]).get("content-type", "")
            if start["status"] != 200:
                await send(start)
                await send({"type": "http.response.body", "body": body})
                return
            file = StaticFile(body, media_type)
            if len(self._files) >= _MOST_FILES:  # made-up fingerprints must not fill the memory
                self._files.clear()
            self._files[path] = file
        response = await self._response(file, path, Headers(scope=scope))
        await response(scope, receive, send)

    async def _response(self, file: StaticFile, path: str, headers: Headers) -> Response:
        etag = f'"{file.digest[:32]}"'
        answer = {
            "etag": etag,
            "cache-control": _FOR_A_YEAR if _FINGERPRINT.search(path) else _ASK_AGAIN,
            "vary": "accept-encoding",
            "x-content-type-options": "nosniff",
        }
        if headers.get("if-none-match", "").removeprefix("W/") == etag:
            return Response(status_code=304, headers=answer)
        body = file.body
        accepted = headers.get("accept-encoding", "")
        if file.compressible and "br" in accepted:
            body, answer["content-encoding"] = await self._brotli(file), "br"
        elif file.compressible and "gzip" in accepted:
            body, answer["content-encoding"] = await self._gzip(file), "gzip"
        return Response(body, headers=answer, media_type=file.media_type)

    async def _brotli(self, file: StaticFile) -> bytes:
        if "br" not in file.encoded:
            file.encoded["br"] = await asyncio.to_thread(self._kept_or_quick, file)
            if not self._kept(file).exists():
                task = asyncio.create_task(self._improve(file))
                self._work.add(task)
                task.add_done_callback(self._work.discard)
        return file.encoded["br"]

    async def _gzip(self, file: StaticFile) -> bytes:
        if "gzip" not in file.encoded:
            file.encoded["gzip"] = await asyncio.to_thread(gzip.compress, file.body, 6, mtime=0)
        return file.encoded["gzip"]

    def _kept(self, file: StaticFile) -> Path:
        return self._cache / f"{file.digest}.br"

    def _kept_or_quick(self, file: StaticFile) -> bytes:
        if self._kept(file).exists():
            return self._kept(file).read_bytes()
        return bytes(brotli.compress(file.body, quality=_QUICK))

    async def _improve(self, file: StaticFile) -> None:
        file.encoded["br"] = await asyncio.to_thread(brotli.compress, file.body, quality=_BEST)
        try:
            await asyncio.to_thread(_write, self._kept(file), file.encoded["br"])
        except OSError as error:  # a full or read-only disk costs only the work at the next start
            _logger.warning("compressed file is not kept: %s", error)


def _write(path: Path, content: bytes) -> None:
    """Write a file whole or not at all, since another process may read it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as draft:
        draft.write(content)
    os.replace(draft.name, path)


async def _ask(app: ASGIApp, scope: Scope, receive: Receive) -> tuple[dict[str, Any], bytes]:
    """The whole answer of the inside, not compressed and not conditional."""
    asked = (b"accept-encoding", b"if-none-match", b"if-modified-since", b"range")
    plain = {**scope, "headers": [pair for pair in scope["headers"] if pair[0] not in asked]}
    start: dict[str, Any] = {}
    chunks: list[bytes] = []

    async def collect(message: Message) -> None:
        if message["type"] == "http.response.start":
            start.update(message)
        else:
            chunks.append(message.get("body", b""))

    await app(plain, receive, collect)
    return start, b"".join(chunks)
