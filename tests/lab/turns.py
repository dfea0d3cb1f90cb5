"""A list of tasks that write down their turns, for either runner.

`python -m tests.lab.turns worker` and `... beat` run it like `flopwatch worker` and `beat` run
theirs; a number behind it is the limit of a turn in seconds.
"""

import os
import sys
import time

from sqlalchemy import text

import flopwatch_server.work.celery_app
from flopwatch_server.database.engine import Database
from flopwatch_server.house import House
from flopwatch_server.settings import load_settings
from flopwatch_server.telemetry.minutes import recompute_minutes
from flopwatch_server.work.commands import run_beat, run_worker
from flopwatch_server.work.tasks import Task
from tests.lab.ingest import query

_TABLES = """
CREATE TABLE turns (task text, step text, pid int, at timestamptz DEFAULT clock_timestamp());
CREATE TABLE held (task text);
"""


def prepare(database: Database) -> None:
    """Make the tables that the tasks write to and read from."""
    with database.session() as session:
        session.execute(text(_TABLES))


def hold(database: Database, task: str = "slow") -> None:
    """Let no turn of "slow", or of "backlog", come to its end from now on, until `release`."""
    with database.session() as session:
        session.execute(text("INSERT INTO held VALUES (:task)"), {"task": task})


def release(database: Database) -> None:
    """Let all turns come to their end."""
    with database.session() as session:
        session.execute(text("DELETE FROM held"))


def turns(database: Database, task: str, step: str = "end") -> list[int]:
    """The processes of the turns of a task that came to this step, in order."""
    statement = "SELECT pid FROM turns WHERE task = :task AND step = :step ORDER BY at"
    return [pid for (pid,) in query(database, statement, task=task, step=step)]


def recorded_tasks() -> list[Task]:
    """Tasks that work, fail, can be held up, or have more to do as long as that; and a real one."""
    return [
        Task("works", 0.2, lambda house: _note(house, "works", "end")),
        Task("fails", 0.2, _fail),
        Task("slow", 1, _slow),
        Task("backlog", 1, _backlog),
        Task("minutes", 1, recompute_minutes),
        Task("seldom", 86_400, lambda house: _note(house, "seldom", "end")),
    ]


def _note(house: House, task: str, step: str) -> None:
    with house.database.session() as session:
        session.execute(
            text("INSERT INTO turns (task, step, pid) VALUES (:task, :step, :pid)"),
            {"task": task, "step": step, "pid": os.getpid()},
        )


def _fail(house: House) -> None:
    _note(house, "fails", "end")
    raise RuntimeError("the task's own fault")


def _slow(house: House) -> None:
    _note(house, "slow", "begin")
    while _is_held(house, "slow"):
        time.sleep(0.05)
    _note(house, "slow", "end")


def _backlog(house: House) -> bool:
    _note(house, "backlog", "end")
    return _is_held(house, "backlog")


def _is_held(house: House, task: str) -> bool:
    return bool(query(house.database, "SELECT 1 FROM held WHERE task = :task", task=task))


if __name__ == "__main__":
    role, *limit = sys.argv[1:]
    if limit:
        flopwatch_server.work.celery_app.TURN_LIMIT_SECONDS = int(limit[0])
    {"worker": run_worker, "beat": run_beat}[role](load_settings(), recorded_tasks())
