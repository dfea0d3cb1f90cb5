"""Rows of text that no job name can forge.

Users choose the names of jobs, and squeue and sacct print them raw: line breaks, bars and control
characters included. So every call separates its columns by a mark that nobody could know when a
job was named, and free text stands in the last column only: what follows the last line break
before a mark is the first column of the next row, all before it is the free text.
"""

import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from flopwatch_server.scheduler.records import SchedulerError
from flopwatch_server.scheduler.slurm.fields import FieldError

Row = Mapping[str, str]
Record = TypeVar("Record")
Told = TypeVar("Told")


@dataclass
class Answer(Generic[Record]):
    """The records that could be read, and why the others could not: one bad one harms no other."""

    records: list[Record] = field(default_factory=list)
    refused: list[FieldError] = field(default_factory=list)


def new_mark() -> str:
    """A separator for one call: a control character and 64 random bits."""
    return f"\x1f{secrets.token_hex(8)}"


def long_format(columns: Sequence[str], mark: str) -> str:
    """The -O option of squeue and sinfo that prints these columns unpadded with marks between."""
    return ",".join([*(f"{column}:0{mark}" for column in columns[:-1]), f"{columns[-1]}:0"])


def split_rows(text: str, columns: Sequence[str], mark: str) -> Iterator[Row]:
    """The rows of a printed table, the free text in the last column as it is.

    Raises SchedulerError when the text is no such table: then a command does not know a column.
    """
    if not text:
        return
    first, *chunks = text.split(mark)
    width = len(columns) - 1
    if not chunks or len(chunks) % width:
        raise SchedulerError(f"rows do not have the columns {', '.join(columns)}")
    for end in range(width, len(chunks) + 1, width):
        free_text, line_break, following = chunks[end - 1].rpartition("\n")
        if not line_break:
            raise SchedulerError(f"rows do not end after the columns {', '.join(columns)}")
        values = [first, *chunks[end - width : end - 1], free_text]
        yield dict(zip(columns, values, strict=True))
        first = following


def read_each(rows: Iterable[Told], parse: Callable[[Told], Record]) -> Answer[Record]:
    """Parse every row, setting aside those with a field of unknown shape."""
    answer: Answer[Record] = Answer()
    for row in rows:
        try:
            answer.records.append(parse(row))
        except FieldError as error:
            answer.refused.append(error)
    return answer
