"""The ids that people write for a job: 7, a task 7_3, an array's rest 7_[4-9%2], a het part 7+1.

Each may have a step behind it, as in 7_3.batch or 7.0: what sacct prints and users paste. Newer
versions of Slurm also give each run a SLUID, such as sDXHK9Q2EGT600, which has no form in here.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

_STEP = re.compile(r"\.(?:[0-9]{1,9}|batch|extern|interactive|TBD)(?:\+[0-9]{1,4})?\Z", re.ASCII)
_FORM = re.compile(
    r"(?P<first>[0-9]{1,18})"
    r"(?:_(?P<task>[0-9]{1,10})|_(?P<rest>\[[0-9,:%.\-]*\]?|\*)|\+(?P<offset>[0-9]{1,4}))?",
    re.ASCII,
)
_TASKS = re.compile(r"[0-9]+_\[([0-9:,-]+)(?:%[0-9]+)?\]")
_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9})(?::([1-9][0-9]{0,8}))?)?")


@dataclass(frozen=True, slots=True)
class JobId:
    """What an id names: `first` alone any job of that raw id, array or het job; else a part."""

    first: int
    task: int | None = None
    offset: int | None = None
    is_rest: bool = False


def without_step(text: str) -> str:
    """The id of the job, of a step's id."""
    return _STEP.sub("", text)


def parse(text: str) -> JobId | None:
    """What an id without a step names; None for what is no id."""
    match = _FORM.fullmatch(text)
    if match is None:
        return None
    task, offset = match["task"], match["offset"]
    return JobId(
        int(match["first"]),
        None if task is None else int(task),
        None if offset is None else int(offset),
        match["rest"] is not None,
    )


def waiting_tasks(display_id: str) -> Sequence[range] | None:
    """The tasks in the waiting rest of an array: 4 to 9 for "123_[4-9%2]".

    None where that can't be known: Slurm cuts long lists short ("123_[1,3,5,...]").
    """
    tasks = _TASKS.fullmatch(display_id)
    if tasks is None:
        return None
    found = []
    for part in tasks[1].split(","):
        bounds = _RANGE.fullmatch(part)
        if bounds is None:
            return None
        first, last, step = int(bounds[1]), int(bounds[2] or bounds[1]), int(bounds[3] or 1)
        found.append(range(first, last + 1, step))
    return found
