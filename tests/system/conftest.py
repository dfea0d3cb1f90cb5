"""The database fixtures of the server's tests serve here as well."""

from tests.server.conftest import database, databases, house, postgres_url

__all__ = ["database", "databases", "house", "postgres_url"]
