"""A big cluster in a database, made without its agents: `with dataset() as data`.

1,000 nodes of 8 GPUs that held jobs of many sizes for 24 hours until `NOW`. The newest 209 minutes
are there as samples (10 M rows, by COPY, in the order in which agents would have sent them) with
their marks; the minutes before are written by SQL, as if they had been made of samples: 45 GB of
those nobody could wait for. The same figures come out every time.
"""

import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
from sqlalchemy import insert
from sqlalchemy.orm import Session

from flopwatch.gpus import PeakTable
from flopwatch.metrics import COLUMNS
from flopwatch_server.database.copy import Floats, Keys, encode, timestamps
from flopwatch_server.database.embedded import EmbeddedPostgres
from flopwatch_server.database.engine import Database
from flopwatch_server.database.migrate import upgrade
from flopwatch_server.database.partitions import ensure_days
from flopwatch_server.fleet.models import AgentEpoch, Device, Node, Placement
from flopwatch_server.fleet.repository.clusters import ensure_cluster
from flopwatch_server.house import House
from flopwatch_server.jobs.models import Allocation, Run
from flopwatch_server.scheduler.models import SchedulerSource
from flopwatch_server.settings import Settings
from flopwatch_server.telemetry.models import MAX_COLUMNS, MEAN_COLUMNS

NOW = datetime(2026, 3, 12, 12, tzinfo=UTC)
CLUSTER = "bench"
GPUS = 8
DAY_JOB = "1"
"""The job that has held the 8 GPUs of the first node for longer than a day."""

_DAY_BEFORE = NOW - timedelta(hours=24)
_LONG_AGO = NOW - timedelta(days=30)
_BUSY = {
    "engine_active": 0.9, "sm_active": 0.8, "sm_occupancy": 0.4, "tensor_active": 0.35,
    "dram_active": 0.5, "fp64_active": 0.01, "fp32_active": 0.1, "fp16_active": 0.05,
    "gpu_utilization": 0.9, "memory_used_mib": 60_000, "power_watts": 500, "energy_joules": 5_000,
    "sm_clock_mhz": 1_700, "temperature_c": 60, "pcie_tx": 1e9, "pcie_rx": 2e9, "nvlink_tx": 1e10,
    "nvlink_rx": 1e10, "throttled_share": 0.1, "engine_low_share": 0.05, "sm_min": 0.5,
    "sm_max": 0.9, "subsample_count": 10, "source_period": 1,
}  # fmt: skip
_STEADY = {"memory_used_mib": 60_000, "sm_clock_mhz": 1_700, "temperature_c": 60,
           "subsample_count": 10, "source_period": 1}  # fmt: skip
_IDLE = dict.fromkeys(COLUMNS, 0.0) | _STEADY | {"power_watts": 70, "energy_joules": 700}
_LOW = _BUSY | {"sm_active": 0.1, "tensor_active": 0.01, "sm_min": 0.0, "sm_max": 0.3}
# What the GPUs of ten nodes do, all the time, and the state that follows.
_CHARACTERS = ((_BUSY, 3),) * 7 + ((_LOW, 2),) * 2 + ((_IDLE, 1),)


@dataclass(frozen=True, slots=True)
class Dataset:
    """A database with the cluster in it. Samples of (`samples_from`, NOW] await their minutes."""

    house: House
    postgres: EmbeddedPostgres
    samples_from: datetime
    rows: int


@contextmanager
def dataset(nodes: int = 1_000, sample_minutes: int = 209) -> Iterator[Dataset]:
    """The cluster in a PostgreSQL of its own, which is gone in the end."""
    with tempfile.TemporaryDirectory(prefix="flopwatch-bench-") as folder:
        Path(folder).chmod(0o755)  # run as root, the database drops to another account
        postgres = EmbeddedPostgres(Path(folder) / secrets.token_hex(4))
        database = Database(postgres.start())
        samples_from = NOW - timedelta(minutes=sample_minutes)
        try:
            upgrade(database)
            with database.session() as session:
                ensure_days(session, [_DAY_BEFORE.date(), NOW.date()])
                _write_fleet(session, nodes)
            with psycopg.connect(database.conninfo) as connection:
                _write_minutes(connection, samples_from)
                _write_samples(connection, nodes, samples_from)
            with psycopg.connect(database.conninfo, autocommit=True) as connection:
                connection.execute("VACUUM ANALYZE")
            house = House(database, Settings(), PeakTable.load(), clock=lambda: NOW)
            yield Dataset(house, postgres, samples_from, nodes * GPUS * sample_minutes * 6)
        finally:
            database.dispose()
            postgres.stop()


def _write_fleet(session: Session, nodes: int) -> None:
    """Nodes with their GPUs, ids counted from 1, and the jobs that held them."""
    cluster_id = ensure_cluster(session, CLUSTER, _LONG_AGO)
    session.add(SchedulerSource(cluster_id=cluster_id, kind="feed", last_success_at=NOW))
    numbers = range(1, nodes + 1)
    partitions = ("gpu", "gpu", "gpu", "large", "debug")
    session.execute(insert(Node), [
        {"cluster_id": cluster_id, "name": f"g{node:04d}", "scheduler_state": "ALLOCATED",
         "gpu_count": GPUS, "partitions": [partitions[node % 5]], "last_batch_at": NOW}
        for node in numbers
    ])  # fmt: skip
    session.execute(insert(AgentEpoch), [
        {"node_id": node, "boot_id": "boot", "number": 1, "started_at": _LONG_AGO,
         "agent_version": "0.1.0"}
        for node in numbers
    ])  # fmt: skip
    gpus = [(node, minor) for node in numbers for minor in range(GPUS)]
    session.execute(insert(Device), [
        {"uuid": f"GPU-{node:04d}-{minor}", "instance": "", "profile": "", "memory_mib": 81_559.0,
         "valid_from": _LONG_AGO, "model": "NVIDIA H100 80GB HBM3", "power_limit_watts": 700.0}
        for node, minor in gpus
    ])  # fmt: skip
    session.execute(insert(Placement), [
        {"device_id": device, "valid_from": _LONG_AGO, "node_id": node, "minor": minor,
         "gres_ordinal": minor}
        for device, (node, minor) in enumerate(gpus, 1)
    ])  # fmt: skip
    runs, allocations = _jobs(cluster_id, nodes)
    session.execute(insert(Run), runs)
    session.execute(insert(Allocation), allocations)


def _jobs(cluster_id: int, nodes: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Runs one after the other on every stretch of GPUs, and their allocations."""
    runs: list[dict[str, Any]] = []
    allocations: list[dict[str, Any]] = []
    numbers = count(1)
    generator = np.random.default_rng(1)
    for gpus in _stretches(nodes):
        start = NOW - timedelta(hours=30)
        while start < NOW:
            number = next(numbers)
            hours = 30 if number == 1 else float(generator.choice((1.5, 4, 12, 30)))
            end = start + timedelta(hours=hours)
            runs.append(_run(cluster_id, number, start, end, gpus))
            allocations += [
                {"run_id": number, "node_id": node, "place": minor, "gres_ordinal": minor,
                 "device_id": (node - 1) * GPUS + minor + 1, "valid_from": start,
                 "valid_to": end if end < NOW else None, "shared": False, "source": "slurm",
                 "confidence": "certain"}
                for node, minor in gpus
            ]  # fmt: skip
            start = end + timedelta(minutes=7)
    return runs, allocations


def _stretches(nodes: int) -> Iterator[list[tuple[int, int]]]:
    """Which (node, minor) are given away together: 8, 64, 4 or 1 GPUs."""
    for first in range(1, nodes + 1, 10):
        block = range(first, min(first + 10, nodes + 1))
        whole = [[(node, minor) for minor in range(GPUS)] for node in block]
        if first % 100 == 91 and len(whole) == 10:
            yield [gpu for node in whole[:8] for gpu in node]
            yield from whole[8:]
            continue
        for place, node in enumerate(whole):
            size = 1 if place == 9 else 4 if place == 8 else GPUS
            yield from (node[begin : begin + size] for begin in range(0, GPUS, size))


def _run(
    cluster_id: int, number: int, start: datetime, end: datetime, gpus: list[tuple[int, int]]
) -> dict[str, Any]:
    """A run by number; what began before now and ends after it is running."""
    runs_now = end >= NOW
    return {
        "cluster_id": cluster_id, "raw_job_id": number, "submitted_at": start - timedelta(hours=1),
        "display_id": str(number), "name": f"train-{number % 40}", "user_name": f"u{number % 150}",
        "account": f"a{number % 25}", "partition": ("gpu", "gpu", "gpu", "large", "debug")[
            gpus[0][0] % 5], "qos": "normal", "reason": "",
        "state": "RUNNING" if runs_now else "COMPLETED", "started_at": start,
        "ended_at": None if runs_now else end, "suspended_seconds": 0, "restarts": 0,
        "gpu_count": len(gpus), "node_count": len({node for node, _ in gpus}),
    }  # fmt: skip


def _write_minutes(connection: psycopg.Connection, until: datetime) -> None:
    """Minutes of all devices from 24 hours before `NOW` until `until`, and marks of their hours."""
    connection.execute("CREATE TEMP TABLE characters (place int, state int, "
                       + ", ".join(f"{name} real" for name in COLUMNS) + ")")  # fmt: skip
    marks = ", ".join(["%s"] * (len(COLUMNS) + 2))
    for place, (values, state) in enumerate(_CHARACTERS):
        row = [place, state, *(values[name] for name in COLUMNS)]
        connection.execute(f"INSERT INTO characters VALUES ({marks})".encode(), row)
    # A share of 0.9 to 1 of what the character would do at most.
    noisy = [f"c.{name} * noise AS {name}" for name in MEAN_COLUMNS]
    maxima = [f"c.{name} AS {name}_max" for name in MAX_COLUMNS]
    names = [*MEAN_COLUMNS, *(f"{name}_max" for name in MAX_COLUMNS)]
    statement = f"""
        INSERT INTO device_minutes (device_id, minute, state, samples_received, samples_expected,
            samples_suspect, energy_joules, sm_min, sm_max, {", ".join(names)})
        SELECT d.id, minute, c.state, 6, 6, 0, 6 * c.energy_joules * noise, c.sm_min, c.sm_max,
            {", ".join([*noisy, *maxima])}
        FROM generate_series(%(begin)s::timestamptz, %(end)s, '1 minute') AS minute
        CROSS JOIN LATERAL (SELECT id, (1 - random() / 10)::real AS noise FROM devices
                            WHERE minute IS NOT NULL ORDER BY id) AS d
        JOIN characters AS c ON c.place = (d.id - 1) / {GPUS} %% 10
    """
    connection.execute("SELECT setseed(0.5)")
    period = {"begin": _DAY_BEFORE, "end": until - timedelta(minutes=1)}
    connection.execute(statement.encode(), period)
    connection.execute(
        "INSERT INTO dirty_hours (device_id, hour) SELECT id, hour FROM devices, generate_series("
        "date_trunc('hour', %(begin)s::timestamptz), %(end)s, '1 hour') AS hour",
        period,
    )
    connection.commit()


def _write_samples(connection: psycopg.Connection, nodes: int, since: datetime) -> None:
    """Samples of all devices in (since, NOW], one interval after the other, and their marks."""
    statement = (
        f"COPY samples (device_id, epoch_id, ts, {', '.join(COLUMNS)}) FROM STDIN (FORMAT BINARY)"
    )
    device = np.arange(1, nodes * GPUS + 1, dtype=np.int32)
    epoch = (device - 1) // GPUS + 1
    base = _bases(nodes)
    generator = np.random.default_rng(2)
    begin, end = int(since.timestamp()), int(NOW.timestamp())
    for chunk in np.array_split(np.arange(begin + 10, end + 1, 10), 60):
        times = np.repeat(chunk, len(device))
        noise = generator.uniform(0.9, 1.0, (len(times), 1)).astype(np.float32)
        keys: list[Keys] = [
            np.tile(device, len(chunk)),
            np.tile(epoch, len(chunk)),
            timestamps(times),
        ]
        with connection.cursor().copy(statement.encode()) as copy:
            for block in encode(keys, np.tile(base, (len(chunk), 1)) * noise):
                copy.write(block)
        connection.commit()
    connection.execute(
        "INSERT INTO dirty_marks (device_id, minute) SELECT id, minute FROM generate_series("
        "%s::timestamptz, %s, '1 minute') AS minute CROSS JOIN (SELECT id FROM devices ORDER BY id)"
        " AS d",
        [since, NOW - timedelta(minutes=1)],
    )
    connection.commit()


def _bases(nodes: int) -> Floats:
    """The most that each device does, a row a device in the order of ids."""
    rows = [
        [_CHARACTERS[node % len(_CHARACTERS)][0][name] for name in COLUMNS] for node in range(nodes)
    ]
    return np.repeat(np.array(rows, np.float32), GPUS, axis=0)
