"""Slurm's configuration files: their lines, what a line sets, and lists of names.

As slurmd reads them (slurm.conf(5), gres.conf(5)): a `#` begins a comment, a line that ends in a
backslash goes on in the next, and `Include FILE` stands for the lines of another file.
"""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

Stamp = tuple[int, int, int, int]
"""Changes with a file's content: time of change of the content and of the entry, inode, size."""

MOST_NAMES = 65536
"""Nodes that one list may name, as in Slurm's own host lists (MAX_RANGE)."""

_MOST_BYTES = 1 << 20
_MOST_FILES = 32
_COMMENT = re.compile(r"(?<!\\)#.*")
_SETTING = re.compile(r'\s*([A-Za-z0-9_.]+)\s*=\s*(?:"([^"]*)"|(\S+))(?!\S)')
_NAME = re.compile(r"(?:[^,\[\]]|\[[^\[\]]*\])+")
_BRACKETS = re.compile(r"\[([^\[\]]*)\]")
_SPAN = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")


@dataclass(frozen=True, slots=True)
class Line:
    """A line with those that go on from it; `place` is where it begins, as FILE:NUMBER."""

    place: str
    text: str

    def settings(self) -> dict[str, str]:
        """Its KEY=VALUE pairs, keys in lower case; ValueError if it is anything else."""
        found, end = {}, 0
        while match := _SETTING.match(self.text, end):
            key, quoted, plain = match.groups()
            found[key.lower()] = plain if quoted is None else quoted
            end = match.end()
        if rest := self.text[end:].strip():
            raise ValueError(f"{self.place}: {rest[:40]!r} is not KEY=VALUE")
        return found


@dataclass(frozen=True)
class Conf:
    """The lines of a file and of those that it includes, and which files these were."""

    lines: list[Line] = field(default_factory=list)
    stamps: dict[Path, Stamp] = field(default_factory=dict)

    def is_current(self) -> bool:
        """Whether each file is what it was when it was read; False for one that is gone."""
        try:
            return all(_stamp(path.stat()) == stamp for path, stamp in self.stamps.items())
        except OSError:
            return False


def read(path: Path) -> Conf:
    """A file and those it includes; OSError or ValueError if one can't be read.

    An Include within an included file is not followed: it stays a line, which is no setting.
    """
    conf = Conf()
    for line in _lines(path, conf.stamps):
        word, *rest = line.text.split(None, 1)
        if word.lower() == "include" and rest:
            conf.lines.extend(_lines(path.parent / rest[0].rstrip(), conf.stamps))
        else:
            conf.lines.append(line)
    return conf


def names(text: str, most: int) -> Iterator[str]:
    """The names in a list such as `gpu[1-3,07],login1`, in its order.

    Raises ValueError if it is no list or names more than `most`.
    """
    if re.search(r"[\[\]]", _BRACKETS.sub("", text)):
        raise ValueError(f"{text[:40]!r} has a bracket too many")
    for item in _NAME.finditer(text):
        choices, count = [], 1
        for place, piece in enumerate(_BRACKETS.split(item[0])):
            choices.append(_numbers(piece, most) if place % 2 else [piece])  # odd: in brackets
            count *= len(choices[-1])
            if count > most:
                raise ValueError(f"{text[:40]!r} names too many")
        most -= count
        yield from map("".join, product(*choices))


def gres_of(conf: Conf, node: str) -> str | None:
    """What slurm.conf says in Gres= of a node; None where it does not name the node."""
    default, found = "", None
    for line in conf.lines:
        if not line.text.lstrip().lower().startswith("nodename"):
            continue
        settings = line.settings()
        named, gres = settings.get("nodename", ""), settings.get("gres", default)
        if named.upper() == "DEFAULT":
            default = gres
        elif node in names(named, MOST_NAMES):
            found = gres
    return found


def _lines(path: Path, stamps: dict[Path, Stamp]) -> Iterator[Line]:
    """Lines that say anything. The file's stamp goes to `stamps`."""
    if path in stamps or len(stamps) == _MOST_FILES:
        raise ValueError(f"{path}: one Include too many")
    with path.open("rb") as file:
        stamps[path] = _stamp(os.fstat(file.fileno()))
        content = file.read(_MOST_BYTES + 1)
    if len(content) > _MOST_BYTES:
        raise ValueError(f"{path}: over {_MOST_BYTES} bytes")
    begun, begins = "", 0
    for number, physical in enumerate(content.decode(errors="replace").split("\n"), 1):
        text = _COMMENT.sub("", physical).rstrip()
        begins = begins or number
        begun += text.removesuffix("\\")
        if text.endswith("\\"):
            continue
        if begun.strip():
            yield Line(f"{path}:{begins}", begun)
        begun, begins = "", 0
    if begun.strip():
        yield Line(f"{path}:{begins}", begun)


def _stamp(found: os.stat_result) -> Stamp:
    return found.st_mtime_ns, found.st_ctime_ns, found.st_ino, found.st_size


def _numbers(text: str, most: int) -> list[str]:
    """What stands in brackets, `1-3,07`: numbers as wide as the first of their span."""
    found: list[str] = []
    for part in text.split(","):
        match = _SPAN.fullmatch(part)
        if match is None:
            raise ValueError(f"[{text[:40]}] is no list of numbers")
        first, last = match[1], match[2] or match[1]
        span = range(int(first), int(last) + 1)
        if not span or len(span) + len(found) > most:
            raise ValueError(f"[{text[:40]}] has no end, or names too many")
        found += [str(number).zfill(len(first)) for number in span]
    return found
