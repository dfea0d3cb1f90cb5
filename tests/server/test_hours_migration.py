"""Minutes that were there before partitions and hours are kept, and make hours."""

from collections.abc import Iterator

import psycopg
import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import make_url, text

from flopwatch.gpus import PeakTable
from flopwatch_server.database.engine import Database
from flopwatch_server.database.migrate import migrations_folder, upgrade
from flopwatch_server.house import House
from flopwatch_server.settings import Settings
from flopwatch_server.telemetry.minutes import recompute_hours
from tests.lab.ingest import query

MINUTES = """
INSERT INTO devices (id, uuid, instance, profile, valid_from, model)
VALUES (1, 'GPU-1', '', '', '2026-01-01Z', 'NVIDIA H100 80GB HBM3');
INSERT INTO device_minutes (device_id, minute, state, samples_received, samples_expected,
                            samples_suspect, sm_active)
VALUES (1, '2026-03-08 23:59Z', 1, 6, 6, 0, 0), (1, '2026-03-09 00:00Z', 3, 5, 6, 0, 0.5),
       (1, '2026-03-09 00:01Z', 3, 6, 6, 0, 1);
"""  # 9 March is a Monday


@pytest.fixture
def old_database(postgres_url: str) -> Iterator[Database]:
    """A database as the second migration left it, with three minutes."""
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("CREATE DATABASE before_hours")
    database = Database(
        make_url(postgres_url).set(database="before_hours").render_as_string(hide_password=False)
    )
    config = Config()
    config.set_main_option("script_location", str(migrations_folder()))
    with database.engine.connect() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "0002")
    with database.session() as session:
        session.execute(text(MINUTES))
    try:
        yield database
    finally:
        database.dispose()
        with psycopg.connect(postgres_url, autocommit=True) as connection:
            connection.execute("DROP DATABASE before_hours WITH (FORCE)")


def test_minutes_move_into_their_weeks_and_make_hours(old_database: Database) -> None:
    upgrade(old_database)
    found = query(
        old_database,
        "SELECT tableoid::regclass::text, minute::text, state, sm_active FROM device_minutes "
        "ORDER BY minute",
    )
    assert found == [
        ("device_minutes_20260302", "2026-03-08 23:59:00+00", 1, 0.0),
        ("device_minutes_20260309", "2026-03-09 00:00:00+00", 3, 0.5),
        ("device_minutes_20260309", "2026-03-09 00:01:00+00", 3, 1.0),
    ]
    recompute_hours(House(old_database, Settings(), PeakTable.load()))
    hours = (
        "SELECT hour::text, idle_minutes, active_minutes, sm_active FROM device_hours ORDER BY 1"
    )
    assert query(old_database, hours) == [
        ("2026-03-08 23:00:00+00", 1, 0, 0.0),
        ("2026-03-09 00:00:00+00", 0, 2, 0.75),
    ]
