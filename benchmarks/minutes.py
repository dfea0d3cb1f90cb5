"""How fast minutes and hours are made, and pages read from them: `python -m benchmarks.minutes`.

On the cluster of `benchmarks.dataset`: 8,000 GPUs, 10 M samples and a day of minutes. Run it on a
machine that does nothing else. The last line is JSON; times are wall clock where not said:

* `minutes_seconds_per_million_rows`, also as `seconds_per_million_rows`: making all minutes of the
  samples, by their marks. `minutes_cpu_...` is PostgreSQL's processor time of the same;
  `group_by_...` what one plain GROUP BY of all means over the same samples takes, which knows
  neither marks nor lives of agents and stores nothing; `scan_...` only counting them.
* `hours_seconds_per_million_rows`: making all hours of a day of minutes, a million rows of samples.
* `overview_ms`: the figures of the overview page, median, with what the cluster does now kept by
  the task that finds it every 5 s; `clusters_now_ms` is what that takes.
* `job_24h_ms`: a day of 6 metrics of 8 GPUs as the job page reads it; `job_24h_rows_ms` is a plain
  SELECT of the same minutes, and no more.
"""

import json
import os
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from statistics import median

import psycopg

from benchmarks.dataset import CLUSTER, DAY_JOB, GPUS, NOW, Dataset, dataset
from flopwatch_server.access.principal import Principal
from flopwatch_server.efficiency import service
from flopwatch_server.efficiency.cluster_now import keep_clusters
from flopwatch_server.efficiency.overview import overview
from flopwatch_server.house import House
from flopwatch_server.jobs.service import find_run
from flopwatch_server.telemetry.minutes import recompute_hours, recompute_minutes
from flopwatch_server.telemetry.models import MEAN_COLUMNS
from flopwatch_server.work.schedule import periodic_tasks

_METRICS = ("sm_active", "tensor_active", "dram_active", "gpu_utilization", "memory_used_mib",
            "power_watts")  # fmt: skip
_REPEATS = 15
_ADMIN = Principal("bench", "admin")
_DAY = timedelta(hours=24)


def main() -> None:
    """Measure, and print the result as the last line."""
    with dataset() as data:
        result = {**_make(data), **_read(data.house)}
    print(json.dumps({name: round(value, 3) for name, value in result.items()}))


def _make(data: Dataset) -> dict[str, float]:
    """Seconds a million rows of samples that it takes to make minutes and hours."""
    million_rows = data.rows / 1e6
    means = ", ".join(f"avg({name})" for name in MEAN_COLUMNS)
    scan = _seconds(lambda: _query(data.house, "SELECT count(*) FROM samples"))
    group_by = _seconds(
        lambda: _query(
            data.house,
            # It computes what it does not have to send.
            "EXPLAIN (ANALYZE, TIMING OFF) SELECT device_id, date_bin('1 minute', ts, 'epoch'), "
            f"{means} FROM samples GROUP BY 1, 2",
        )
    )
    cpu = _cpu_seconds(data)
    minutes = _seconds(lambda: _finish(recompute_minutes, data.house))
    cpu = _cpu_seconds(data) - cpu
    hours = _seconds(lambda: _finish(recompute_hours, data.house))
    in_hours = _query(data.house, "SELECT sum(samples_received) FROM device_hours")[0][0]
    return {
        "minutes_seconds_per_million_rows": minutes / million_rows,
        "seconds_per_million_rows": minutes / million_rows,
        "minutes_cpu_seconds_per_million_rows": cpu / million_rows,
        "group_by_seconds_per_million_rows": group_by / million_rows,
        "scan_seconds_per_million_rows": scan / million_rows,
        "hours_seconds_per_million_rows": hours / float(in_hours) * 1e6,
    }


def _read(house: House) -> dict[str, float]:
    """Milliseconds that reading takes, once all periodic work is done."""
    for task in periodic_tasks(house.settings):
        _finish(task.function, house)
    _query(house, "VACUUM ANALYZE")
    devices = list(range(1, GPUS + 1))
    rows = f"SELECT device_id, minute, state, {', '.join(_METRICS)} FROM device_minutes WHERE "
    rows += "device_id = ANY(%s) AND minute >= %s AND minute < %s"
    with house.database.session() as session:
        run = find_run(session, _ADMIN, CLUSTER, DAY_JOB, NOW)
        return {
            "clusters_now_ms": _milliseconds(lambda: keep_clusters(house)),
            "overview_ms": _milliseconds(lambda: overview(session, _ADMIN, CLUSTER, NOW)),
            "job_24h_ms": _milliseconds(
                lambda: service.run_series(session, run, _METRICS, NOW - _DAY, NOW, NOW)
            ),
            "job_24h_rows_ms": _milliseconds(
                lambda: session.connection().exec_driver_sql(rows, (devices, NOW - _DAY, NOW)).all()
            ),
        }


def _finish(work: Callable[[House], bool | None], house: House) -> None:
    """Call a function of periodic work until nothing waits any more."""
    while work(house):
        pass


def _query(house: House, statement: str) -> list[tuple[float, ...]]:
    """Rows of a statement that may take its time, done by one process."""
    with psycopg.connect(house.database.conninfo, autocommit=True) as connection:
        connection.execute("SET max_parallel_workers_per_gather = 0")
        cursor = connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _milliseconds(work: Callable[[], object]) -> float:
    """The median of several times, after a first."""
    work()
    return median(_seconds(work) for _ in range(_REPEATS)) * 1000


def _cpu_seconds(data: Dataset) -> float:
    """Processor time of PostgreSQL so far: its main process, and those that work for it."""
    ticks = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        pid, _, rest = stat.read_text().partition(" (")
        fields = rest.rpartition(") ")[2].split()
        if data.postgres.pid in (int(pid), int(fields[1])):
            own, of_ended = slice(11, 13), slice(13, 15)
            counted = fields[own] + (fields[of_ended] if int(pid) == data.postgres.pid else [])
            ticks += sum(map(int, counted))
    return ticks / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
