"""The raw id of a job as text, from where anybody may have written it."""

import re

_DIGITS = re.compile(r"[1-9][0-9]{0,18}")
_MOST = 2**63 - 1  # what the feed allows, and the database holds


def parse(text: str) -> int | None:
    """The id, from 1 to 2^63 - 1 as schedulers print it, or None if the text is none."""
    if not _DIGITS.fullmatch(text):
        return None
    number = int(text)
    return number if number <= _MOST else None
