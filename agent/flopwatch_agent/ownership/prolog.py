"""Drop files of the prolog: which GRES ordinals a job was given, before any process exists."""

import logging
import re
from dataclasses import dataclass
from pathlib import Path

_log = logging.getLogger(__name__)

_FILE_NAME = re.compile(r"\d{1,10}")
_MOST_BYTES = 65536
_MOST_ORDINALS = 1024  # as many as a batch may tell


@dataclass(frozen=True)
class Held:
    """A job holds these positions of the node's GRES list, since its prolog ran."""

    job_id: int
    ordinals: list[int]
    uid: int | None
    since: float


def parse(text: str, since: float) -> Held:
    """The KEY=VALUE lines that deploy/slurm/prolog.sh writes; raise ValueError if they aren't."""
    fields = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    job_id = fields.get("SLURM_JOB_ID", "")
    if not _FILE_NAME.fullmatch(job_id):
        raise ValueError(f"SLURM_JOB_ID is {job_id!r}")
    return Held(
        int(job_id),
        _ordinals(fields.get("SLURM_JOB_GPUS", "")),
        _number(fields.get("SLURM_JOB_UID", "")),
        since,
    )


def held(folder: Path, booted_at: float) -> list[Held]:
    """All drop files of jobs with GPUs. One from before the node's start is a lost epilog's."""
    found = []
    try:
        paths = [path for path in folder.iterdir() if _FILE_NAME.fullmatch(path.name)]
    except OSError:
        return []
    for path in sorted(paths):
        try:
            since = path.stat().st_mtime
            with path.open(errors="replace") as file:
                job = parse(file.read(_MOST_BYTES), since)
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            _log.debug("drop file %s: %s", path, error)
            continue
        if job.ordinals and since >= booted_at:
            found.append(job)
    return found


def _ordinals(text: str) -> list[int]:
    """Positions in "0,2-3". Slurm writes lists here; ranges stand in some versions."""
    ordinals: list[int] = []
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        span = range(int(first), int(last or first) + 1)
        if len(span) + len(ordinals) > _MOST_ORDINALS:
            raise ValueError(f"too many GPUs: {text[:50]}")
        ordinals += span
    return ordinals


def _number(text: str) -> int | None:
    return int(text) if _FILE_NAME.fullmatch(text) else None
