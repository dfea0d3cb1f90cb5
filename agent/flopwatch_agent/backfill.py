"""Joins batches of back-fill into one post: a server pays by the post, not by the sample."""

import gzip
import json
from collections.abc import Sequence
from typing import Any

from flopwatch.wire import split_batch

MOST_JOINED = 30
"""Five minutes of batches."""
MOST_JOINED_BYTES = 1 << 20
"""Unpacked: what joining may cost in memory is a few times this."""

_LISTS = (
    "missing", "evidence", "reports", "host", "gaps", "sources", "events", "local_runs",
)  # fmt: skip


def joined(bodies: Sequence[bytes]) -> tuple[int, bytes]:
    """The first few gzip bodies as one, and how many they were.

    They are joined as far as they tell of the same epoch, devices and columns and are small
    together; where that is only the first, it stays as it is.
    """
    if len(bodies) == 1:
        return 1, bodies[0]
    headers: list[dict[str, Any]] = []
    blocks: list[memoryview] = []
    size = 0
    for body in bodies[:MOST_JOINED]:
        batch = gzip.decompress(body)
        size += len(batch)
        if headers and size > MOST_JOINED_BYTES:
            break
        head, block = split_batch(batch)
        header = json.loads(head)
        if headers and _frame(header) != _frame(headers[0]):
            break
        headers.append(header)
        blocks.append(block)
    if len(headers) == 1:
        return 1, bodies[0]
    whole = headers[0]
    for header in headers[1:]:
        for name in _LISTS:  # an agent of an older version may have left some out
            whole.setdefault(name, []).extend(header.get(name, []))
        for name in ("device", "time"):
            whole["samples"][name] += header["samples"][name]
    packed = json.dumps(whole, separators=(",", ":")).encode() + b"\n" + b"".join(blocks)
    return len(headers), gzip.compress(packed, compresslevel=6, mtime=0)


def _frame(header: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """What all batches that are joined must have in common."""
    rest = {name: value for name, value in header.items() if name not in (*_LISTS, "samples")}
    return rest, header["samples"]["columns"]
