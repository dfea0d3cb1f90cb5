"""Answers as they cross the wire."""

import http.client
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread

import uvicorn
from starlette.types import Receive, Scope, Send
from websockets.sync.client import connect

from flopwatch_dashboard.protocol import OnePieceProtocol
from tests.lab.processes import wait_for

PIECE_BYTES = 16 * 1024
PIECES = 200


async def answer(scope: Scope, receive: Receive, send: Send) -> None:
    """Tells what it was asked for: a word, many pieces, or a websocket's own words."""
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.accept"})
        message = await receive()
        for word in message["text"].split():
            await send({"type": "websocket.send", "text": word})
        await send({"type": "websocket.close"})
        return
    await receive()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    if scope["path"] == "/long":
        for number in range(PIECES):
            piece = bytes([number]) * PIECE_BYTES
            await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": b"done"})


@contextmanager
def serving() -> Iterator[int]:
    """The port of a server in a thread of this process."""
    config = uvicorn.Config(
        answer, host="127.0.0.1", port=0, lifespan="off", log_level="error", http=OnePieceProtocol
    )
    server = uvicorn.Server(config)
    thread = Thread(target=server.run)
    thread.start()
    try:
        wait_for(lambda: server.started, "the server starts", 60, pause=0.05)
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        thread.join()


def segments_with_data(connection: socket.socket) -> int:
    """How many segments with data came in: `tcpi_data_segs_in` of Linux's tcp_info, at byte 152."""
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 160)
    return int(struct.unpack_from("=I", info, 152)[0])


def test_every_answer_comes_in_one_segment() -> None:
    with serving() as port:
        client = http.client.HTTPConnection("127.0.0.1", port)
        for _ in range(20):
            client.request("GET", "/")
            assert client.getresponse().read() == b"done"
        assert segments_with_data(client.sock) == 20
        client.close()


def test_an_answer_of_many_pieces_comes_whole_and_in_order() -> None:
    with serving() as port:
        client = http.client.HTTPConnection("127.0.0.1", port)
        client.request("GET", "/long", headers={"connection": "close"})
        body = client.getresponse().read()
    assert body == b"".join(bytes([number]) * PIECE_BYTES for number in range(PIECES)) + b"done"


def test_a_websocket_speaks_on_after_the_handshake() -> None:
    with serving() as port, connect(f"ws://127.0.0.1:{port}/") as client:
        client.send("one two three")
        assert list(client) == ["one", "two", "three"]
