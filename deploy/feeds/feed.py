"""What the feeds in this folder share: asking a scheduler, and printing lines for the feed.

Python 3.9 or newer and nothing else, so that it runs where the scheduler's commands do. What the
lines mean is said in docs/schedulers.md.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

PENDING = {"PENDING"}
RUNNING = {"CONFIGURING", "RUNNING", "SUSPENDED", "COMPLETING"}
"""Of the states that the feed knows, those that these feeds tell; any other is an end."""

_TOLD_AFTER_END_SECONDS = 3600  # so long may posts get lost without an end getting lost
_COMMAND_SECONDS = 60
_TEXTS = ("name", "user", "account", "partition", "qos", "reason")
_LONGEST_TEXT = 256  # of all but names and reasons
_MOST_GPUS, _MOST_GPUS_OF_NODE = 2**31 - 1, 1024
_YEAR_2000, _YEAR_2100 = 946684800, 4102444800
_MISSHAPEN = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""What a record of another shape than expected raises when it is taken apart."""

Line = dict[str, Any]


def ask(name: str, command: Sequence[str]) -> tuple[Any, float]:
    """What a command prints as JSON, and when; with a folder as argument of the feed, what was kept
    of it there in the file NAME.json, and when.

    Numbers stay text: PBS prints a job's name 0010 as one. Times are printed in UTC. Without an
    answer the feed ends, so that nothing is posted.
    """
    source = " ".join(command)
    try:
        if len(sys.argv) > 1:
            source = os.path.join(sys.argv[1], f"{name}.json")
            asked_at = os.stat(source).st_mtime
            with open(source, "rb") as kept:
                text = kept.read()
        else:
            asked_at = time.time()
            text = subprocess.run(
                command,
                env={**os.environ, "TZ": "UTC", "LC_ALL": "C"},
                timeout=_COMMAND_SECONDS,
                check=True,
                stdout=subprocess.PIPE,
            ).stdout
        # A name that is no UTF-8 becomes half surrogates, which the server takes.
        answer = json.loads(
            text.decode(errors="surrogateescape"), strict=False, parse_int=str, parse_float=str
        )
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        sys.exit(f"{source}: {error}")
    return answer, asked_at


def held(node: str, count: int, total: int | None = None) -> Line:
    """GPUs that a run holds on one node; who holds all `total` of them holds each position."""
    line: Line = {"node": node, "count": count}
    return {**line, "ordinals": list(range(count))} if count == total else line


def lines(
    what: str,
    records: Iterable[Any],
    name_of: Callable[[Any], str],
    line_of: Callable[[Any], Line | None],
    holds_none: Callable[[Any], bool] = lambda record: False,
) -> list[Line | None]:
    """A line for each record, or {} for one that is none of ours: what `line_of` makes of it.

    Of one of unknown shape standard error says which one that is and what is wrong. In its place is
    {} where `holds_none` finds that it holds no GPUs now, as it waits or is over; else None.
    """
    made: list[Line | None] = []
    known = set()
    for place, record in enumerate(records):
        name = f"number {place}"
        try:
            name = name_of(record)
            line = line_of(record)
            if line and what == "job":
                _check(line)
                run = line["raw_job_id"], line["submitted_at"]
                if run in known:
                    raise ValueError("it is told twice")
                known.add(run)
        except _MISSHAPEN as error:
            print(f"{what} {name!r} left out: {type(error).__name__}: {error}", file=sys.stderr)
            line = {} if _is_sure(holds_none, record) else None
        made.append(line)
    return made


def print_feed(asked_at: float, runs: list[Line | None], nodes: list[Line | None]) -> None:
    """Print the body of a post: a complete snapshot, if no run that may hold GPUs was left out.

    A run that is missing in a complete snapshot looks as if it had left the queue.
    """
    _print({"kind": "snapshot", "time": asked_at, "complete": None not in runs})
    for run in runs:
        if run and not _is_old(run, asked_at):
            _print({"kind": "run", **run})
    for node in filter(None, nodes):
        _print({"kind": "node", **node})


def _is_sure(says: Callable[[Any], bool], record: Any) -> bool:
    try:
        return says(record)
    except _MISSHAPEN:
        return False


def _check(run: Line) -> None:
    """Raise ValueError for what the server would refuse, and all of the body with it."""
    for field in _TEXTS:
        if not isinstance(run.get(field, ""), (str, type(None))):
            raise TypeError(f"its {field} is no text")
    state, start, end = run["state"], run.get("started_at"), run.get("ended_at")
    if state in RUNNING and start is None:
        raise ValueError(f"{state}, but its start is not told")
    if state not in RUNNING | PENDING and end is None:
        raise ValueError(f"{state}, but its end is not told")
    for moment in (run["submitted_at"], start, end):
        if moment is not None and not _YEAR_2000 <= moment <= _YEAR_2100:
            raise ValueError(f"{moment} is no time of a job")
    if start is not None and end is not None and end < start:
        raise ValueError("it ended before it started")
    if (run.get("gpu_count") or 0) > _MOST_GPUS:
        raise ValueError(f"{run['gpu_count']} is no number of GPUs")
    for held in run.get("gpus") or ():
        if not held["node"] or not 0 < held["count"] <= _MOST_GPUS_OF_NODE:
            raise ValueError(f"{held['count']} GPUs of the node {held['node']!r}")


def _is_old(run: Line, asked_at: float) -> bool:
    end = run.get("ended_at")
    return end is not None and end < asked_at - _TOLD_AFTER_END_SECONDS


def _print(line: Line) -> None:
    for name in ("user", "account", "partition", "qos"):
        if line.get(name):
            line[name] = line[name][:_LONGEST_TEXT]
    print(json.dumps({name: value for name, value in line.items() if value is not None}))
