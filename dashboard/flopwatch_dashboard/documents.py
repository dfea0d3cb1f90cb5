"""The HTML document: one for all addresses, with the right status, policy and nonce.

Dash answers every path with the same document and 200. Here an address that names nothing becomes
404, and the document gets its Content-Security-Policy.
"""

import secrets
from collections.abc import Awaitable, Callable, Sequence
from urllib.parse import quote

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

NONCE_PLACEHOLDER = "nonce-of-this-response"
_NONCE_BYTES = 16

Exists = Callable[[str, str], Awaitable[bool]]
"""Whether a path with a query string names something that may be seen."""


def content_security_policy(script_hashes: Sequence[str], nonce: str) -> str:
    """Everything from this server; inline only the renderer's script and what charts style.

    Plotly sets style attributes, even in its strict bundle, and draws heat maps as data: images;
    a chart saved as PNG is a blob: image. assets/head.js gives the nonce to style elements that
    libraries make. Found by walking all pages with violation events on.
    """
    return "; ".join(
        (
            "default-src 'none'",
            f"script-src 'self' {' '.join(script_hashes)}",
            f"style-src-elem 'self' 'nonce-{nonce}'",
            "style-src-attr 'unsafe-inline'",
            "img-src 'self' data: blob:",
            "connect-src 'self'",
            "font-src 'self'",
            "worker-src 'self'",
            "base-uri 'none'",
            "form-action 'self'",
            "frame-ancestors 'none'",
        )
    )


class Documents:
    """ASGI middleware around Dash: status, policy and nonce of every document it answers."""

    def __init__(self, app: ASGIApp, exists: Exists, script_hashes: Sequence[str]) -> None:
        self._app = app
        self._exists = exists
        self._script_hashes = script_hashes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] not in ("GET", "HEAD"):
            await self._app(scope, receive, send)
            return
        path: str = scope["path"]
        if _is_page(path) and path != "/" and path.endswith("/"):
            query = scope["query_string"].decode("latin-1")
            there = quote("/" + path.strip("/")) + (f"?{query}" if query else "")
            await RedirectResponse(there, 308)(scope, receive, send)
            return
        await self._app(scope, receive, self._dressed(scope, send))

    def _dressed(self, scope: Scope, send: Send) -> Send:
        nonce = secrets.token_urlsafe(_NONCE_BYTES)
        is_document = False

        async def sender(message: Message) -> None:
            nonlocal is_document
            if message["type"] == "http.response.start":
                is_document = _is_document(scope["path"], message)
                if is_document:
                    message = await self._with_status(scope, message, nonce)
            elif is_document:
                body = message.get("body", b"")
                message = {**message, "body": _with_nonce(body, nonce)}
            await send(message)

        return sender

    async def _with_status(self, scope: Scope, message: Message, nonce: str) -> Message:
        exists = await self._exists(scope["path"], scope["query_string"].decode("latin-1"))
        message = {**message, "status": message["status"] if exists else 404}
        headers = MutableHeaders(scope=message)
        headers["content-security-policy"] = content_security_policy(self._script_hashes, nonce)
        return message


def _is_page(path: str) -> bool:
    return not path.startswith(("/api/", "/_", "/assets/", "/sign-"))


def _is_document(path: str, start: Message) -> bool:
    kind = Headers(raw=start["headers"]).get("content-type", "")
    return start["status"] == 200 and kind.startswith("text/html") and _is_page(path)


def _with_nonce(body: bytes, nonce: str) -> bytes:
    """The nonce is as long as its placeholder, so the document's length stays as it was told."""
    return body.replace(NONCE_PLACEHOLDER.encode(), nonce.encode())
