"""Every saved version of Slurm's JSON reads as one table; it was read off those files by hand."""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flopwatch_server.scheduler.records import JobRecord, NodeGpus, NodeRecord
from flopwatch_server.scheduler.slurm.rest.accounting import parse_ended
from flopwatch_server.scheduler.slurm.rest.jobs import parse_queue
from flopwatch_server.scheduler.slurm.rest.nodes import parse_nodes
from flopwatch_server.scheduler.slurm.table import Answer

CASES = Path(__file__).parent / "cases"
LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)
EIGHT = tuple(range(8))
FOUR = (0, 1, 2, 3)


def at(seconds: int) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def h100(node: str, *ordinals: int) -> NodeGpus:
    return NodeGpus(node, len(ordinals), ordinals, "h100")


def two_types(node: str) -> tuple[NodeGpus, ...]:
    return h100(node, 0, 1), NodeGpus(node, 4, (2, 3, 4, 5), "h200")


def record(
    job: int, submitted: int, state: str, name: str, user: str, account: str, **others: Any
) -> JobRecord:
    base: dict[str, Any] = {"display_id": str(job), "partition": "gpu", "qos": "normal",
                            "restarts": 0, "node_count": 1}  # fmt: skip
    values = base | others
    return JobRecord(job, at(submitted), state, name, user, account, **values)


QUEUES = {
    "21.08/squeue.json": [
        record(26515966, 1684114900, "RUNNING", "job_name", "alice", "research",
               started_at=at(1684114921), time_limit_seconds=30240 * 60, gpu_count=0,
               nodes=("node75",), gpus=()),
    ],
    "22.05/squeue_pending_array.json": [
        record(2032, 1795954115, "RUNNING", "pend-array", "carol", "physics",
               display_id="2028_0", array_job_id=2028, array_task_id=0,
               started_at=at(1795954116), time_limit_seconds=1800, node_count=2, gpu_count=16,
               nodes=("node1", "node2"), gpus=(h100("node1", *EIGHT), h100("node2", *EIGHT))),
        record(2029, 1795954115, "PENDING", "held", "carol", "physics", reason="JobHeldUser",
               time_limit_seconds=1800, gpu_count=1),
        record(2030, 1795954115, "RUNNING", "infinite", "carol", "physics",
               started_at=at(1795954117), time_limit_seconds=1800, gpu_count=1,
               nodes=("node3",), gpus=(h100("node3", 0),)),
        record(2031, 1795954115, "RUNNING", "dep", "carol", "physics",
               started_at=at(1795954117), time_limit_seconds=1800, gpu_count=1,
               nodes=("node3",), gpus=(h100("node3", 1),)),
        record(2028, 1795954115, "PENDING", "pend-array", "carol", "physics",
               display_id="2028_[1-99%4]", array_job_id=2028, reason="Resources",
               time_limit_seconds=1800, node_count=2, gpu_count=16),
    ],
    "23.02/slurm-job-pending.json": [
        record(326, 1727332586, "PENDING", "wrap", "bob", "optic", partition="batch",
               reason="Resources", time_limit_seconds=3600, node_count=16),
    ],
    "23.02/slurm-job-running.json": [
        record(310, 1727332584, "RUNNING", "wrap", "alice", "biology", partition="batch",
               started_at=at(1727358533), time_limit_seconds=3600, node_count=16, gpu_count=0,
               nodes=tuple(f"cn{number:03}" for number in range(52, 68)), gpus=()),
    ],
    "23.11/slurm-job-gpus-multi-nodes.json": [
        record(793, 1747046307, "RUNNING", "wrap", "dave", "optic", partition="ia",
               started_at=at(1747046307), time_limit_seconds=60, node_count=2, gpu_count=12,
               nodes=("ia1", "ia2"), gpus=(*two_types("ia1"), *two_types("ia2"))),
    ],
    "23.11/slurm-job-gpus-pending.json": [
        record(791, 1747045670, "PENDING", "wrap", "dave", "optic", partition="ia",
               reason="BeginTime", time_limit_seconds=60),
    ],
    "23.11/slurm-job-gpus-completed.json": [],
    "24.11/slurm-job-gpus-multi-nodes.json": [
        record(6371, 1762788887, "RUNNING", "wrap", "alice5", "biology", partition="ia",
               started_at=at(1762788887), time_limit_seconds=60, node_count=2, gpu_count=12,
               nodes=("ia1", "ia2"), gpus=(*two_types("ia1"), *two_types("ia2"))),
    ],
    "24.11/slurm-job-gpus-pending.json": [
        record(6376, 1762788934, "PENDING", "wrap", "dave8", "biology", partition="ia",
               reason="BeginTime", time_limit_seconds=60),
    ],
    "24.11/slurm-job-gpus-completed.json": [],
    "25.11/slurm-job-gpus-multi-nodes.json": [
        record(5679, 1762788040, "RUNNING", "wrap", "bob11", "acoustic",
               started_at=at(1762788040), time_limit_seconds=60, node_count=2, gpu_count=8,
               nodes=("gpu1", "gpu2"), gpus=(h100("gpu1", *FOUR), h100("gpu2", *FOUR)),
               sluid="sDXHK9Q5PW3N00"),
    ],
    "25.11/slurm-job-gpus-per-task.json": [
        record(5512, 1762784621, "RUNNING", "wrap", "carol7", "acoustic",
               started_at=at(1762784621), time_limit_seconds=60, gpu_count=4,
               nodes=("gpu1",), gpus=(h100("gpu1", *FOUR),), sluid="sDXHK9Q2EGT600"),
    ],
    "25.11/slurm-job-gpus-pending.json": [
        record(4965, 1762783691, "PENDING", "wrap", "carol12", "admin",
               reason="BeginTime", time_limit_seconds=60, sluid="sDXHK9Q1J50E00"),
    ],
    "25.11/slurm-job-timeout.json": [],
    "26.05/slurm-job-gpus-pending.excerpt.json": [
        record(82, 1778604943, "PENDING", "", "alice", "research",
               reason="BeginTime", time_limit_seconds=3600, sluid="s88DKREHWEFD00"),
    ],
}  # fmt: skip

ENDED: dict[str, dict[tuple[int, int], tuple[Any, ...]]] = {
    "22.05/sacct.json": {
        (9, 1795953779): ("9", "REQUEUED", 1795953780, 1795953811, 300, 1, ("node4",), 0),
        (2, 1795953779): ("2", "CANCELLED", 1795953780, 1795953907, 1800, 16,
                          ("node1", "node2"), 0),
        (3, 1795953779): ("3_5", "COMPLETED", 1795953825, 1795953870, 1800, 1, ("node4",), 0),
        (6, 1795953779): ("6", "TIMEOUT", 1795953780, 1795953850, 60, 1, ("node4",), 0),
        (7, 1795953779): ("7", "FAILED", 1795953780, 1795953780, 300, 1, ("node4",), 0),
        (8, 1795953779): ("8", "CANCELLED", 1795953780, 1795953811, 300, 1, ("node4",), 0),
        (9, 1795953811): ("9", "CANCELLED", None, 1795953907, 300, 1, (), 0),
        (10, 1795953779): ("10+0", "CANCELLED", 1795953782, 1795953907, 300, 1, ("node4",), 0),
        (11, 1795953779): ("10+1", "CANCELLED", 1795953782, 1795953907, 300, 2, ("node3",), 0),
        (13, 1795953779): ("3_0", "COMPLETED", 1795953780, 1795953825, 1800, 1, ("node4",), 0),
        (24, 1795953929): ("24", "CANCELLED", 1795953929, 1795954001, 300, 1, ("node1",), 0),
        (2033, 1795954471): ("2033", "CANCELLED", 1795954472, 1795954522, 300, None,
                             ("node1",), 0),
        (2034, 1795954471): ("2034", "CANCELLED", 1795954472, 1795954522, 300, 1, ("node3",), 0),
        (2037, 1795954471): ("2037", "CANCELLED", 1795954472, 1795954522, 300, 2, ("node2",), 44),
    },
    "23.02/slurmdb-job-completed.json": {
        (307, 1727332584): ("307", "COMPLETED", 1727358173, 1727358533, 3600, None,
                            tuple(f"cn{n:03}" for n in (*range(1, 51), *range(52, 66))), 0),
    },
    "23.11/slurmdb-job-gpus-completed.json": {
        (714, 1746803069): ("714", "COMPLETED", 1746803069, 1746803099, 60, None, ("ia1",), 0),
    },
    "24.11/slurmdb-job-gpus-completed.json": {
        (6372, 1762788890): ("6372", "COMPLETED", 1762788890, 1762788920, 60, None, ("ia1",), 0),
    },
    "25.11/slurmdb-job-gpus-completed.json": {
        (5141, 1762784359): ("5141", "COMPLETED", 1762784359, 1762784390, 60, None, ("gpu1",), 0),
    },
}  # fmt: skip

NODES = {
    "22.05/nodes.json": NodeRecord("node1", "MIXED", "", 8, "h100", ("debug", "gpu")),
    "23.02/slurm-node-allocated.json": NodeRecord("cn001", "ALLOCATED", "", 0, None, ("batch",)),
    "23.11/slurm-node-with-gpus-mixed.json": NodeRecord(
        "ia1", "ALLOCATED", "", 6, None, ("standard",)
    ),
    "25.11/slurm-node-with-gpus-mixed.json": NodeRecord("gpu3", "MIXED", "", 4, None, ("gpu",)),
    "25.11/slurm-node-with-gpus-model-mixed.json": NodeRecord(
        "gpu1", "MIXED", "", 4, "h100", ("gpu",)
    ),
}


@pytest.mark.parametrize("file", QUEUES)
def test_a_queue(file: str) -> None:
    answer = parse_queue((CASES / file).read_text())
    assert answer.refused == []
    assert answer.records == QUEUES[file]


@pytest.mark.parametrize("file", ENDED)
def test_ended_runs(file: str) -> None:
    answer = parse_ended((CASES / file).read_text(), LONG_AGO)
    assert answer.refused == []
    assert {
        (run.raw_job_id, int(run.submitted_at.timestamp())): (
            run.display_id, run.state,
            None if run.started_at is None else int(run.started_at.timestamp()),
            None if run.ended_at is None else int(run.ended_at.timestamp()),
            run.time_limit_seconds, run.gpu_count, run.nodes, run.suspended_seconds,
        )
        for run in answer.records
    } == ENDED[file]  # fmt: skip


def test_runs_that_ended_before_are_left_out() -> None:
    answer = parse_ended((CASES / "22.05/sacct.json").read_text(), at(1795954000))
    assert [run.raw_job_id for run in answer.records] == [24, 2033, 2034, 2037]


@pytest.mark.parametrize(
    ("file", "codes"),
    [("22.05/sacct.json", {None}), ("23.11/slurmdb-job-gpus-completed.json", {"0:0"})],
)
def test_exit_codes_are_believed_from_23_11_on(file: str, codes: set[str | None]) -> None:
    answer = parse_ended((CASES / file).read_text(), LONG_AGO)
    assert {run.exit_code for run in answer.records} == codes


@pytest.mark.parametrize("file", NODES)
def test_the_first_node(file: str) -> None:
    answer = parse_nodes((CASES / file).read_text())
    assert answer.refused == []
    assert answer.records[0] == NODES[file]


def test_a_node_has_its_flags_beside_its_state_in_every_version() -> None:
    node = {"name": "n", "gres": "", "reason": "disk", "partitions": []}
    told = [
        node | {"state": "idle", "state_flags": ["DRAIN"]},
        node | {"state": ["IDLE", "DRAIN"]},
    ]
    answer = parse_nodes(json.dumps({"nodes": told}))
    assert {record.state for record in answer.records} == {"IDLE+DRAIN"}


@pytest.mark.parametrize(
    ("state", "word"),
    [
        ("COMPLETING", "COMPLETING"),
        (["RUNNING"], "RUNNING"),
        (["RUNNING", "COMPLETING"], "COMPLETING"),
        (["RUNNING", "CONFIGURING"], "CONFIGURING"),
        (["PENDING", "REQUEUE_HOLD"], "REQUEUE_HOLD"),
    ],
)
def test_a_flag_stands_in_place_of_the_base_state_as_squeue_prints_it(
    state: str | list[str], word: str
) -> None:
    document = json.loads((CASES / "25.11/slurm-job-gpus-per-task.json").read_text())
    document["jobs"][0]["job_state"] = state
    [job] = parse_queue(json.dumps(document)).records
    assert job.state == word


Parse = Callable[[str], Answer[Any]]
FILES: list[tuple[str, str, Parse]] = [
    *((file, "jobs", parse_queue) for file in QUEUES),
    *((file, "jobs", lambda text: parse_ended(text, LONG_AGO)) for file in ENDED),
    *((file, "nodes", parse_nodes) for file in NODES),
]
WEIRD = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(), st.text(max_size=20),
    st.lists(st.integers(0, 3), max_size=3), st.just({}), st.just(["RUNNING", "X"]),
    st.fixed_dictionaries({"set": st.booleans(), "infinite": st.booleans(),
                           "number": st.one_of(st.integers(-5, 2**63), st.floats(0, 9))}),
)  # fmt: skip


@given(data=st.data())
def test_a_changed_record_is_read_or_refused_and_harms_no_other(data: st.DataObject) -> None:
    file, key, parse = data.draw(st.sampled_from(FILES))
    document = json.loads((CASES / file).read_text())
    first = document[key][0]
    whole = len(parse(json.dumps({key: [first]})).records)
    changed = dict(first)
    field = data.draw(st.sampled_from(sorted(first)))
    if data.draw(st.booleans()):
        del changed[field]
    else:
        changed[field] = data.draw(WEIRD)
    answer = parse(json.dumps({key: [first, changed, first]}))
    assert len(answer.records) >= 2 * whole
    assert len(answer.records) + len(answer.refused) <= 3
    if field in ("job_id", "name") and field not in changed:
        assert [error.field for error in answer.refused] == [field]
