"""A job is found by every id that people write for it."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from sqlalchemy import select, text

from flopwatch_server.access.principal import Principal
from flopwatch_server.database.engine import Database
from flopwatch_server.fleet.repository.clusters import ensure_cluster
from flopwatch_server.house import NotFound
from flopwatch_server.jobs import service
from flopwatch_server.jobs.identity import waiting_tasks
from flopwatch_server.jobs.models import Run
from flopwatch_server.jobs.repository import is_named
from flopwatch_server.scheduler.records import JobRecord

T0 = datetime(2026, 3, 12, 9, 0, tzinfo=UTC)
ADMIN = Principal("ada", "admin")
PLAIN = JobRecord(7, T0, "RUNNING", "n", "u", "a", "7", started_at=T0)
ARRAY = (
    replace(PLAIN, raw_job_id=130, display_id="123_4", array_job_id=123, array_task_id=4),
    replace(PLAIN, raw_job_id=131, display_id="123_5", array_job_id=123, array_task_id=5),
    replace(PLAIN, raw_job_id=123, display_id="123_[6-9%2]", array_job_id=123, state="PENDING",
            started_at=None),
)  # fmt: skip
LAST_TASK = replace(PLAIN, raw_job_id=200, display_id="200_3", array_job_id=200, array_task_id=3)
OTHER_TASK = replace(PLAIN, raw_job_id=203, display_id="200_1", array_job_id=200, array_task_id=1)
HET = (
    replace(PLAIN, raw_job_id=300, display_id="300+0", het_job_id=300, het_offset=0),
    replace(PLAIN, raw_job_id=301, display_id="300+1", het_job_id=300, het_offset=1),
)
NAMED = replace(PLAIN, raw_job_id=500, display_id="500", sluid="sDXHK9Q2EGT600")
FED = replace(PLAIN, raw_job_id=400, display_id="400_2")  # a feed needs not tell of arrays
OLD = replace(PLAIN, submitted_at=T0.replace(year=2025), name="before the ids began anew")


def find(database: Database, job_id: str) -> str:
    """The id that the found job shows."""
    with database.session() as session:
        cluster_id = ensure_cluster(session, "granite", T0)
        told = (OLD, PLAIN, *ARRAY, OTHER_TASK, LAST_TASK, *HET, NAMED, FED)
        service.apply_records(session, cluster_id, told, (), T0, complete=False, source="slurm")
        run = service.find_run(session, ADMIN, "granite", job_id, T0)
        assert run.submitted_at == T0
        return run.job_id


@pytest.mark.parametrize(
    ("job_id", "shown"),
    [
        ("7", "7"),
        ("7.batch", "7"),
        ("7.0", "7"),
        ("123_4", "123_4"),
        ("130", "123_4"),
        ("130.extern", "123_4"),
        ("123_5.0", "123_5"),
        ("123", "123_[6-9%2]"),
        ("123_[6-9%2]", "123_[6-9%2]"),
        ("123_[4-9]", "123_[6-9%2]"),
        ("123_*", "123_[6-9%2]"),
        ("123_8", "123_[6-9%2]"),
        ("200", "200_3"),
        ("200_1", "200_1"),
        ("300", "300+0"),
        ("300+1", "300+1"),
        ("300+1.batch", "300+1"),
        ("301", "300+1"),
        ("400_2", "400_2"),
        ("301.0+1", "300+1"),
        ("sDXHK9Q2EGT600", "500"),
        ("sDXHK9Q2EGT600.batch", "500"),
    ],
)
def test_by_any_of_its_forms(database: Database, job_id: str, shown: str) -> None:
    assert find(database, job_id) == shown


@pytest.mark.parametrize(
    "job_id", ["123_10", "123_3", "7_1", "7+1", "300+2", "7.x", "1230", "_4", "sDXHK9"]
)
def test_what_no_job_is_called_finds_none(database: Database, job_id: str) -> None:
    with pytest.raises(NotFound):
        find(database, job_id)


def test_no_id_is_looked_for_in_all_runs(database: Database) -> None:
    with database.session() as session:
        cluster_id = ensure_cluster(session, "granite", T0)
        session.execute(text(_MANY_RUNS), {"cluster_id": cluster_id})
        session.execute(text("ANALYZE runs"))
        for job_id in ("7", "123_4", "300+1", "123_[4-9]", "no id"):
            runs = select(Run.id).where(Run.cluster_id == cluster_id, is_named(job_id))
            asked = str(runs.compile(session.connection(), compile_kwargs={"literal_binds": True}))
            plan = "\n".join(session.connection().exec_driver_sql(f"EXPLAIN {asked}").scalars())
            assert "on runs" in plan
            assert "Seq Scan" not in plan, job_id


_MANY_RUNS = """
    INSERT INTO runs (cluster_id, raw_job_id, submitted_at, display_id, array_job_id, array_task_id,
                      name, user_name, account, partition, qos, state, reason)
    SELECT :cluster_id, job, now(), job, job / 10 * 10, job % 10, '', '', '', '', '', 'COMPLETED',
           '' FROM generate_series(1, 20000) job
"""


@pytest.mark.parametrize(
    ("display_id", "tasks"),
    [
        ("123_[4-9%2]", [4, 5, 6, 7, 8, 9]),
        ("123_[7]", [7]),
        ("123_[0,3,7-8]", [0, 3, 7, 8]),
        ("123_[0-15:4]", [0, 4, 8, 12]),
        ("123_[0-10:5,20%1]", [0, 5, 10, 20]),
        ("123_4", None),
        ("123_[1,3,5,...]", None),
        ("123_[1,3,...%4]", None),
        ("123_[]", None),
        ("123_[1--3]", None),
        ("123_[1:0]", None),
        ("7", None),
        ("the rest", None),
    ],
)
def test_the_tasks_in_the_waiting_rest_of_an_array(
    display_id: str, tasks: list[int] | None
) -> None:
    found = waiting_tasks(display_id)
    assert tasks == (None if found is None else [task for some in found for task in some])
