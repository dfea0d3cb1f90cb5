"""GRES and TRES strings: forms seen in captures of Slurm 22.05 to 25.11."""

import pytest

from flopwatch_server.scheduler.records import NodeGpus
from flopwatch_server.scheduler.slurm.fields import FieldError
from flopwatch_server.scheduler.slurm.gres import Gres, node_gpus, parse_gres, tres_gpu_count


@pytest.mark.parametrize(
    ("text", "resources"),
    [
        ("gpu:h100:8(IDX:0-7)", [Gres("gpu", "h100", 8, (0, 1, 2, 3, 4, 5, 6, 7))]),
        ("gpu:h100:3(IDX:0-1,3)", [Gres("gpu", "h100", 3, (0, 1, 3))]),
        ("gpu:2(IDX:6-7)", [Gres("gpu", None, 2, (6, 7))]),
        ("gpu:1", [Gres("gpu", None, 1, None)]),
        ("gpu:h100:0(IDX:N/A)", [Gres("gpu", "h100", 0, None)]),
        ("gpu:h100:8(S:0-1)", [Gres("gpu", "h100", 8, None)]),
        ("gpu:1g.10gb:1(IDX:1)", [Gres("gpu", "1g.10gb", 1, (1,))]),
        ("shard:2(IDX:0)", [Gres("shard", None, 2, (0,))]),
        (
            "gpu:h100:2(IDX:0-1),gpu:h200:4(IDX:2-5)",
            [Gres("gpu", "h100", 2, (0, 1)), Gres("gpu", "h200", 4, (2, 3, 4, 5))],
        ),
        (
            "gpu:h100:3(IDX:0,2,4),shard:1(IDX:6)",
            [Gres("gpu", "h100", 3, (0, 2, 4)), Gres("shard", None, 1, (6,))],
        ),
        ("gres:gpu:h100:8", [Gres("gpu", "h100", 8, None)]),
        ("gres/gpu:8", [Gres("gpu", None, 8, None)]),
        ("gres/gpu=2", [Gres("gpu", None, 2, None)]),
        ("gres/gpu:h100=2", [Gres("gpu", "h100", 2, None)]),
        ("gpu", [Gres("gpu", None, 1, None)]),
        ("gpu:h100", [Gres("gpu", "h100", 1, None)]),
        ("", []),
        ("(null)", []),
    ],
)
def test_a_gres_string_is_read(text: str, resources: list[Gres]) -> None:
    assert list(parse_gres({"GRES": text}, "GRES")) == resources


@pytest.mark.parametrize(
    "text", ["gpu:a:b:1", "gpu:h100:2(IDX:0--1)", "=3", "gpu:h100=x", ",", "gpu:2(IDX:0-)"]
)
def test_another_gres_string_is_refused_by_name(text: str) -> None:
    with pytest.raises(FieldError, match="GRES reads"):
        list(parse_gres({"GRES": text}, "GRES"))


@pytest.mark.parametrize(
    ("text", "held"),
    [
        ("gpu:h100:2(IDX:6-7)", (NodeGpus("n1", 2, (6, 7), "h100"),)),
        ("gpu:1", (NodeGpus("n1", 1, None),)),
        ("gpu:h100:0(IDX:N/A)", ()),
        ("shard:2(IDX:0)", (NodeGpus("n1", 1, (0,), None, shared=True),)),
        ("shard:2", (NodeGpus("n1", 1, None, None, shared=True),)),
        ("shard:2(0/4,2/4)", (NodeGpus("n1", 1, (1,), None, shared=True),)),
        ("shard:h100:6(4/4,0/4,2/4)", (NodeGpus("n1", 2, (0, 2), "h100", shared=True),)),
        ("shard:0(0/4,0/4)", ()),
        ("license:4,gpu:h100:1(IDX:3)", (NodeGpus("n1", 1, (3,), "h100"),)),
        ("", ()),
    ],
)
def test_what_a_job_holds_on_a_node(text: str, held: tuple[NodeGpus, ...]) -> None:
    assert node_gpus({"gres_detail": text}, "gres_detail", "n1") == held


@pytest.mark.parametrize("text", ["gpu:h100:4(IDX:0-1)", "shard:2(0/4,0/4)"])
def test_positions_that_contradict_the_count_are_refused(text: str) -> None:
    with pytest.raises(FieldError, match="gres_detail reads"):
        node_gpus({"gres_detail": text}, "gres_detail", "n1")


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("billing=12,cpu=4,gres/gpu:h100=1,gres/gpu=1,mem=400M,node=1", 1),
        ("cpu=16,mem=400G,node=2,billing=244,gres/gpu=16,gres/gpu:h100=16", 16),
        ("cpu=1,gres/gpu:h100=2,gres/gpu:h200=4", 6),
        ("cpu=1,gres/gpu=3", 3),
        ("cpu=1,gres/gpumem=80G,gres/gpuutil=5", None),
        ("cpu=2,mem=1G,node=2,billing=2", None),
        ("", None),
    ],
)
def test_typed_and_untyped_counts_are_never_added(text: str, count: int | None) -> None:
    assert tres_gpu_count({"AllocTRES": text}, "AllocTRES") == count


def test_another_count_is_refused_by_name() -> None:
    with pytest.raises(FieldError, match="AllocTRES reads"):
        tres_gpu_count({"AllocTRES": "gres/gpu=many"}, "AllocTRES")
