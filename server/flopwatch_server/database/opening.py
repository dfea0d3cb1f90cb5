"""From a URL to a database that is ready, with an answer in words where that fails."""

from sqlalchemy.exc import ArgumentError, OperationalError

from flopwatch_server.database.engine import Database
from flopwatch_server.database.migrate import upgrade


class UnusableDatabaseError(RuntimeError):
    """The database can't be used; the text says which, why, and what to change."""


def opened(url: str) -> Database:
    """The database of this URL, brought up to date; raises UnusableDatabaseError."""
    try:
        database = Database(url)
    except (ArgumentError, ValueError) as error:
        raise UnusableDatabaseError(f"FLOPWATCH_DATABASE_URL: {error}") from error
    try:
        upgrade(database)
    except OperationalError as error:
        database.dispose()
        address = database.url.render_as_string(hide_password=True)
        why = " ".join(str(error.orig).split())
        raise UnusableDatabaseError(
            f"the database {address} does not answer: {why}; check FLOPWATCH_DATABASE_URL"
        ) from error
    return database
