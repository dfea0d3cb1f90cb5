"""Slurm's version, as every answer of slurmrestd tells it beside its content."""

import msgspec

from flopwatch_server.scheduler.records import SchedulerError


class _Slurm(msgspec.Struct):
    release: str


class _Meta(msgspec.Struct):
    slurm: _Slurm | None = None
    older: _Slurm | None = msgspec.field(name="Slurm", default=None)  # up to 23.02


class _Answer(msgspec.Struct):
    meta: _Meta


def parse_version(text: str) -> str:
    """ "22.05.8"; raises SchedulerError where an answer has none."""
    try:
        meta = msgspec.json.decode(text, type=_Answer).meta
    except msgspec.DecodeError as error:
        raise SchedulerError(f"ping: {error}") from error
    told = meta.slurm or meta.older
    if told is None:
        raise SchedulerError("ping: the answer tells no version")
    return told.release
