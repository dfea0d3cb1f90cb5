"""Which GPUs a job holds, from captured answers; the tables were read off those files by hand."""

import json
from pathlib import Path

import pytest

from flopwatch_server.scheduler.records import NodeGpus, SchedulerError
from flopwatch_server.scheduler.slurm.detail import parse_document
from flopwatch_server.scheduler.slurm.fields import FieldError

CASES = Path(__file__).parent / "cases"
EVERY_ID = range(10_000)


def held_in(file: str) -> dict[int, tuple[NodeGpus, ...]]:
    """What is told of all jobs in a capture, of which no record may be refused."""
    answer = parse_document((CASES / file).read_text(), EVERY_ID)
    assert answer.refused == []
    return dict(answer.records)


def h100(node: str, *ordinals: int) -> NodeGpus:
    return NodeGpus(node, len(ordinals), ordinals, "h100")


def test_fifteen_jobs_of_slurm_22_05() -> None:
    eight = range(8)
    assert held_in("22.05/squeue.json") == {
        1: (h100("node4", 0),),
        2: (h100("node1", *eight), h100("node2", *eight)),
        13: (h100("node4", 1),),
        14: (h100("node4", 2),),
        15: (h100("node4", 3),),
        4: (h100("node3", 0, 1, 2),),
        5: (h100("node3", 3, 4),),
        6: (h100("node4", 4),),
        10: (h100("node4", 5),),
        11: (h100("node3", 5, 6),),
        12: (h100("node3", 7),),
    }


def test_shards_mig_and_a_completing_job_of_slurm_22_05() -> None:
    assert held_in("22.05/squeue_shard_mig_completing.json") == {
        2033: (NodeGpus("node1", 1, (0,), None, shared=True),),
        2034: (NodeGpus("node3", 1, (1,), "1g.10gb"),),
        2037: (h100("node2", 2, 3),),
    }


@pytest.mark.parametrize(("version", "job"), [("23.11", 793), ("24.11", 6371)])
def test_two_types_on_two_nodes_of_later_versions(version: str, job: int) -> None:
    h200 = (2, 3, 4, 5)
    assert held_in(f"{version}/slurm-job-gpus-multi-nodes.json") == {
        job: (
            h100("ia1", 0, 1),
            NodeGpus("ia1", 4, h200, "h200"),
            h100("ia2", 0, 1),
            NodeGpus("ia2", 4, h200, "h200"),
        )
    }


def test_jobs_of_slurm_25_11() -> None:
    four = (0, 1, 2, 3)
    assert held_in("25.11/slurm-job-gpus-multi-nodes.json") == {
        5679: (h100("gpu1", *four), h100("gpu2", *four))
    }
    assert held_in("25.11/slurm-job-gpus-per-task.json") == {5512: (h100("gpu1", *four),)}


@pytest.mark.parametrize("version", ["23.11", "24.11", "25.11"])
@pytest.mark.parametrize("state", ["pending", "completed"])
def test_of_a_job_that_does_not_run_nothing_is_told(version: str, state: str) -> None:
    assert held_in(f"{version}/slurm-job-gpus-{state}.json") == {}


def test_only_the_jobs_that_were_asked_for_are_told() -> None:
    text = (CASES / "22.05/squeue.json").read_text()
    assert [job for job, _ in parse_document(text, [5, 99]).records] == [5]


def record(**changes: object) -> dict[str, object]:
    """A running job of one GPU."""
    running = {
        "job_id": 7,
        "job_state": "RUNNING",
        "nodes": "n1",
        "gres_detail": ["gpu:1(IDX:0)"],
        "tres_alloc_str": "cpu=1,gres/gpu=1",
    }
    return {**running, **changes}


def parse(*records: dict[str, object]) -> tuple[dict[int, tuple[NodeGpus, ...]], list[FieldError]]:
    answer = parse_document(json.dumps({"jobs": records}), EVERY_ID)
    return dict(answer.records), answer.refused


def test_a_running_job_without_gpus_holds_none_for_certain() -> None:
    assert parse(record(gres_detail=[], tres_alloc_str="cpu=1")) == ({7: ()}, [])


def test_gpus_that_are_counted_but_not_told_are_left_out() -> None:
    assert parse(record(gres_detail=[])) == ({}, [])


def test_a_node_of_the_job_without_gpus_holds_none() -> None:
    told = record(nodes="n[1-2]", gres_detail=["", "gpu:1(IDX:4)"])
    assert parse(told) == ({7: (NodeGpus("n2", 1, (4,)),)}, [])


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"nodes": "n[1-2]"}, "gres_detail of job 7 on 2 nodes"),
        ({"gres_detail": ["gpu:x:y:z"]}, "gres_detail"),
        ({"gres_detail": "gpu:1"}, "gres_detail"),
        ({"job_state": 3}, "job_state"),
        ({"nodes": {"count": 1}}, "nodes"),
        ({"tres_alloc_str": None}, "tres_alloc_str"),
    ],
)
def test_a_record_of_unknown_shape_is_refused_by_field_and_harms_no_other(
    changes: dict[str, object], field: str
) -> None:
    told, refused = parse(record(**changes), record(job_id=8))
    assert list(told) == [8]
    [error] = refused
    assert str(error).startswith(f"{field} reads ")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "squeue --json"),
        ("squeue: unrecognized option '--json'", "squeue --json"),
        ('{"meta": {}}', "jobs"),
        ('{"jobs": [], "errors": [{"error": "no permission"}]}', "no permission"),
    ],
)
def test_what_is_no_document_of_jobs_is_an_error(text: str, reason: str) -> None:
    with pytest.raises(SchedulerError, match=reason):
        parse_document(text, EVERY_ID)
