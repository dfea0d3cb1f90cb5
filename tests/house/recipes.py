"""Follows a recipe of docs/adding.md: new files, and changes of files that are there."""

import re
from pathlib import Path

_FILE = re.compile(r"^`([\w./-]+)`:\n\n```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_DIFF = re.compile(r"^```diff\n--- a/(\S+)\n\+\+\+ b/\S+\n@@\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_COMMANDS = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class RecipeError(AssertionError):
    """The recipe does not fit the house any more."""


def follow(recipe: str, house: Path) -> None:
    """Do in `house` what the text says."""
    newest = max(path.name[:4] for path in (house / "migrations/versions").glob("[0-9]*.py"))
    numbers = {"NNNN": f"{int(newest) + 1:04d}", "MMMM": newest}
    for path, text in _FILE.findall(recipe):
        file = house / _numbered(path, numbers)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(_numbered(text, numbers))
    for path, change in _DIFF.findall(recipe):
        _change(house / path, change.splitlines())


def commands(recipe: str) -> list[str]:
    """What the text says to type."""
    lines = "".join(_COMMANDS.findall(recipe)).splitlines()
    return [line.removeprefix("$ ") for line in lines]


def _numbered(text: str, numbers: dict[str, str]) -> str:
    for name, number in numbers.items():
        text = text.replace(name, number)
    return text


def _change(file: Path, lines: list[str]) -> None:
    before = "".join(f"{line[1:]}\n" for line in lines if line[0] in " -")
    after = "".join(f"{line[1:]}\n" for line in lines if line[0] in " +")
    text = file.read_text()
    if text.count(before) != 1:
        raise RecipeError(f"{file} has not exactly one place that reads\n{before}")
    file.write_text(text.replace(before, after))
