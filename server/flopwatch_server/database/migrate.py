"""Alembic without an ini file: the schema is brought up to date whenever a server starts."""

from pathlib import Path

from alembic import command
from alembic.config import Config
from sqlalchemy import text

import flopwatch_server
from flopwatch_server.database.engine import Database

_LOCK = 0x666C6F70  # one migration at a time, however many servers start


def migrations_folder() -> Path:
    """The migrations of this checkout, or the copy inside the installed package."""
    package = Path(flopwatch_server.__file__).parent
    checkout = package.parent.parent / "migrations"
    return checkout if (checkout / "env.py").exists() else package / "_migrations"


def upgrade(database: Database) -> None:
    """Apply every migration that the database lacks, one transaction each, under a lock."""
    config = Config()
    config.set_main_option("script_location", str(migrations_folder()))
    with database.engine.connect() as connection:
        connection.execute(text("SELECT pg_advisory_lock(:key)"), {"key": _LOCK})
        connection.commit()
        try:
            config.attributes["connection"] = connection
            command.upgrade(config, "head")
        finally:
            connection.rollback()
            connection.execute(text("SELECT pg_advisory_unlock(:key)"), {"key": _LOCK})
            connection.commit()
