"""What is old is dropped, not before what is made of it is there, and nobody is held up by it."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import pytest
from pydantic import ValidationError
from sqlalchemy import text
from sqlalchemy.exc import OperationalError

from flopwatch_server.database import partitions
from flopwatch_server.database.engine import Database
from flopwatch_server.database.partitions import MINUTES, SAMPLES
from flopwatch_server.house import House
from flopwatch_server.settings import LATE_SAMPLE_SECONDS, Retention, SettingsError, load_settings
from flopwatch_server.telemetry.minutes import recompute_hours, recompute_minutes
from flopwatch_server.telemetry.retention import drop_expired
from tests.lab.ingest import NOW, IngestClient, ingest_client, query, sampled
from tests.lab.processes import wait_for

DAY = timedelta(days=1)


@pytest.fixture
def old_house(still_house: House) -> House:
    """A house with one sample of 3 March, 12:00, of which minute and hour are not made yet."""
    still_house.settings.retention = Retention(raw_days=3, minute_days=14, hour_days=365)
    at(still_house, datetime(2025, 3, 3, 12, 0, tzinfo=UTC))
    with ingest_client(still_house) as agent:
        post(agent, still_house.clock())
    return still_house


def at(house: House, now: datetime) -> None:
    house.clock = lambda: now


def post(agent: IngestClient, end: datetime) -> None:
    row = (0, int(end.timestamp()), {"sm_active": 0.5})
    assert agent.post(*sampled([row])).status_code == 200


def days_of(database: Database, table: str) -> list[str]:
    """The first days of the partitions that exist, attached or not."""
    names = query(database, "SELECT relname FROM pg_class WHERE relkind = 'r' AND relname ~ :name",
                  name=rf"^{table}_\d+$")  # fmt: skip
    return sorted(name.removeprefix(f"{table}_") for (name,) in names)


def test_partitions_span_a_day_a_week_and_a_quarter_and_hold_the_minute_before_midnight(
    database: Database,
) -> None:
    with database.session() as session:
        partitions.ensure_days(session, [datetime(2025, 3, 10, tzinfo=UTC).date()])  # a Monday
    assert days_of(database, "samples") == ["20250310"]
    assert days_of(database, "device_minutes") == ["20250303", "20250310"]
    assert days_of(database, "device_hours") == ["20250303"]  # 91 days, to 2 June


def test_samples_are_dropped_once_they_are_old_and_minutes_and_hours_stay(
    old_house: House,
) -> None:
    recompute_minutes_and_hours(old_house, datetime(2025, 3, 3, 13, 0, tzinfo=UTC))
    at(old_house, datetime(2025, 3, 6, 23, 59, tzinfo=UTC))
    drop_expired(old_house)
    assert days_of(old_house.database, "samples") == ["20250303"]
    at(old_house, datetime(2025, 3, 7, 0, 0, tzinfo=UTC))  # the newest row is 3 days old
    drop_expired(old_house)
    drop_expired(old_house)
    assert days_of(old_house.database, "samples") == []
    assert query(old_house.database, "SELECT count(*) FROM device_minutes") == [(1,)]
    assert query(old_house.database, "SELECT samples_received FROM device_hours") == [(1,)]


def test_minutes_are_dropped_a_week_at_a_time_and_hours_by_quarters(old_house: House) -> None:
    recompute_minutes_and_hours(old_house, datetime(2025, 3, 3, 13, 0, tzinfo=UTC))
    at(old_house, datetime(2025, 3, 23, 23, 59, tzinfo=UTC))
    drop_expired(old_house)
    assert "20250303" in days_of(old_house.database, "device_minutes")
    at(old_house, datetime(2025, 3, 24, 0, 0, tzinfo=UTC))  # 14 days after the end of that week
    drop_expired(old_house)
    assert "20250303" not in days_of(old_house.database, "device_minutes")
    assert query(old_house.database, "SELECT samples_received FROM device_hours") == [(1,)]
    at(old_house, datetime(2026, 6, 2, 0, 0, tzinfo=UTC))
    drop_expired(old_house)
    assert days_of(old_house.database, "device_hours") == []


def test_hours_are_kept_for_ever_unless_it_is_said_how_long(old_house: House) -> None:
    old_house.settings.retention = Retention()
    recompute_minutes_and_hours(old_house, datetime(2035, 3, 3, 13, 0, tzinfo=UTC))
    drop_expired(old_house)
    assert days_of(old_house.database, "device_minutes") == []
    assert query(old_house.database, "SELECT samples_received FROM device_hours") == [(1,)]


def test_nothing_is_dropped_before_what_is_made_of_it_is_there(old_house: House) -> None:
    at(old_house, datetime(2025, 4, 1, tzinfo=UTC))
    drop_expired(old_house)
    assert days_of(old_house.database, "samples") == ["20250303"]
    assert "20250303" in days_of(old_house.database, "device_minutes")
    recompute_minutes(old_house)
    drop_expired(old_house)  # the minute is made, its hour is not
    assert "20250303" in days_of(old_house.database, "device_minutes")
    mark_done(old_house)
    drop_expired(old_house)
    assert days_of(old_house.database, "samples") == []
    assert "20250303" not in days_of(old_house.database, "device_minutes")
    assert query(old_house.database, "SELECT samples_received FROM device_hours") == [(1,)]


def test_the_sample_that_ends_at_midnight_keeps_its_day_until_its_minute_is_made(
    still_house: House,
) -> None:
    midnight = datetime(2025, 3, 5, tzinfo=UTC)
    at(still_house, midnight + timedelta(hours=1))
    with ingest_client(still_house) as agent:
        post(agent, midnight)
    at(still_house, midnight + 30 * DAY)
    drop_expired(still_house)
    assert days_of(still_house.database, "samples") == ["20250305"]


def test_readers_and_writers_go_on_while_a_partition_is_dropped(old_house: House) -> None:
    database = old_house.database
    recompute_minutes_and_hours(old_house, datetime(2025, 3, 3, 13, 0, tzinfo=UTC))
    at(old_house, datetime(2025, 3, 10, 12, 0, tzinfo=UTC))
    with ingest_client(old_house) as agent:
        post(agent, old_house.clock())  # the partition of today is there
        dropping = threading.Thread(target=drop_expired, args=(old_house,))
        with reading(database, "samples"):
            dropping.start()
            wait_for(lambda: is_detaching(database), "the drop waits for the reader", 20)
            post(agent, old_house.clock() + timedelta(seconds=10))
            assert query(database, "SELECT count(*) FROM samples") == [(2,)]
            assert dropping.is_alive()
        dropping.join()
    assert "20250303" not in days_of(database, "samples")


def test_a_drop_that_was_cut_short_is_finished_by_the_next(old_house: House) -> None:
    database = old_house.database
    recompute_minutes_and_hours(old_house, datetime(2025, 3, 3, 13, 0, tzinfo=UTC))
    old = SAMPLES.partition_of(datetime(2025, 3, 3, tzinfo=UTC).date())
    failed: list[OperationalError] = []

    def drop() -> None:
        try:
            partitions.drop(database, old)
        except OperationalError as error:
            failed.append(error)

    dropping = threading.Thread(target=drop)
    with reading(database, "samples"):
        dropping.start()
        wait_for(lambda: is_detaching(database), "the drop waits for the reader", 20)
        cancel = "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE query LIKE 'ALTER%'"
        query(database, cancel)
        dropping.join()
    assert len(failed) == 1
    assert days_of(database, "samples") == ["20250303"]
    with database.session() as session:
        assert partitions.oldest(session, SAMPLES) is None  # none that can be read
    at(old_house, datetime(2025, 3, 10, tzinfo=UTC))
    drop_expired(old_house)
    assert days_of(database, "samples") == []


def test_a_table_that_was_detached_and_not_dropped_is_dropped_too(old_house: House) -> None:
    recompute_minutes_and_hours(old_house, datetime(2025, 3, 3, 13, 0, tzinfo=UTC))
    with old_house.database.session() as session:
        session.execute(text("ALTER TABLE samples DETACH PARTITION samples_20250303"))
    at(old_house, datetime(2025, 3, 10, tzinfo=UTC))
    drop_expired(old_house)
    assert days_of(old_house.database, "samples") == []


@pytest.mark.parametrize("hour", [0, 11, 23])
def test_the_latest_sample_that_is_taken_has_a_day_that_is_not_dropped(
    still_house: House, hour: int
) -> None:
    still_house.settings.retention = Retention(raw_days=3)
    now = NOW.replace(hour=hour)
    at(still_house, now)
    with ingest_client(still_house) as agent:
        post(agent, now - timedelta(seconds=LATE_SAMPLE_SECONDS))
        recompute_minutes(still_house)
        recompute_hours(still_house)
        drop_expired(still_house)
        assert query(still_house.database, "SELECT count(*) FROM samples") == [(1,)]


@pytest.mark.parametrize(
    ("days", "problem"),
    [
        ({"raw_days": 2}, "greater than or equal to 3"),
        ({"raw_days": 7, "minute_days": 6}, "minute_days must not be less than raw_days"),
        ({"hour_days": 89}, "hour_days must not be less than minute_days"),
        ({"raw_day": 30}, "raw_day"),
    ],
)
def test_what_would_drop_too_early_or_is_misspelt_is_refused(
    days: dict[str, int], problem: str
) -> None:
    with pytest.raises(ValidationError, match=problem):
        Retention(**days)


def test_a_wrong_retention_is_told_by_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLOPWATCH_RETENTION__RAW_DAYS", "2")
    with pytest.raises(SettingsError, match=r"FLOPWATCH_RETENTION__RAW_DAYS: .*3"):
        load_settings()
    monkeypatch.setenv("FLOPWATCH_RETENTION__RAW_DAYS", "30")
    assert load_settings().retention == Retention(raw_days=30)


def test_a_partition_knows_its_name_and_bounds() -> None:
    found = MINUTES.partition_of(datetime(2025, 3, 9, tzinfo=UTC).date())  # a Sunday
    assert found == MINUTES.partition_named("device_minutes_20250303")
    assert found.end - found.begin == 7 * DAY


def recompute_minutes_and_hours(house: House, now: datetime) -> None:
    at(house, now)
    recompute_minutes(house)
    mark_done(house)


def mark_done(house: House) -> None:
    """Make the hours, and consume the marks that other work would."""
    recompute_hours(house)
    with house.database.session() as session:
        session.execute(text("DELETE FROM dirty_steps"))


@contextmanager
def reading(database: Database, table: str) -> Iterator[None]:
    """Somebody has a transaction open in which they read the table."""
    with database.session() as session:
        session.execute(text(f"SELECT count(*) FROM {table}"))
        yield


def is_detaching(database: Database) -> bool:
    return bool(query(database, "SELECT 1 FROM pg_inherits WHERE inhdetachpending"))
