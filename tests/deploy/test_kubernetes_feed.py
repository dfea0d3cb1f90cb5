"""What Kubernetes' feed alone has to know: quantities, shared GPUs, and whose a pod is.

The tables are worked out by hand: quantities by the grammar of Kubernetes' Quantity, the labels of
shared GPUs by what NVIDIA's device plugin and GPU feature discovery set on a node.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.deploy.feeding import (
    ANSWERS,
    FEEDS,
    change,
    change_file,
    feed,
    held,
    jobs_file,
    node_row,
)

OWNER = "example.org/owner"
H100 = "NVIDIA-H100-80GB-HBM3"
GPU, SHARED, MIG = "nvidia.com/gpu", "nvidia.com/gpu.shared", "nvidia.com/mig-1g.10gb"
PRODUCT, REPLICAS = "nvidia.com/gpu.product", "nvidia.com/gpu.replicas"

QUANTITIES = {
    "12": 12,
    "+8": 8,
    "1k": 1000,
    "2M": 2_000_000,
    "1G": 1_000_000_000,
    "1Ki": 1024,
    "3Mi": 3_145_728,
    "1Gi": 1_073_741_824,
    "12e0": 12,
    "1e3": 1000,
    "2E3": 2000,
    "1e+3": 1000,
}
NO_QUANTITIES = ["1.5", "500m", "1K", "1ki", "1e400", "-1", "k", "٣", ""]
TOO_MANY = ["3G", "1E", "2147483648"]  # the feed's numbers end at 2147483647

# What gpu-a can hand out, its labels | the node, and what nlp/whole-0 holds that asks for 8
ON_GPU_A = [
    ({GPU: "8"}, {PRODUCT: H100}, f"ALLOCATED | 8 | {H100}", "0,1,2,3,4,5,6,7"),
    ({GPU: "8"}, {PRODUCT: H100, REPLICAS: "1"}, f"ALLOCATED | 8 | {H100}", "0,1,2,3,4,5,6,7"),
    ({GPU: "8"}, {PRODUCT: H100, REPLICAS: "0"}, f"ALLOCATED | 8 | {H100}", "0,1,2,3,4,5,6,7"),
    ({GPU: "32"}, {PRODUCT: f"{H100}-SHARED", REPLICAS: "4"}, f"MIXED | 8 | {H100}", "8 shared"),
    ({GPU: "8"}, {PRODUCT: f"{H100}-SHARED", REPLICAS: "4"}, f"ALLOCATED | 2 | {H100}", "8 shared"),
    ({GPU: "8"}, {REPLICAS: "2"}, "ALLOCATED | 4 | -", "8 shared"),
    ({GPU: "32"}, {PRODUCT: f"{H100}-SHARED"}, f"MIXED | - | {H100}", "8 shared"),
    ({GPU: "8", MIG: "7"}, {PRODUCT: H100}, f"MIXED | 8 | {H100}", "8"),
]  # fmt: skip


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """A copy of what Kubernetes answered."""
    return Path(shutil.copytree(ANSWERS / "kubernetes", tmp_path / "kept"))


@pytest.mark.parametrize(
    ("user_key", "user"),
    [(f"annotation:{OWNER}", "mchen"), (f"label:{OWNER}", "mallory"), ("", "")],
)
def test_a_label_never_stands_in_for_an_annotation_of_the_same_key(
    user_key: str, user: str, kept: Path
) -> None:
    """Of the two only one is set by the site: anybody may write the other."""
    change(kept, "items", 0, "metadata", "labels", to={OWNER: "mallory"})
    assert feed("kubernetes", kept, user_key)[0].jobs[0].user == user


@pytest.mark.parametrize("user_key", [OWNER, "label:", "labels:owner", ":owner"])
def test_a_user_key_that_says_not_which_is_refused_at_start(user_key: str, kept: Path) -> None:
    command = [sys.executable, str(FEEDS / "kubernetes.py"), str(kept)]
    result = subprocess.run(command, env={"USER_KEY": user_key}, capture_output=True, text=True)
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr == (
        f"USER_KEY is {user_key!r}, but has to be label:KEY or annotation:KEY\n"
    )


def waiting(kept: Path, quantities: list[str]) -> None:
    """Leave only pods that wait for so many GPUs, named by their places."""
    file = jobs_file(kept)
    pod = json.loads(file.read_text())["items"][2]
    pods = []
    for place, quantity in enumerate(quantities):
        asks = {"resources": {"limits": {GPU: quantity}, "requests": {GPU: quantity}}}
        meta = {**pod["metadata"], "name": str(place), "uid": f"uid-{place}"}
        pods.append({**pod, "metadata": meta, "spec": {"containers": [asks]}})
    file.write_text(json.dumps({"items": pods}))


def test_whole_numbers_are_read_in_each_form_that_kubernetes_has(kept: Path) -> None:
    waiting(kept, list(QUANTITIES))
    jobs = feed("kubernetes", kept)[0].jobs
    assert dict(zip(QUANTITIES, [job.gpu_count for job in jobs], strict=True)) == QUANTITIES


def test_what_is_no_number_of_gpus_costs_its_own_pod_alone(kept: Path) -> None:
    """Nobody who may ask for GPUs may keep others' runs from being told."""
    waiting(kept, [*NO_QUANTITIES, *TOO_MANY, "2147483647"])
    snapshot, errors = feed("kubernetes", kept)
    assert [job.gpu_count for job in snapshot.jobs] == [2147483647]
    assert snapshot.complete
    for place, text in enumerate(NO_QUANTITIES):
        assert f"'nlp/{place}' left out: ValueError: {text!r} is no whole number" in errors
    assert errors.count("is no number of GPUs") == len(TOO_MANY)


def test_a_broken_pod_that_is_bound_and_does_not_run_yet_might_hold_gpus(kept: Path) -> None:
    change(kept, "items", 3, "metadata", to={"namespace": "nlp", "name": "pulls"})
    snapshot, errors = feed("kubernetes", kept)
    assert not snapshot.complete
    assert "job 'nlp/pulls' left out" in errors


@pytest.mark.parametrize(("capacity", "labels", "node", "holds"), ON_GPU_A)
def test_a_gpu_that_is_handed_out_several_times_is_one_gpu_and_nobodys_alone(
    capacity: dict[str, str], labels: dict[str, str], node: str, holds: str, kept: Path
) -> None:
    change_file(kept / "nodes.json", "items", 0, "status", "capacity", to=capacity)
    change_file(kept / "nodes.json", "items", 0, "metadata", "labels", to=labels)
    snapshot = feed("kubernetes", kept)[0]
    assert node_row(snapshot.nodes[0]) == f"gpu-a | {node}"
    assert [held(gpus) for gpus in snapshot.jobs[0].gpus or ()] == [f"gpu-a:{holds}"]


@pytest.mark.parametrize(
    ("resource", "labels", "holds"),
    [
        (SHARED, {}, "3 shared"),
        (MIG, {}, "3 of mig-1g.10gb"),
        (MIG, {f"{MIG}.replicas": "2"}, "3 of mig-1g.10gb shared"),
        (f"{MIG}.shared", {}, "3 of mig-1g.10gb shared"),
    ],
)
def test_slices_and_renamed_gpus_are_shared_where_their_own_labels_or_names_say_so(
    resource: str, labels: dict[str, str], holds: str, kept: Path
) -> None:
    asks = [{"resources": {"requests": {resource: "3"}}}]
    change(kept, "items", 0, "spec", "containers", to=asks)
    change_file(kept / "nodes.json", "items", 0, "metadata", "labels", to=labels)
    assert [held(gpus) for gpus in feed("kubernetes", kept)[0].jobs[0].gpus or ()] == [
        f"gpu-a:{holds}"
    ]


@pytest.mark.parametrize(("labels", "cards"), [({REPLICAS: "4"}, 8), ({}, None)])
def test_renamed_shares_are_counted_as_the_gpus_that_they_are_of(
    labels: dict[str, str], cards: int | None, kept: Path
) -> None:
    capacity = {GPU: "0", SHARED: "32"}
    change_file(kept / "nodes.json", "items", 0, "status", "capacity", to=capacity)
    change_file(kept / "nodes.json", "items", 0, "metadata", "labels", to=labels)
    assert feed("kubernetes", kept)[0].nodes[0].gpu_count == cards
