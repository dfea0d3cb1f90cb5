"""Engines and sessions. SQLAlchemy is synchronous everywhere: API, tasks and pages share it."""

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Engine, create_engine, make_url
from sqlalchemy.exc import InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.orm import Session, sessionmaker

STATEMENT_TIMEOUT_SECONDS = 10

UNREACHABLE = (OperationalError, InterfaceError, PoolTimeout)
"""No connection could be had, or the one in use was lost: the same call may work later."""

DATABASE_GONE = "the database does not answer; try again soon"


class Database:
    """One PostgreSQL database, 15 or newer, reached by a `postgresql://` URL."""

    def __init__(self, url: str) -> None:
        """Prepare an engine; nothing connects before the first use."""
        parsed = make_url(url)
        if parsed.get_backend_name() != "postgresql":
            raise ValueError(f"database URL starts with {parsed.drivername}: use postgresql://")
        self.url = parsed.set(drivername="postgresql+psycopg")
        self.engine: Engine = create_engine(
            self.url,
            pool_size=10,
            max_overflow=10,
            pool_pre_ping=True,
            connect_args={
                "options": f"-c timezone=UTC -c statement_timeout={STATEMENT_TIMEOUT_SECONDS}s",
                "connect_timeout": 5,
            },
        )
        self._sessions = sessionmaker(self.engine, expire_on_commit=False)

    @property
    def conninfo(self) -> str:
        """The same address for a bare psycopg connection."""
        return self.url.set(drivername="postgresql").render_as_string(hide_password=False)

    @contextmanager
    def session(self) -> Iterator[Session]:
        """One transaction: committed when the block ends, rolled back when it raises."""
        with self._sessions.begin() as session:
            yield session

    def dispose(self) -> None:
        """Close all pooled connections."""
        self.engine.dispose()
