"""One PostgreSQL server for all tests of this room, a fresh database for each."""

from collections.abc import Iterator

import pytest

from flopwatch.gpus import PeakTable
from flopwatch_server.database.engine import Database
from flopwatch_server.house import House
from flopwatch_server.settings import Settings
from tests.lab.ingest import NOW, IngestClient, ingest_client
from tests.lab.postgres import DatabaseFactory, postgres, public_folder, system_binaries


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """URL of the PostgreSQL that an installation without settings would run."""
    with public_folder() as folder, postgres(folder) as server:
        yield server.url


@pytest.fixture(scope="session")
def databases(postgres_url: str) -> DatabaseFactory:
    """Makes migrated databases."""
    return DatabaseFactory(postgres_url)


@pytest.fixture
def database(databases: DatabaseFactory) -> Iterator[Database]:
    """A migrated database of this test's own."""
    with databases.database() as database:
        yield database


@pytest.fixture(scope="session", params=["embedded", "of the system"])
def any_postgres(request: pytest.FixtureRequest) -> Iterator[DatabaseFactory]:
    """The newest PostgreSQL that we ship, and the distribution's own, the oldest supported."""
    if request.param == "embedded":
        yield request.getfixturevalue("databases")
        return
    with public_folder() as folder, postgres(folder, system_binaries()) as server:
        yield DatabaseFactory(server.url)


@pytest.fixture
def any_database(any_postgres: DatabaseFactory) -> Iterator[Database]:
    """A database on each supported end of PostgreSQL's versions: the test runs once for each."""
    with any_postgres.database() as database:
        yield database


@pytest.fixture
def house(database: Database) -> House:
    """What a server process holds, around this test's database."""
    return House(database, Settings(), PeakTable.load())


@pytest.fixture
def still_house(house: House) -> House:
    """The same, with its clock held at the time of the lab's batches."""
    house.clock = lambda: NOW
    return house


@pytest.fixture
def agent(still_house: House) -> Iterator[IngestClient]:
    """Posts to the ingest endpoint with a token for any node of cluster "alpha"."""
    with ingest_client(still_house) as client:
        yield client
