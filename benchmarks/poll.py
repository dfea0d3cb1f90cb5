"""How long it takes to ask Slurm and to store what it says: `python -m benchmarks.poll`.

A poll asks for the queue and the nodes, for the GPUs of what has started since the last one, and
writes all of it to PostgreSQL. Times are wall clock, everything shares the machine, and the last
line is JSON:

* `first_poll_ms`: of a real Slurm with 2,000 jobs, 16 of which run, into an empty database.
* `poll_ms`: the same again, median: jobs are known, states may have changed.
* `squeue_ms`: what squeue alone takes for the same rows.
* `first_poll_20k_ms`, `poll_20k_ms`: 20,000 recorded jobs, told by a stub of the commands.
"""

import itertools
import json
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median

from tests.lab.slurm import SlurmLab, lab_folder, wait_until

from flopwatch.gpus import PeakTable
from flopwatch_server.database.embedded import EmbeddedPostgres
from flopwatch_server.database.engine import Database
from flopwatch_server.database.migrate import upgrade
from flopwatch_server.house import House
from flopwatch_server.scheduler.slurm import Slurm, nodes, queue
from flopwatch_server.scheduler.slurm.table import long_format
from flopwatch_server.settings import Settings
from flopwatch_server.work.poll import SlurmPoll

JOBS = 2_000
RECORDED_JOBS = 20_000
RUNNING = 16
REPEATS = 7
_FLOOD = 'for i in $(seq 500); do sbatch -Q --gres=gpu:1 -J "job $i" "$1"; done'
_MARK = "@MARK@"
# The mark of a call stands in its format, which is the last word; the recorded rows get that mark.
_STUB = """#!/bin/sh
for last; do :; done
[ "$last" = --json ] && exec cat {folder}/jobs.json
mark=$(printf %s "$last" | sed 's/^[A-Za-z]*:0//; s/,.*//')
exec sed "s/{mark}/$mark/g" {folder}/{name}.txt
"""


def main() -> None:
    """Measure, and print the result as the last line."""
    with lab_folder() as root, SlurmLab(root) as lab:
        _submit(lab)
        result = {"jobs": JOBS, **_measure("poll", Slurm(lab.cluster, lab.environment))}
        result["squeue_ms"] = _milliseconds(lambda: _rows(lab))
        environment = _record(lab, root / "stub")
        result |= {"recorded_jobs": RECORDED_JOBS}
        result |= _measure("poll_20k", Slurm("recorded", environment))
        lab.cancel_jobs()
    print(json.dumps({name: round(value, 1) for name, value in result.items()}))


def _submit(lab: SlurmLab) -> None:
    """Let one user's jobs fill the GPUs and the queue."""
    script = lab.users["fwalice"].home / "sleep.sh"
    script.write_text("#!/bin/sh\nexec sleep 3600\n")
    for _ in range(JOBS // 500):  # a command of the lab has 30 s
        lab.run("sh", "-c", _FLOOD, "sh", str(script), user="fwalice")
    running = ("squeue", "-h", "-t", "R", "-o", "%i")
    wait_until(lambda: len(lab.run(*running).split()) == RUNNING, f"{RUNNING} jobs run", 60)


def _measure(name: str, slurm: Slurm) -> dict[str, float]:
    """A first poll into an empty database, and the median of those after it.

    Between two an hour passes on the clock, since a poll that took long is followed by a rest.
    """
    hours = itertools.count()
    with _house() as house:
        poll = SlurmPoll("bench", slurm)

        def read_queue() -> None:
            ahead = timedelta(hours=next(hours))
            poll.read_queue(replace(house, clock=lambda: datetime.now(UTC) + ahead))

        first = _seconds(read_queue) * 1000
        again = _milliseconds(read_queue)
        return {f"first_{name}_ms": first, f"{name}_ms": again}


@contextmanager
def _house() -> Iterator[House]:
    with tempfile.TemporaryDirectory(prefix="flopwatch-bench-") as folder:
        Path(folder).chmod(0o755)  # run as root, the database drops to another account
        postgres = EmbeddedPostgres(Path(folder) / "pg")
        database = Database(postgres.start())
        try:
            upgrade(database)
            yield House(database, Settings(), PeakTable.load())
        finally:
            database.dispose()
            postgres.stop()


def _rows(lab: SlurmLab, command: str = "squeue", columns: Sequence[str] = queue.COLUMNS) -> str:
    options = ("-N",) if command == "sinfo" else ()
    wanted = long_format(columns, _MARK)
    times = "SLURM_TIME_FORMAT=%s"
    return lab.run("env", times, command, "--noheader", *options, "--all", "-O", wanted)


def _record(lab: SlurmLab, folder: Path) -> Mapping[str, str]:
    """Commands that tell of ten times the jobs of the lab, as an environment that finds them."""
    folder.mkdir()
    rows, document = _rows(lab), json.loads(lab.run("squeue", "--json"))
    first_column = re.compile(rf"^(\d+)(?={_MARK})", re.MULTILINE)
    shifts = range(0, 100_000 * RECORDED_JOBS // JOBS, 100_000)
    (folder / "squeue.txt").write_text("".join(
        first_column.sub(lambda found, shift=shift: str(int(found[1]) + shift), rows)
        for shift in shifts
    ))  # fmt: skip
    document["jobs"] = [
        job | {"job_id": job["job_id"] + shift} for shift in shifts for job in document["jobs"]
    ]
    (folder / "jobs.json").write_text(json.dumps(document))
    (folder / "sinfo.txt").write_text(_rows(lab, "sinfo", nodes.COLUMNS))
    for name in ("squeue", "sinfo"):
        stub = folder / name
        stub.write_text(_STUB.format(folder=folder, name=name, mark=_MARK))
        stub.chmod(0o755)
    return {"PATH": f"{folder}:/usr/bin:/bin"}


def _milliseconds(work: Callable[[], object]) -> float:
    return median(_seconds(work) for _ in range(REPEATS)) * 1000


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
