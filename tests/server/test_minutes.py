"""A minute is what its samples say, however they came."""

import threading
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import func, select

from flopwatch import wire
from flopwatch_server.database.engine import Database
from flopwatch_server.house import House
from flopwatch_server.settings import Thresholds
from flopwatch_server.telemetry.minutes import recompute_minutes
from flopwatch_server.telemetry.models import STATES
from flopwatch_server.telemetry.repository.minutes import MINUTES
from tests.lab.ingest import NOW, NOW_SECONDS, IngestClient, device, query, sampled
from tests.lab.processes import wait_for

MINUTE = NOW - timedelta(minutes=1)
Cells = dict[str, float]

IDLE: Cells = {"sm_active": 0.0, "gpu_utilization": 0.0, "power_watts": 70.0}
LOW: Cells = {"sm_active": 0.14, "gpu_utilization": 1.0, "power_watts": 200.0}
BUSY: Cells = {"sm_active": 0.9, "gpu_utilization": 1.0, "power_watts": 650.0}
UNKNOWN: Cells = {"power_watts": 70.0}


def ends(count: int = 6) -> list[int]:
    """The ends of the first `count` intervals of the minute before NOW."""
    return [NOW_SECONDS - 50 + 10 * number for number in range(count)]


def post(agent: IngestClient, samples: Sequence[tuple[int, Cells]], **changes: Any) -> None:
    """Post samples (end, values) of one device."""
    answer = agent.post(*sampled([(0, end, cells) for end, cells in samples], **changes))
    assert answer.status_code == 200


def post_minute(agent: IngestClient, cells: Sequence[Cells]) -> None:
    post(agent, list(zip(ends(len(cells)), cells, strict=True)))


def states(database: Database) -> dict[datetime, str]:
    rows = query(database, "SELECT minute, state FROM device_minutes ORDER BY minute")
    return {minute: STATES[state] for minute, state in rows}


@pytest.mark.parametrize(
    ("cells", "state"),
    [
        ([IDLE] * 6, "idle"),
        ([IDLE] * 5, "idle"),  # 5 of 6 are 83 %
        ([IDLE] * 4, "unknown"),  # 67 %
        ([IDLE] * 5 + [LOW], "low"),
        ([LOW] * 6, "low"),
        ([LOW] * 5, "low"),
        ([LOW] * 4, "unknown"),
        ([BUSY] * 6, "active"),
        ([BUSY] + [IDLE] * 5, "low"),  # a mean of just under 0.15
        ([{"sm_active": 0.15}] * 6, "active"),  # 0.15 is not below 0.15
        ([BUSY] * 5 + [UNKNOWN], "active"),
        ([UNKNOWN] * 6, "unknown"),
        ([IDLE] * 5 + [UNKNOWN], "idle"),  # a sample that can't tell is as good as missing
        ([IDLE] * 4 + [UNKNOWN] * 2, "unknown"),
        ([{"sm_active": 0.0}] * 6, "idle"),  # utilization is not known
        ([{"sm_active": 0.0099}] * 6, "idle"),
        ([{"sm_active": 0.01}] * 6, "low"),
        ([{"gpu_utilization": 0.0}] * 6, "idle"),  # no SM activity before Hopper without DCGM
        ([{"gpu_utilization": 0.01}] * 6, "unknown"),  # busy, but how much nobody knows
        ([{"sm_active": 0.005, "gpu_utilization": 0.01}] * 6, "low"),
        ([{"sm_active": 0.0, "gpu_utilization": 0.49}] * 6, "low"),
        ([{"sm_active": 0.0, "gpu_utilization": 0.5}] * 6, "unknown"),  # they contradict
        ([IDLE] * 5 + [{"sm_active": 0.0, "gpu_utilization": 1.0}], "unknown"),
        ([IDLE | {"power_watts": 350.0}] * 6, "idle"),  # half the board's 700 W
        ([IDLE | {"power_watts": 351.0}] * 6, "unknown"),
        ([{"gpu_utilization": 0.0, "power_watts": 600.0}] * 6, "unknown"),
    ],
)
def test_the_state_of_a_minute(
    agent: IngestClient, still_house: House, cells: list[Cells], state: str
) -> None:
    post_minute(agent, cells)
    recompute_minutes(still_house)
    assert states(still_house.database) == {MINUTE: state}


@pytest.mark.parametrize(
    "cells",
    [
        {"sm_active": 0.009, "power_watts": 360.0},
        {"sm_active": 0.0, "gpu_utilization": 0.0, "tensor_active": 0.4},
        {"gpu_utilization": 0.0, "fp16_active": 0.02},
    ],
    ids=lambda cells: ",".join(cells),
)
def test_what_looks_idle_but_computes_or_draws_power_is_unknown(
    agent: IngestClient, still_house: House, cells: Cells
) -> None:
    post_minute(agent, [cells] * 6)
    recompute_minutes(still_house)
    assert set(states(agent.database).values()) == {"unknown"}


def test_a_board_without_a_known_limit_is_never_suspect_by_power(
    agent: IngestClient, still_house: House
) -> None:
    hot = IDLE | {"power_watts": 600.0}
    post(agent, [(end, hot) for end in ends()], devices=[device(power_limit_watts=None)])
    recompute_minutes(still_house)
    assert states(still_house.database) == {MINUTE: "idle"}


def test_thresholds_are_the_settings(agent: IngestClient, still_house: House) -> None:
    post_minute(agent, [LOW] * 4)
    still_house.settings.thresholds = Thresholds(low_sm_active=0.1, coverage=0.5)
    recompute_minutes(still_house)
    assert states(still_house.database) == {MINUTE: "active"}


@pytest.mark.parametrize(("cells", "state"), [(IDLE, "idle"), (LOW, "low")])
def test_a_minute_is_known_from_exactly_the_coverage_that_is_asked_for(
    agent: IngestClient, still_house: House, cells: Cells, state: str
) -> None:
    post_minute(agent, [cells] * 3)
    still_house.settings.thresholds = Thresholds(coverage=0.5)
    recompute_minutes(still_house)
    assert states(still_house.database) == {MINUTE: state}


def test_a_sample_that_ends_with_a_minute_belongs_to_it_and_a_minute_is_made_once_it_is_over(
    agent: IngestClient, still_house: House
) -> None:
    post(agent, [(NOW_SECONDS - 60, IDLE), (NOW_SECONDS - 50, IDLE), (NOW_SECONDS, IDLE),
                 (NOW_SECONDS + 10, IDLE)])  # fmt: skip
    recompute_minutes(still_house)
    received = "SELECT minute, samples_received FROM device_minutes ORDER BY minute"
    over = [(MINUTE - timedelta(minutes=1), 1), (MINUTE, 2)]
    assert query(still_house.database, received) == over
    still_house.clock = lambda: NOW + timedelta(minutes=1)
    recompute_minutes(still_house)
    assert query(still_house.database, received) == [*over, (NOW, 1)]


def test_means_extremes_energy_and_coverage_by_hand(
    agent: IngestClient, still_house: House
) -> None:
    post_minute(
        agent,
        [
            {"sm_active": 0.5, "energy_joules": 4000, "power_watts": 400, "sm_min": 0.25,
             "sm_max": 0.5, "gpu_utilization": 1},
            {"sm_active": 0.25, "energy_joules": 2000, "power_watts": 200, "sm_min": 0.125,
             "sm_max": 0.875, "gpu_utilization": 1},
            {"sm_active": 0.0, "gpu_utilization": 1},
        ],
    )  # fmt: skip
    recompute_minutes(still_house)
    columns = ("sm_active, sm_active_max, energy_joules, power_watts, power_watts_max, sm_min, "
               "sm_max, dram_active, dram_active_max, samples_received, samples_expected, "
               "samples_suspect")  # fmt: skip
    assert query(still_house.database, f"SELECT {columns} FROM device_minutes") == [
        (0.25, 0.5, 6000.0, 300.0, 400.0, 0.125, 0.875, None, None, 3, 6, 1)
    ]


def test_an_interval_told_by_two_lives_of_the_agent_counts_once_by_the_later(
    agent: IngestClient, still_house: House
) -> None:
    for number, watts in ((1, 100.0), (2, 300.0)):
        samples = [(end, {"sm_active": 0.5, "power_watts": watts, "energy_joules": 10 * watts})
                   for end in ends(3)]  # fmt: skip
        post(agent, samples, epoch=wire.Epoch("boot-a", number, 0.0, "0.1.0"))
    recompute_minutes(still_house)
    columns = "samples_received, power_watts, energy_joules"
    assert query(still_house.database, f"SELECT {columns} FROM device_minutes") == [
        (3, 300.0, 9000.0)
    ]


def test_a_value_too_small_for_a_mean_is_zero(agent: IngestClient, still_house: House) -> None:
    post_minute(agent, [{"sm_active": 2.0**-149}, {"sm_active": 0.0}])
    recompute_minutes(still_house)
    assert query(still_house.database, "SELECT sm_active FROM device_minutes") == [(0.0,)]


def test_late_samples_change_their_minute(agent: IngestClient, still_house: House) -> None:
    post_minute(agent, [IDLE] * 3)
    recompute_minutes(still_house)
    assert states(still_house.database) == {MINUTE: "unknown"}
    post(agent, [(end, IDLE) for end in ends()[3:]])
    recompute_minutes(still_house)
    assert states(still_house.database) == {MINUTE: "idle"}


def test_marks_are_consumed_and_a_minute_without_samples_is_left_as_it_is(
    agent: IngestClient, still_house: House
) -> None:
    post_minute(agent, [IDLE] * 6)
    recompute_minutes(still_house)
    assert query(still_house.database, "SELECT count(*) FROM dirty_marks") == [(0,)]
    with still_house.database.session() as session:
        connection = session.connection()
        connection.exec_driver_sql("INSERT INTO dirty_marks (device_id, minute) "
                                   "SELECT device_id, minute FROM device_minutes")  # fmt: skip
        connection.exec_driver_sql("DELETE FROM samples")
    recompute_minutes(still_house)
    assert states(still_house.database) == {MINUTE: "idle"}


def test_more_marks_than_one_turn_takes_are_done_by_several(
    agent: IngestClient, still_house: House
) -> None:
    post_minute(agent, [IDLE] * 6)
    with still_house.database.session() as session:
        session.connection().exec_driver_sql(
            "INSERT INTO dirty_marks (device_id, minute) "
            "SELECT 1, timestamptz '2020-01-01 00:00Z' + number * interval '1 minute' "
            "FROM generate_series(1, 125000) AS number"
        )
    assert recompute_minutes(still_house)
    assert states(still_house.database) == {MINUTE: "idle"}  # the newest is made first
    turns = [recompute_minutes(still_house) for _ in range(2)]
    assert turns == [True, False]  # 60,000 each
    assert query(still_house.database, "SELECT count(*) FROM dirty_marks") == [(0,)]


def test_devices_of_all_parts_are_made(agent: IngestClient, still_house: House) -> None:
    post_minute(agent, [IDLE] * 6)
    with still_house.database.session() as session:
        connection = session.connection()
        copied = {"devices": "valid_from", "samples": "device_id"}
        for table, column in copied.items():
            key = "id" if table == "devices" else column
            names = connection.exec_driver_sql(f"SELECT * FROM {table} LIMIT 0").keys()
            new = ", ".join("600" if name == key else "'GPU-600'" if name == "uuid" else name
                            for name in names)  # fmt: skip
            connection.exec_driver_sql(f"INSERT INTO {table} SELECT {new} FROM {table}")
        connection.exec_driver_sql(
            "INSERT INTO dirty_marks (device_id, minute) SELECT 600, minute FROM dirty_marks"
        )
    recompute_minutes(still_house)
    made = query(still_house.database, "SELECT device_id, state FROM device_minutes ORDER BY 1")
    assert made == [(1, STATES.index("idle")), (600, STATES.index("idle"))]


def test_a_recomputation_waits_for_the_end_of_another(
    agent: IngestClient, still_house: House
) -> None:
    database = still_house.database
    waiting = "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
    post_minute(agent, [IDLE] * 6)
    second = threading.Thread(target=recompute_minutes, args=(still_house,))
    with database.session() as first:
        first.execute(select(func.pg_advisory_xact_lock(MINUTES.lock)))
        second.start()
        wait_for(lambda: query(database, waiting), "the second waits", 20)
        assert query(database, "SELECT count(*) FROM dirty_marks") == [(1,)]
    second.join()
    assert states(database) == {MINUTE: "idle"}
