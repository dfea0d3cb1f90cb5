"""Slurm's strings about GPUs: GRES with indices, and TRES with counts.

The forms differ between tools and versions: "gpu:h100:2(IDX:0-1,3)", "gpu:8(S:0-1)",
"gres:gpu:h100:8", "gres/gpu:h100=8", "gpu:1g.10gb:1(IDX:1)", "shard:2(IDX:0)" in 22.05 and
"shard:2(2/4,0/4)" in 24.11.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from flopwatch_server.scheduler.records import NodeGpus
from flopwatch_server.scheduler.slurm.fields import FieldError, is_number, split_outside

CARDS = "gpu"
SHARES = frozenset({"shard", "mps"})
"""GRES that are parts of a card, which other jobs may use at the same time."""

_GRES = re.compile(
    r"(?:gres[:/])?(?P<what>[^:=()]+(?::[^:=()]+)*)(?:=(?P<count>[0-9]{1,9}))?(?:\(.*\))?"
)
_INDICES = re.compile(r"\(IDX:([0-9,-]+)\)")
_PARTS = re.compile(r"\(([0-9]{1,9}/[0-9]{1,9}(?:,[0-9]{1,9}/[0-9]{1,9})*)\)")
_RANGE = re.compile(r"([0-9]{1,5})(?:-([0-9]{1,5}))?")
_CARDS_IN_TRES = re.compile(r"gres/gpu(?::(?P<type>[^:=]+))?=(?P<count>[0-9]{1,9})")


@dataclass(frozen=True, slots=True)
class Gres:
    """One generic resource: its name (gpu, shard, ...), its type, and how many of it."""

    name: str
    gres_type: str | None
    count: int
    ordinals: tuple[int, ...] | None


def parse_gres(row: Mapping[str, str], field: str) -> Iterator[Gres]:
    """The resources in a comma-separated string; a count that is not said is 1."""
    text = row[field]
    if text in ("", "(null)", "N/A"):
        return
    for item in split_outside(text):
        match = _GRES.fullmatch(item)
        if match is None:
            raise FieldError(field, text)
        name, *rest = match["what"].split(":")
        count = match["count"]
        if count is None and rest and is_number(rest[-1]):
            count = rest.pop()
        if len(rest) > 1:
            raise FieldError(field, text)
        yield Gres(name, rest[0] if rest else None, int(count or 1), _ordinals(item, field))


def _ordinals(item: str, field: str) -> tuple[int, ...] | None:
    """The positions in "(IDX:0-1,3)"; None where they are not told, as in "(IDX:N/A)".

    Of a shard they are those with a part taken in "(2/4,0/4)", which tells of each card.
    """
    if parts := _PARTS.search(item):
        taken = (int(part.partition("/")[0]) for part in parts[1].split(","))
        return tuple(position for position, count in enumerate(taken) if count)
    match = _INDICES.search(item)
    if match is None:
        return None
    found: list[int] = []
    for part in match[1].split(","):
        bounds = _RANGE.fullmatch(part)
        if bounds is None:
            raise FieldError(field, item)
        found.extend(range(int(bounds[1]), int(bounds[2] or bounds[1]) + 1))
    return tuple(found)


def node_gpus(row: Mapping[str, str], field: str, node: str) -> tuple[NodeGpus, ...]:
    """The GPUs that a job holds on one node, from its detail string there.

    A shard counts by the cards that it lies on, not by its size. Raises FieldError where the
    number of positions contradicts the count.
    """
    held = []
    for gres in parse_gres(row, field):
        shared = gres.name in SHARES
        if not gres.count or not (shared or gres.name == CARDS):
            continue
        known, count = gres.ordinals, gres.count
        if shared:
            count = 1 if known is None else len(known)
        if not count or (known is not None and len(known) != count):
            raise FieldError(field, row[field])
        held.append(NodeGpus(node, count, known, gres.gres_type, shared))
    return tuple(held)


def tres_gpu_count(row: Mapping[str, str], field: str) -> int | None:
    """The GPUs in a TRES string; None where it names none, which is what a site that does not
    account for GPUs writes for every job.

    A typed entry repeats the untyped one ("gres/gpu=2,gres/gpu:h100=2"): never add the two.
    """
    typed: list[int] = []
    for item in row[field].split(","):
        if not item.startswith(("gres/gpu=", "gres/gpu:")):
            continue
        match = _CARDS_IN_TRES.fullmatch(item)
        if match is None:
            raise FieldError(field, row[field])
        if match["type"] is None:
            return int(match["count"])
        typed.append(int(match["count"]))
    return sum(typed) if typed else None
