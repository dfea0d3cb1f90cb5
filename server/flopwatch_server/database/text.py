"""Free text from outside, as PostgreSQL can hold it."""


def storable(value: str, limit: int = 1024) -> str:
    """`value` without NUL and half surrogates, cut at `limit` characters."""
    return value[:limit].replace("\0", "").encode("utf-8", "replace").decode()
