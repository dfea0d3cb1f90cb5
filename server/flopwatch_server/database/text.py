"""Free text from outside, as PostgreSQL can hold it."""

from typing import Annotated

from pydantic import Field

Word = Annotated[str, Field(max_length=256, pattern="^[^\\x00]*$")]
"""A name in a request: PostgreSQL's text can't hold NUL."""


def storable(value: str, limit: int = 1024) -> str:
    """`value` without NUL and half surrogates, cut at `limit` characters."""
    return value[:limit].replace("\0", "").encode("utf-8", "replace").decode()
