"""How fast the server takes what agents send: `python -m benchmarks.ingest`.

A real `flopwatch server`, with its periodic work going on and its own PostgreSQL, gets

* live posts: as agents send them every 10 s, one new interval of a node with 8 GPUs each, all nodes
  in turn, round after round;
* a back-fill: as after an outage, ten minutes a post;
* some of the live posts a second time.

32 kept connections from a process of its own each wait for their answer before they post again.
Bodies are packed, the token is checked, and the answer comes after a durable commit. Client, server
and database share the machine. The last line is JSON:

* `live_posts_per_s`, `p50_ms`, `p99_ms`: of live posts.
* `backfill_rows_per_s`: of the back-fill.
* `copy_rows_per_s`: what COPY alone does with rows of the same 24 columns that are encoded already,
  4,800 a transaction, into the same keyed, partitioned table.
* `ratio_to_copy`: the back-fill over that.
* `resend_rows_added`: rows more after the second time; anything but 0 is wrong.
* `bytes_per_row`: of samples on disk, with the key's index.
"""

import asyncio
import gzip
import json
import re
import tempfile
import time
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
import psycopg
import uvloop
from tests.lab.processes import Server

from flopwatch import wire
from flopwatch.metrics import COLUMNS, METRICS
from flopwatch_server.database.copy import Keys, encode, timestamps
from flopwatch_server.database.engine import Database

CONNECTIONS = 32
GPUS = 8
NODES = 500
LIVE_INTERVALS = 20
BACKFILL_POSTS = 600
BACKFILL_INTERVALS = 60
RESENT_POSTS = 100
COPY_ROWS_A_TRANSACTION = 4_800
_CONTENT_LENGTH = re.compile(rb"content-length: (\d+)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Load:
    """What a run of posts took."""

    seconds: float
    latencies_seconds: list[float]

    def percentile_ms(self, percent: float) -> float:
        return float(np.percentile(self.latencies_seconds, percent)) * 1000


def request(node: int, end: int, intervals: int, token: str) -> bytes:
    """One whole HTTP post of a node with 8 busy GPUs, `intervals` samples of each up to `end`."""
    generator = np.random.default_rng(node * 100_003 + end)
    values = generator.random((GPUS * intervals, len(COLUMNS)), np.float32)
    values *= [1.0 if metric.unit == "ratio" else 100.0 for metric in METRICS]
    times = [end - 10 * back for back in range(intervals) for _ in range(GPUS)]
    batch = wire.Batch(
        node=f"bench{node:04d}",
        epoch=wire.Epoch("boot", 1, float(end), "0"),
        devices=[
            wire.Device(f"GPU-{node:08d}-{minor}", "NVIDIA H100 80GB HBM3", 81559.0, minor, None)
            for minor in range(GPUS)
        ],
        samples=wire.Samples(list(COLUMNS), list(range(GPUS)) * intervals, times),
    )
    body = gzip.compress(wire.encode_batch(batch, array("f", values.tobytes())), 1)
    head = (
        f"POST /api/v1/ingest HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {token}\r\n"
        f"content-type: {wire.BATCH_TYPE}\r\ncontent-encoding: gzip\r\n"
        f"content-length: {len(body)}\r\n{wire.SENT_AT_HEADER}: {end + 0.5}\r\n\r\n"
    )
    return head.encode() + body


def post_all(port: int, requests: Sequence[bytes]) -> Load:
    """Send all requests over 32 kept connections, each waiting for its answer."""
    return uvloop.run(_post_all(port, iter(requests)))


async def _post_all(port: int, waiting: Iterator[bytes]) -> Load:
    loop = asyncio.get_running_loop()
    latencies: list[float] = []
    began = time.perf_counter()
    pairs = [
        await loop.create_connection(lambda: _Connection(waiting, latencies), "127.0.0.1", port)
        for _ in range(CONNECTIONS)
    ]
    await asyncio.gather(*(connection.finished for _, connection in pairs))
    return Load(time.perf_counter() - began, latencies)


class _Connection(asyncio.Protocol):
    """Posts the next request that waits whenever the last one has been answered with 200."""

    def __init__(self, waiting: Iterator[bytes], latencies: list[float]) -> None:
        self.finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting = waiting
        self._latencies = latencies
        self._answer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._post()

    def data_received(self, data: bytes) -> None:
        self._answer += data
        head, _, body = self._answer.partition(b"\r\n\r\n")
        length = _CONTENT_LENGTH.search(head)
        if length is None or len(body) < int(length[1]):
            return
        if not head.startswith(b"HTTP/1.1 200 "):
            self.finished.set_exception(RuntimeError(self._answer.decode()))
            self._transport.close()
            return
        self._latencies.append(time.perf_counter() - self._began)
        self._answer = b""
        self._post()

    def connection_lost(self, error: Exception | None) -> None:
        if not self.finished.done():
            self.finished.set_exception(error or ConnectionError("the server hung up"))

    def _post(self) -> None:
        message = next(self._waiting, None)
        if message is None:
            self.finished.set_result(None)
            self._transport.close()
            return
        self._began = time.perf_counter()
        self._transport.write(message)


def copy_rows_per_second(database: Database, rows: int) -> float:
    """What COPY alone does, into the same table, with rows that are encoded beforehand."""
    at = int(time.time()) // 10 * 10
    generator = np.random.default_rng(0)
    blocks = []
    for begin in range(0, rows, COPY_ROWS_A_TRANSACTION):
        number = np.arange(begin, begin + COPY_ROWS_A_TRANSACTION)
        device = (10**9 + number % 1000).astype(np.int32)
        keys: list[Keys] = [device, np.ones_like(device), timestamps(at - number // 1000 * 10)]
        values = generator.random((len(number), len(COLUMNS)), np.float32)
        blocks.append(b"".join(encode(keys, values)))
    columns = ", ".join(("device_id", "epoch_id", "ts", *COLUMNS))
    statement = f"COPY samples ({columns}) FROM STDIN (FORMAT BINARY)"
    began = time.perf_counter()
    with psycopg.connect(database.conninfo) as connection:
        for block in blocks:
            with connection.cursor().copy(statement) as copy:
                copy.write(block)
            connection.commit()
    return len(blocks) * COPY_ROWS_A_TRANSACTION / (time.perf_counter() - began)


def measure(database: Database, port: int, token: str) -> dict[str, float]:
    """Run all loads against a server that has just started."""
    now = int(time.time()) // 10 * 10
    begin = now - 10 * LIVE_INTERVALS
    introductions = [request(node, begin, 1, token) for node in range(NODES)]
    live = [
        request(node, begin + 10 * number, 1, token)
        for number in range(1, LIVE_INTERVALS + 1)
        for node in range(NODES)
    ]
    backfill = [
        request(number % NODES, begin - 600 - 600 * (number // NODES), BACKFILL_INTERVALS, token)
        for number in range(BACKFILL_POSTS)
    ]
    post_all(port, introductions)
    live_load = post_all(port, live)
    backfill_load = post_all(port, backfill)
    before = _count(database)
    size = _size(database)
    post_all(port, live[:RESENT_POSTS])
    added = _count(database) - before
    backfill_rate = BACKFILL_POSTS * GPUS * BACKFILL_INTERVALS / backfill_load.seconds
    copy_rate = copy_rows_per_second(database, 240_000)
    return {
        "backfill_rows_per_s": round(backfill_rate),
        "live_posts_per_s": round(len(live) / live_load.seconds),
        "p50_ms": round(live_load.percentile_ms(50), 1),
        "p99_ms": round(live_load.percentile_ms(99), 1),
        "copy_rows_per_s": round(copy_rate),
        "ratio_to_copy": round(backfill_rate / copy_rate, 3),
        "resend_rows_added": added,
        "bytes_per_row": round(size / before, 1),
    }


def _count(database: Database) -> int:
    return _number(database, "SELECT count(*) FROM samples")


def _size(database: Database) -> int:
    return _number(
        database,
        "SELECT sum(pg_total_relation_size(inhrelid)) FROM pg_inherits "
        "WHERE inhparent = 'samples'::regclass",
    )


def _number(database: Database, query: str) -> int:
    with psycopg.connect(database.conninfo) as connection:
        row = connection.execute(query.encode()).fetchone()
    assert row is not None
    return int(row[0])


def main() -> None:
    """Measure, and print the result as the last line."""
    with tempfile.TemporaryDirectory(prefix="flopwatch-bench-") as name:
        folder = Path(name)
        folder.chmod(0o755)  # run as root, the database drops to another account
        with Server(folder) as server:
            database = Database(server.database_url())
            token = server.token("node", "bench").read_text().strip()
            result = measure(database, server.port, token)
            database.dispose()
    print(json.dumps(result))


if __name__ == "__main__":
    main()
