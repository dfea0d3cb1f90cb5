"""Slurm's JSON, from squeue and slurmrestd alike: what differs between versions ends here."""

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

import msgspec

from flopwatch_server.scheduler.records import SchedulerError
from flopwatch_server.scheduler.slurm.fields import FieldError

T = TypeVar("T")

_FIELD = re.compile(r"(?:- at `\$\.|field `)(\w+)")
_FLAGS = (
    "COMPLETING", "STAGE_OUT", "CONFIGURING", "RESIZING", "REQUEUED", "REQUEUE_FED",
    "REQUEUE_HOLD", "SPECIAL_EXIT", "STOPPED", "REVOKED", "RESV_DEL_HOLD", "SIGNALING",
)  # fmt: skip
"""Flags that stand beside a job's base state; squeue prints the first of these in its place."""
_NOTHING_FOUND = 9003
"""ESLURM_REST_EMPTY_RESULT: in 22.05 no error, but that none ended in the time asked about."""


class Number(msgspec.Struct):
    """How Slurm 23.02 and newer write a number that may be absent."""

    set: bool
    infinite: bool
    number: int


Optional = int | None | Number


def whole(value: Optional) -> int | None:
    """The number; None where it is not set or infinite."""
    if isinstance(value, Number):
        return value.number if value.set and not value.infinite else None
    return value


def identity(value: Optional) -> int | None:
    """The same of an id, of which 0 is none."""
    return whole(value) or None


def moment(value: Optional) -> datetime | None:
    """A time in seconds since 1970, of which 0 is none."""
    seconds = whole(value)
    if not seconds:
        return None
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, OSError, ValueError):
        raise FieldError("time", seconds) from None


def required_moment(value: Optional, field: str) -> datetime:
    """A time that every such record has."""
    found = moment(value)
    if found is None:
        raise FieldError(field, whole(value))
    return found


def state(value: str | Sequence[str], field: str) -> str:
    """A job's state in one word, from a word or, since 23.11, a list of a state and its flags."""
    words = [value] if isinstance(value, str) else value
    for word in (*(flag for flag in _FLAGS if flag in words), *words):
        return word
    raise FieldError(field, value)


def records(text: str, key: str, call: str) -> list[msgspec.Raw]:
    """The records that an answer holds under `key`, not decoded yet.

    Raises SchedulerError when it is no such answer or tells of an error.
    """
    try:
        document = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
        errors = msgspec.json.decode(document.get("errors", b"[]"), type=list[dict[str, Any]])
        for error in errors:
            if error.get("error_number") != _NOTHING_FOUND:
                raise SchedulerError(f"{call}: errors reads {str(error)[:200]}")
        if key not in document:
            raise SchedulerError(f"{call}: the answer has no {key}")
        return msgspec.json.decode(document[key], type=list[msgspec.Raw])
    except msgspec.DecodeError as error:
        raise SchedulerError(f"{call}: {error}") from error


def read(raw: msgspec.Raw, kind: type[T]) -> T:
    """One record; raises FieldError that names the first field of unknown shape."""
    try:
        return msgspec.json.decode(raw, type=kind)
    except msgspec.ValidationError as error:
        found = _FIELD.search(str(error))
        content = msgspec.json.decode(raw)
        if found is None or not isinstance(content, dict):
            raise FieldError("record", content) from error
        raise FieldError(found[1], content.get(found[1])) from error
