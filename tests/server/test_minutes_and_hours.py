"""Minutes and hours equal what numpy makes of the same samples, in whatever order they came."""

import itertools
import threading
from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import select, text

from flopwatch import wire
from flopwatch_server.database.engine import Database
from flopwatch_server.house import House
from flopwatch_server.telemetry.minutes import recompute_hours, recompute_minutes
from flopwatch_server.telemetry.models import device_hours, device_minutes
from tests.lab.ingest import NOW, NOW_SECONDS, IngestClient, device, ingest_client, query, sampled
from tests.server import oracle
from tests.server.oracle import Cells

DEVICES = 2
LIVES = 3
BEGIN = NOW_SECONDS - 2 * 3600  # two whole hours until NOW
SLOTS = 2 * 360
Key = tuple[int, int, int]
"""(device, life of the agent, number of the 10 s)."""

KINDS: tuple[Cells, ...] = (
    {"sm_active": 0.0, "gpu_utilization": 0.0, "power_watts": 70.0, "energy_joules": 700.0},
    {"sm_active": 0.1, "gpu_utilization": 1.0, "tensor_active": 0.01, "dram_active": 0.05,
     "sm_min": 0.0, "sm_max": 0.25, "power_watts": 200.0, "energy_joules": 2000.0},
    {"sm_active": 0.9, "gpu_utilization": 1.0, "tensor_active": 0.5, "dram_active": 1.0,
     "sm_min": 0.75, "sm_max": 1.0, "power_watts": 650.0, "temperature_c": 70.0},
    {"sm_active": 0.0, "gpu_utilization": 1.0},  # suspect
    {"gpu_utilization": 0.0},
    {"power_watts": 70.0},
)  # fmt: skip
RANDOM = st.fixed_dictionaries(
    {},
    optional={
        name: st.floats(0, 1, width=32, allow_subnormal=False)
        for name in ("sm_active", "gpu_utilization", "tensor_active", "fp16_active", "sm_min")
    }
    | {
        name: st.floats(0, 1000, width=32, allow_subnormal=False)
        for name in ("power_watts", "energy_joules", "memory_used_mib")
    },
)
STRETCHES = st.tuples(
    st.integers(0, DEVICES - 1),
    st.integers(1, LIVES),
    st.one_of(st.integers(0, SLOTS - 1), st.integers(354, 366)),  # often across the hour
    st.integers(1, 40),
    st.lists(st.one_of(st.sampled_from(KINDS), RANDOM), min_size=1, max_size=3),
)
"""Samples one after the other of one device in one life, which repeat a few values."""


@settings(max_examples=settings().max_examples // 4)
@given(steps=st.lists(st.one_of(STRETCHES, st.sampled_from(["minutes", "hours", "again"])),
                      min_size=1, max_size=12))  # fmt: skip
def test_minutes_and_hours_equal_what_numpy_makes_of_the_same_samples(
    agent: IngestClient, still_house: House, steps: list[Any]
) -> None:
    start_anew(agent)
    told: dict[Key, Cells] = {}
    last: dict[Key, Cells] = {}
    for step in steps:
        if step == "minutes":
            recompute_minutes(still_house)
        elif step == "hours":
            recompute_hours(still_house)
        elif step == "again":
            post(agent, last)
        else:
            last = samples_of(*step)
            post(agent, last)
            told = last | told  # what is there already stays as it is
    recompute_minutes(still_house)
    recompute_hours(still_house)
    check_minutes(still_house.database, told)
    check_hours(still_house.database)


def test_nothing_is_lost_while_marks_are_consumed(still_house: House) -> None:
    told: dict[Key, Cells] = {}
    posting = threading.Event()
    posting.set()

    def consume() -> None:
        while posting.is_set():
            recompute_minutes(still_house)
            recompute_hours(still_house)

    consumers = [threading.Thread(target=consume) for _ in range(2)]
    with ingest_client(still_house) as agent:
        start_anew(agent)
        for consumer in consumers:
            consumer.start()
        # Every minute gets its samples one by one, from all devices and lives, across the hour.
        for slot, number in itertools.product(range(330, 390), range(DEVICES)):
            life = 1 + (slot + number) % LIVES
            samples = samples_of(number, life, slot, 3, [KINDS[(slot // 6 + number) % 3]])
            post(agent, samples)
            told = samples | told
        posting.clear()
        for consumer in consumers:
            consumer.join()
    recompute_minutes(still_house)
    recompute_hours(still_house)
    check_minutes(still_house.database, told)
    check_hours(still_house.database)


def test_an_hour_is_made_once_it_is_over_and_again_when_late_samples_come(
    agent: IngestClient, still_house: House
) -> None:
    still_house.clock = lambda: NOW - timedelta(seconds=1)
    start_anew(agent)
    post(agent, samples_of(0, 1, 360, 354, [KINDS[0]]))  # all but the last minute
    recompute_minutes(still_house)
    recompute_hours(still_house)
    assert query(still_house.database, "SELECT * FROM device_hours") == []
    still_house.clock = lambda: NOW
    idle = "SELECT hour, idle_minutes, samples_received, samples_expected FROM device_hours"
    recompute_hours(still_house)
    assert query(still_house.database, idle) == [(NOW - timedelta(hours=1), 59, 354, 360)]
    post(agent, samples_of(0, 1, 714, 6, [KINDS[0]]))
    recompute_minutes(still_house)
    recompute_hours(still_house)
    assert query(still_house.database, idle) == [(NOW - timedelta(hours=1), 60, 360, 360)]


def test_an_hour_whose_minutes_are_gone_stays_as_it_is(
    agent: IngestClient, still_house: House
) -> None:
    start_anew(agent)
    post(agent, samples_of(0, 1, 0, 360, [KINDS[2]]))
    recompute_minutes(still_house)
    recompute_hours(still_house)
    with still_house.database.session() as session:
        session.execute(text("INSERT INTO dirty_hours (device_id, hour) "
                             "SELECT device_id, hour FROM device_hours"))  # fmt: skip
        session.execute(text("DELETE FROM device_minutes"))
    recompute_hours(still_house)
    assert query(still_house.database, "SELECT active_minutes FROM device_hours") == [(60,)]
    assert query(still_house.database, "SELECT count(*) FROM dirty_hours") == [(0,)]


def test_one_turn_of_hours_is_short_however_many_are_marked(still_house: House) -> None:
    mark_hours(still_house, "generate_series(1, 25000) AS device")
    turns = [recompute_hours(still_house) for _ in range(3)]
    assert turns == [True, True, False]  # 10,000 each


def test_an_hour_that_each_of_its_minutes_has_marked_is_made_once(still_house: House) -> None:
    mark_hours(still_house, "generate_series(1, 60), generate_series(1, 200) AS device")
    assert recompute_hours(still_house)
    marks = "SELECT count(*) FROM dirty_hours GROUP BY device_id"
    assert query(still_house.database, marks) == [(60,)] * 33  # 10,000 are of 167 devices
    assert not recompute_hours(still_house)
    assert query(still_house.database, marks) == []


def mark_hours(house: House, devices: str) -> None:
    """Leave a mark of the last hour for each of these rows of devices."""
    with house.database.session() as session:
        session.execute(
            text(f"INSERT INTO dirty_hours (device_id, hour) SELECT device, :hour FROM {devices}"),
            {"hour": NOW - timedelta(hours=1)},
        )


def start_anew(agent: IngestClient) -> None:
    """Empty tables, and an agent whose lives have all been heard of, in their order."""
    tables = "samples, device_minutes, device_hours, dirty_marks, dirty_hours"
    with agent.database.session() as session:
        session.execute(text(f"TRUNCATE {tables}"))
    for life in range(1, LIVES + 1):
        post(agent, {(number, life, -1): {} for number in range(DEVICES)})
    with agent.database.session() as session:
        session.execute(text("TRUNCATE samples, dirty_marks"))


def samples_of(
    number: int, life: int, first: int, length: int, values: list[Cells]
) -> dict[Key, Cells]:
    slots = range(first, min(first + length, SLOTS))
    return {(number, life, slot): values[slot % len(values)] for slot in slots}


def post(agent: IngestClient, samples: dict[Key, Cells]) -> None:
    """Post samples of one life of the agent."""
    if not samples:
        return
    [life] = {life for _, life, _ in samples}
    rows = [
        (number, BEGIN + 10 * (slot + 1), cells) for (number, _, slot), cells in samples.items()
    ]
    epoch = wire.Epoch("boot", life, BEGIN + float(life), "0.1.0")
    devices = [device(number) for number in range(DEVICES)]
    assert agent.post(*sampled(rows, devices=devices, epoch=epoch)).status_code == 200


def check_minutes(database: Database, told: dict[Key, Cells]) -> None:
    heard: dict[tuple[int, int], Cells] = {}
    for (number, _, slot), cells in sorted(told.items(), key=lambda item: item[0][1]):
        heard[number, slot] = cells  # of an interval, the later life has the word
    by_minute: dict[tuple[int, datetime], list[Cells]] = defaultdict(list)
    for (number, slot), cells in heard.items():
        begin = NOW - timedelta(hours=2) + timedelta(minutes=slot // 6)
        by_minute[number, begin].append(cells)
    wanted = {key: oracle.minute(samples) for key, samples in by_minute.items()}
    assert_equal(minutes_of(database), wanted)


def check_hours(database: Database) -> None:
    by_hour: dict[tuple[int, datetime], list[dict[str, Any]]] = defaultdict(list)
    for (number, minute), row in minutes_of(database).items():
        by_hour[number, minute.replace(minute=0)].append(row)
    assert_equal(hours_of(database), {key: oracle.hour(rows) for key, rows in by_hour.items()})


def minutes_of(database: Database) -> dict[tuple[int, datetime], dict[str, Any]]:
    """All minutes by (number of the device, minute), NaN where unknown."""
    return _rows(database, device_minutes, "minute")


def hours_of(database: Database) -> dict[tuple[int, datetime], dict[str, Any]]:
    """The same of hours, their points as histograms."""
    rows = _rows(database, device_hours, "hour")
    for row in rows.values():
        for name in oracle.SPREADS:
            points = row[f"{name}_points"] or b""
            assert isinstance(points, bytes)
            row[f"histogram of {name}"] = np.bincount(list(points), minlength=101).tolist()
    return rows


def _rows(database: Database, table: Any, time: str) -> dict[tuple[int, datetime], dict[str, Any]]:
    [(first,)] = query(database, "SELECT min(id) FROM devices")
    with database.session() as session:
        found = session.execute(select(table)).mappings().all()
    return {
        (row["device_id"] - first, row[time]): {
            name: float("nan") if value is None and name in oracle.MEASURES else value
            for name, value in row.items()
        }
        for row in found
    }


def assert_equal(found: dict[Any, dict[str, Any]], wanted: dict[Any, dict[str, Any]]) -> None:
    assert found.keys() == wanted.keys()
    for key, row in wanted.items():
        plain = [name for name in row if name not in oracle.MEASURES]
        assert {name: found[key][name] for name in plain} == {name: row[name] for name in plain}
        np.testing.assert_allclose(
            _measures(found[key]), _measures(row), rtol=1e-6, err_msg=str(key)
        )


def _measures(row: dict[str, Any]) -> Iterable[float]:
    return [row[name] for name in oracle.MEASURES]
