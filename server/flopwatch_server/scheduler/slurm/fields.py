"""Single fields of Slurm's text, read strictly: an unknown shape raises an error that names it."""

import re
from collections.abc import Mapping
from datetime import UTC, datetime

from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet, NodeSetException

_MOST_DIGITS = 18  # fits 64 bits
_DURATION = re.compile(r"(?:(?:([0-9]{1,9})-)?([0-9]{1,2}):)?([0-9]{1,2}):([0-9]{2})")
_NODE_NAMES = re.compile(r"[A-Za-z0-9._,\[\]-]+")
_STATE = re.compile(r"[A-Z_]+")
_SLUID = re.compile(r"[A-Za-z0-9]{1,64}")
_DECIMAL = re.compile(r"[0-9]{1,18}\.[0-9]{1,18}")

NO_TIME = frozenset({"", "N/A", "None", "Unknown", "(null)"})
NO_LIMIT = frozenset({"", "UNLIMITED", "NOT_SET", "INVALID", "Partition_Limit"})
NO_NODES = frozenset({"", "(null)", "None assigned", "None", "N/A"})


class FieldError(ValueError):
    """A field of unknown shape; the text names it and shows the beginning of its value."""

    def __init__(self, field: str, value: object, of: str = "") -> None:
        super().__init__(f"{field}{of and f' of {of}'} reads {ascii(value)[:80]}")
        self.field = field


def is_number(value: str) -> bool:
    """Whether this is the text of a whole number that is not negative."""
    return value.isascii() and value.isdigit() and len(value) <= _MOST_DIGITS


def whole_number(row: Mapping[str, str], field: str) -> int:
    """An integer that is not negative, of up to 64 bits."""
    value = row[field]
    if not is_number(value):
        raise FieldError(field, value)
    return int(value)


def optional_number(row: Mapping[str, str], field: str) -> int | None:
    """The same, or None where Slurm says N/A."""
    return None if row[field] in ("", "N/A") else whole_number(row, field)


def decimal(row: Mapping[str, str], field: str) -> float | None:
    """A number with a fraction that is not negative; None for an empty field."""
    if not row[field]:
        return None
    if not _DECIMAL.fullmatch(row[field]):
        raise FieldError(field, row[field])
    return float(row[field])


def moment(row: Mapping[str, str], field: str) -> datetime | None:
    """A time printed as epoch seconds; None while there is none."""
    if row[field] in NO_TIME:
        return None
    try:
        return datetime.fromtimestamp(whole_number(row, field), UTC)
    except (OverflowError, OSError, ValueError):
        raise FieldError(field, row[field]) from None


def required_moment(row: Mapping[str, str], field: str) -> datetime:
    """A time that every such record has."""
    value = moment(row, field)
    if value is None:
        raise FieldError(field, row[field])
    return value


def duration_seconds(row: Mapping[str, str], field: str) -> int | None:
    """Seconds of [[days-]hours:]minutes:seconds; None for no limit or one not set."""
    value = row[field]
    if value in NO_LIMIT:
        return None
    match = _DURATION.fullmatch(value)
    if match is None:
        raise FieldError(field, value)
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def minutes_as_seconds(row: Mapping[str, str], field: str) -> int | None:
    """Seconds of a limit in whole minutes; None for no limit or one not set."""
    return None if row[field] in NO_LIMIT else whole_number(row, field) * 60


def sluid(value: str | None) -> str | None:
    """A run's id of letters and digits; None where Slurm has none (before 24.11)."""
    if not value:
        return None
    if not _SLUID.fullmatch(value):
        raise FieldError("sluid", value)
    return value


def state(row: Mapping[str, str], field: str) -> str:
    """The state's first word: "CANCELLED by 1002" is CANCELLED."""
    word = row[field].partition(" ")[0]
    if not _STATE.fullmatch(word):
        raise FieldError(field, row[field])
    return word


def node_names(row: Mapping[str, str], field: str) -> tuple[str, ...]:
    """The names in a host list such as gpu[1-3,7],login1, in Slurm's own order.

    NodeSet sorts what it reads, and Slurm pairs other lists with this order by position; so each
    part between commas is expanded by itself.
    """
    value = row[field]
    if value in NO_NODES:
        return ()
    if not _NODE_NAMES.fullmatch(value):  # NodeSet would read operators and group names
        raise FieldError(field, value)
    try:
        parts = [NodeSet(part, resolver=RESOLVER_NOGROUP) for part in split_outside(value)]
    except NodeSetException:
        raise FieldError(field, value) from None
    return tuple(name for part in parts for name in part)


def split_outside(text: str) -> list[str]:
    """The parts between commas that stand outside brackets and parentheses."""
    return re.split(r",(?![^\[]*\])(?![^(]*\))", text)
