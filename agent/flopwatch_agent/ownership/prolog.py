"""Drop files of the prolog: which GPUs a job was given, before any process exists.

They count for root's own word, so only what nobody else can have written is read: a plain file of
root or of the agent's own user, in a folder of one of them.
"""

import logging
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISREG, S_IWGRP, S_IWOTH

from flopwatch_agent.ownership import job_id

_log = logging.getLogger(__name__)

_UID = re.compile(r"[0-9]{1,10}")
_UUID = re.compile(r"(GPU|MIG)-[0-9A-Za-z/-]{1,100}")
_MOST_BYTES = 65536
_MOST_ORDINALS = 1024  # as many as a batch may tell


@dataclass(frozen=True)
class Held:
    """A job of this user holds these positions of the node's GRES list, or the GPUs and MIG
    instances of these UUIDs, since its prolog ran."""

    job_id: int
    ordinals: list[int]
    uid: int | None
    since: float
    uuids: tuple[str, ...] = ()


def parse(text: str, since: float) -> Held:
    """The KEY=VALUE lines that deploy/slurm/prolog.sh writes; raise ValueError if they aren't."""
    fields = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    told = fields.get("SLURM_JOB_ID", "")
    number = job_id.parse(told)
    if number is None:
        raise ValueError(f"SLURM_JOB_ID is {told!r}")
    uid = fields.get("SLURM_JOB_UID", "")
    gpus = [name for name in fields.get("SLURM_JOB_GPUS", "").split(",") if name]
    uuids = tuple(name for name in gpus if _UUID.fullmatch(name))
    return Held(
        number,
        _ordinals([name for name in gpus if name not in uuids]),
        int(uid) if _UID.fullmatch(uid) else None,
        since,
        uuids,
    )


def held(folder: Path, booted_at: float) -> list[Held]:
    """What jobs with GPUs hold, by their drop files. One of a lost epilog counts until the node
    starts again."""
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return []
    ids = (job_id.parse(name) for name in names)
    jobs = (of_job(folder, number, booted_at) for number in ids if number is not None)
    return [job for job in jobs if job is not None and (job.ordinals or job.uuids)]


def of_job(folder: Path, number: int, booted_at: float) -> Held | None:
    """What the drop file of a job says; None if there is none that can be believed."""
    try:
        _check_owner(folder.stat())
        job = _read(folder / str(number))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        _log.debug("drop file of job %d in %s: %s", number, folder, error)
        return None
    return job if job.job_id == number and job.since >= booted_at else None


def _read(path: Path) -> Held:
    # A link may lead to a file that says the same of another time, and a pipe would never answer.
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), errors="replace") as file:
        status = os.fstat(file.fileno())
        _check_owner(status)
        if not S_ISREG(status.st_mode):
            raise ValueError("it is no plain file")
        return parse(file.read(_MOST_BYTES), status.st_mtime)


def _check_owner(status: os.stat_result) -> None:
    """Raise ValueError for what anybody but root and the agent's own user may write to."""
    if status.st_uid not in (0, os.geteuid()) or status.st_mode & (S_IWGRP | S_IWOTH):
        raise ValueError("users may write to it")


def _ordinals(parts: Iterable[str]) -> list[int]:
    """Positions in "0", "2-3". Slurm writes lists of them; ranges stand in some versions."""
    ordinals: list[int] = []
    for part in parts:
        first, _, last = part.partition("-")
        start, end = int(first), int(last or first) + 1
        if end - start + len(ordinals) > _MOST_ORDINALS:
            raise ValueError(f"too many GPUs: {part[:50]}")
        ordinals += range(start, end)
    return ordinals
