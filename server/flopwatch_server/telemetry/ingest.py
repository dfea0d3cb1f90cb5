"""From the bytes of a post to a batch that can be written: decoding and validation.

Nothing here touches the database. What a client did wrong is told by field, in the words of
`$.samples.time[3]`; it costs that client's post and nothing else.
"""

import zlib
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from flopwatch import wire
from flopwatch.metrics import BY_NAME, COLUMNS, METRICS, SAMPLE_PERIOD_SECONDS
from flopwatch_server.database.copy import Floats, Integers
from flopwatch_server.settings import LATE_SAMPLE_SECONDS
from flopwatch_server.telemetry.clocks import MAX_FUTURE_SECONDS, MAX_TIME, Present, settle_times
from flopwatch_server.telemetry.header import InvalidBatch, check_devices, check_header

MAX_SAMPLES = 100_000
_CHUNK_BYTES = 256 * 1024
_MAX_JSON_BYTES = 8 * 1024 * 1024
_MAX_JSON_PARTS = 250_000  # as many lists and objects as all limits of a batch together allow
_LARGEST = np.finfo(np.float32).max
_MINIMA = np.array([metric.minimum for metric in METRICS], np.float32)
# Infinity is above every maximum.
_MAXIMA = np.array([min(metric.maximum, _LARGEST) for metric in METRICS], np.float32)
_SMALLEST = np.finfo(np.float32).tiny
_NODES_REMEMBERED = 16_384  # of more nodes, each in its turn, not one would be remembered
_MOST_TEXT_REMEMBERED = 4096  # bytes: 25 devices or so
_T = TypeVar("_T")
_ALL_COLUMNS = list(COLUMNS)


@dataclass
class _Header(wire.Batch):
    """A batch whose devices are not decoded yet: a node tells the same ones with every post."""

    devices: msgspec.Raw = b"[]"  # type: ignore[assignment]


_header_decoder = msgspec.json.Decoder(_Header)
_devices_decoder = msgspec.json.Decoder(list[wire.Device])


class BodyTooLarge(ValueError):
    """The body is larger than allowed once it is unpacked: 413."""


class BrokenBody(ValueError):
    """The body is not what its Content-Encoding says: 400."""


@dataclass(frozen=True, slots=True)
class Implausible:
    """Values of one metric in (start, end] were outside what can be, and are stored as unknown.

    `device` is whatever names devices where they were found.
    """

    device: int
    metric: str
    start: int
    end: int


@dataclass(frozen=True, slots=True, eq=False)
class ValidatedBatch:
    """A batch whose every part can be written. Devices are still indexes into `header.devices`.

    `values` has a row for each accepted sample and all columns of the table of metrics, NaN where
    unknown; what can't be is looked for later, in many batches at once. Samples that came too late
    or too early are counted in `refused` and lie in the gaps of the header, whose times are all in
    the present.
    `sent_at` is the sender's clock at the post, in seconds since 1970, if it told.
    """

    cluster_id: int
    received_at: datetime
    header: wire.Batch
    device: Integers
    time: Integers
    values: Floats
    sent_at: float | None = None
    refused: int = 0


def unpack(body: bytes, encoding: str) -> bytes:
    """The body without its Content-Encoding, "gzip" or none.

    It is unpacked piece by piece, so that a bomb costs no more memory than the limit.
    """
    if encoding != "gzip":
        if len(body) > wire.MAX_DECODED_BYTES:
            raise BodyTooLarge(f"the body is over {wire.MAX_DECODED_BYTES} bytes")
        return body
    unpacker = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
    unpacked = bytearray()
    rest = body
    try:
        while rest and not unpacker.eof:
            unpacked += unpacker.decompress(rest, _CHUNK_BYTES)
            rest = unpacker.unconsumed_tail
            if len(unpacked) > wire.MAX_DECODED_BYTES:
                raise BodyTooLarge(f"the body unpacks to over {wire.MAX_DECODED_BYTES} bytes")
    except zlib.error as error:
        raise BrokenBody(f"the body is not gzip: {error}") from error
    if not unpacker.eof or unpacker.unused_data:
        raise BrokenBody("the body is not one whole gzip stream")
    return bytes(unpacked)


def decode(body: bytes, content_type: str) -> tuple[wire.Batch, Floats]:
    """The header and its rows of values, one column a name in `samples.columns`."""
    if content_type != wire.BATCH_TYPE:
        batch = _decode_header(body)
        return batch, _listed_values(batch.samples)
    try:
        header, block = wire.split_batch(body)
    except ValueError as error:
        raise InvalidBatch("$", str(error)) from error
    batch = _decode_header(header)
    samples = batch.samples
    if samples.values is not None:
        raise InvalidBatch("$.samples.values", "a batch has its values in the block")
    rows, columns = len(samples.time), len(samples.columns)
    if len(block) != rows * columns * 4:
        raise InvalidBatch(
            "$.samples",
            f"{rows} rows of {columns} columns are {rows * columns * 4} bytes, "
            f"the block has {len(block)}",
        )
    return batch, np.frombuffer(block, "<f4").reshape(rows, columns).astype(np.float32, copy=False)


def _decode_header(header: bytes) -> wire.Batch:
    """The JSON of a batch, weighed first: decoded, its parts may take 60 times their bytes."""
    if len(header) > _MAX_JSON_BYTES:
        raise BodyTooLarge(f"the JSON is over {_MAX_JSON_BYTES} bytes")
    if header.count(b"[") + header.count(b"{") > _MAX_JSON_PARTS:
        raise InvalidBatch("$", f"holds more than {_MAX_JSON_PARTS} lists and objects")
    batch = _parsed(_header_decoder, header, "$")
    text = bytes(batch.devices)
    read = _known_devices if len(text) <= _MOST_TEXT_REMEMBERED else _devices
    batch.devices = read(text)  # type: ignore[assignment]
    return batch


def _devices(text: bytes) -> list[wire.Device]:
    """The devices of a batch, checked."""
    devices = _parsed(_devices_decoder, text, "$.devices")
    check_devices(devices)
    return devices


_known_devices = lru_cache(_NODES_REMEMBERED)(_devices)
"""The same text gives the same list, so nobody may change it."""


def _parsed(decoder: msgspec.json.Decoder[_T], text: bytes, place: str) -> _T:
    """`text`, which stands at `place` in the batch, decoded."""
    try:
        return decoder.decode(text)
    except RecursionError as error:
        raise InvalidBatch(place, "the JSON is nested too deep") from error
    except UnicodeDecodeError as error:
        raise InvalidBatch(place, "the JSON is not UTF-8") from error
    except msgspec.DecodeError as error:
        problem, _, inner = str(error).partition(" - at `$")
        raise InvalidBatch(place + inner.rstrip("`"), problem) from error


def _listed_values(samples: wire.Samples) -> Floats:
    listed = samples.values or []
    columns = len(samples.columns)
    for number, row in enumerate(listed):
        if len(row) != columns:
            raise InvalidBatch(f"$.samples.values[{number}]", f"needs {columns} values")
    with np.errstate(over="ignore"):  # what float32 can't hold is infinite: implausible
        return np.array(listed, np.float32).reshape(len(listed), columns)


def validate(
    batch: wire.Batch, values: Floats, cluster_id: int, received_at: datetime,
    sent_at: float | None = None,
) -> ValidatedBatch:  # fmt: skip
    """Check every part of a batch against its contract, and sort out what can't be kept.

    Raises InvalidBatch, which names the first field that is wrong.
    """
    check_header(batch)
    device, time = _check_samples(batch, values)
    present = Present.seen_from(received_at.timestamp(), sent_at)
    times = batch.samples.time
    refused = 0
    if times and not (_oldest(present) <= min(times) <= max(times) <= _newest(present)):
        taken = _timely(device, time, batch.gaps, present)
        refused = len(taken) - int(np.count_nonzero(taken))
        device, time, values = device[taken], time[taken], values[taken]
    settle_times(batch, present)
    table = _all_columns(batch.samples.columns, values)
    return ValidatedBatch(cluster_id, received_at, batch, device, time, table, sent_at, refused)


def _oldest(present: Present) -> float:
    return present.now - LATE_SAMPLE_SECONDS


def _newest(present: Present) -> float:
    return present.now + MAX_FUTURE_SECONDS


def _timely(
    device: Integers, time: Integers, gaps: list[wire.Gap], present: Present
) -> NDArray[np.bool_]:
    """Which samples are neither too old nor from the future; of the others a gap is left."""
    late = time < _oldest(present)
    early = time > _newest(present)
    for refused, cause in ((late, "came too late"), (early, "from the future")):
        if np.count_nonzero(refused):
            gaps += [
                wire.Gap(float(start), float(end), cause, number)
                for number, start, end in _spans(device[refused], time[refused])
            ]
    return ~(late | early)


def _check_samples(batch: wire.Batch, values: Floats) -> tuple[Integers, Integers]:
    samples = batch.samples
    _check_columns(samples.columns)
    rows = len(samples.time)
    if rows > MAX_SAMPLES:
        raise InvalidBatch("$.samples.time", f"has more than {MAX_SAMPLES} samples")
    if len(samples.device) != rows:
        raise InvalidBatch("$.samples.device", f"has {len(samples.device)} entries, time {rows}")
    if len(values) != rows:
        raise InvalidBatch("$.samples.values", f"has {len(values)} rows, time {rows}")
    known, period = len(batch.devices), SAMPLE_PERIOD_SECONDS
    devices, times = set(samples.device), set(samples.time)  # few, each of them many times
    _refuse(
        samples.device, {each for each in devices if not 0 <= each < known},
        "$.samples.device", f"is not one of {known} devices",
    )  # fmt: skip
    _refuse(
        samples.time, {each for each in times if not 0 <= each <= MAX_TIME},
        "$.samples.time", "is not a time",
    )  # fmt: skip
    _refuse(
        samples.time, {each for each in times if each % period},
        "$.samples.time", f"is not a multiple of {period}",
    )  # fmt: skip
    return np.array(samples.device, np.int64), np.array(samples.time, np.int64)


def _check_columns(columns: list[str]) -> None:
    if columns == _ALL_COLUMNS:
        return
    for number, name in enumerate(columns):
        if name not in BY_NAME:
            raise InvalidBatch(f"$.samples.columns[{number}]", "is not in the table of metrics")
    if len(set(columns)) != len(columns):
        raise InvalidBatch("$.samples.columns", "names a column twice")


def _refuse(numbers: list[int], bad: set[int], place: str, problem: str) -> None:
    if bad:
        row = next(row for row, number in enumerate(numbers) if number in bad)
        raise InvalidBatch(f"{place}[{row}]", problem)


def _spans(device: Integers, time: Integers) -> list[tuple[int, int, int]]:
    """(device, start, end] of each stretch of samples that follow one another."""
    order = np.lexsort((time, device))
    device, time = device[order], time[order]
    breaks = (np.diff(device) != 0) | (np.diff(time) > SAMPLE_PERIOD_SECONDS)
    first = np.concatenate(([0], np.flatnonzero(breaks) + 1))
    last = np.concatenate((np.flatnonzero(breaks), [len(time) - 1]))
    starts = time[first] - SAMPLE_PERIOD_SECONDS
    return list(zip(device[first].tolist(), starts.tolist(), time[last].tolist(), strict=True))


def _all_columns(names: list[str], values: Floats) -> Floats:
    """The values in the order of the table of metrics, with NaN for what was not sent."""
    if names == _ALL_COLUMNS:
        return values
    table = np.full((len(values), len(COLUMNS)), np.nan, np.float32)
    table[:, [COLUMNS.index(name) for name in names]] = values
    return table


def clear_implausible(device: Integers, time: Integers, table: Floats) -> list[Implausible]:
    """Make what can't be unknown, in place, and tell of which metrics and when.

    `table` has a row a sample and all columns of the table of metrics.
    """
    # A mean of smaller numbers underflows, which PostgreSQL takes for an error.
    table[np.abs(table) < _SMALLEST] = 0
    bad = (table < _MINIMA) | (table > _MAXIMA)
    if not np.count_nonzero(bad):
        return []
    table[bad] = np.nan
    return [
        Implausible(number, COLUMNS[column], start, end)
        for column in np.flatnonzero(bad.any(axis=0))
        for number, start, end in _spans(device[bad[:, column]], time[bad[:, column]])
    ]
