"""What is new of a run: its fingerprint tells, and nothing else of it is written."""

import os
import subprocess
import sys
from dataclasses import fields, replace
from datetime import UTC, datetime

from sqlalchemy import literal_column, select
from sqlalchemy.orm import Session

from flopwatch_server.database.engine import Database
from flopwatch_server.jobs.models import Run
from flopwatch_server.scheduler.records import JobRecord, NodeGpus
from tests.server.test_jobs import RUNNING, at, held, tell

T0 = datetime(2026, 3, 12, 9, 0, tzinfo=UTC)
ONE = JobRecord(
    raw_job_id=1, submitted_at=T0, state="RUNNING", name="a", user="b", account="c", display_id="1",
    gpus=(NodeGpus("g1", 2, (0, 1), "h100"),),
)  # fmt: skip
OTHERS = {
    "raw_job_id": 2, "submitted_at": datetime(2026, 3, 12, 9, 1, tzinfo=UTC),
    "started_at": T0, "ended_at": T0, "nodes": ("g1",),
    "gpus": (NodeGpus("g1", 2, (0, 2), "h100"),),
}  # fmt: skip
_SAY = """
from tests.server.test_news_of_runs import ONE
print(ONE.fingerprint)
"""


def test_it_differs_whatever_field_does() -> None:
    names = [field.name for field in fields(JobRecord)]
    others = [replace(ONE, **{name: OTHERS.get(name, "x")}) for name in names]
    assert len({record.fingerprint for record in (ONE, *others)}) == 1 + len(names)


def test_it_is_the_same_in_every_process() -> None:
    said = {
        int(subprocess.check_output([sys.executable, "-c", _SAY],
                                    env=os.environ | {"PYTHONHASHSEED": seed}))
        for seed in ("1", "2")
    }  # fmt: skip
    assert said == {ONE.fingerprint}
    assert -(2**63) <= ONE.fingerprint < 2**63


def test_text_that_is_no_text_has_one_too() -> None:
    half = replace(ONE, name="half \ud800").fingerprint
    assert half not in (ONE.fingerprint, replace(ONE, name="half \ud801").fingerprint)


def test_only_what_is_new_is_written(database: Database) -> None:
    """PostgreSQL numbers every writing of a row: xmin."""

    def writings(session: Session) -> dict[int, str]:
        rows = session.execute(select(Run.raw_job_id, literal_column("xmin::text")))
        return {raw_job_id: writing for raw_job_id, writing in rows}

    jobs = [replace(RUNNING, raw_job_id=number, gpus=None) for number in (1, 2, 3)]
    with database.session() as session:
        tell(session, *jobs, minute=2)
        first = writings(session)
    with database.session() as session:
        tell(session, jobs[0], replace(jobs[1], reason="Resources"), jobs[2], minute=3)
        second = writings(session)
    assert [number for number in first if first[number] != second[number]] == [2]


def test_what_was_told_of_another_run_of_the_job_is_not_known_of_this_one(
    database: Database,
) -> None:
    with database.session() as session:
        tell(session, RUNNING, minute=2)
        tell(session, replace(RUNNING, state="NODE_FAIL", ended_at=at(4)), minute=5)
        tell(session, replace(RUNNING, submitted_at=at(4), started_at=at(6)), minute=7)
        runs = session.execute(select(Run.submitted_at, Run.state, Run.ended_at)).all()
        assert set(runs) == {(T0, "NODE_FAIL", at(4)), (at(4), "RUNNING", None)}
        assert {row[2:] for row in held(session)} == {(at(1), at(4)), (at(6), None)}
