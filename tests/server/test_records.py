"""The fingerprint of a record: the same in every process, and another for every other record."""

import os
import subprocess
import sys
from dataclasses import fields, replace
from datetime import UTC, datetime

from flopwatch_server.scheduler.records import JobRecord, NodeGpus

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
from tests.server.test_records import ONE
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
