"""Every rank counts what it computes itself: the sum over ranks is the model's work."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.hook.toys import GPT_TRAINING, TOKENS, WIDTH

# Local products of tensor parallelism over two ranks: half of the hidden columns each.
HALF = 2 * TOKENS * WIDTH * 2 * WIDTH


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of two ranks counted, by case."""
    meeting_file = tmp_path_factory.mktemp("ranks") / "meeting"
    root = Path(__file__).parents[2]
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.hook.distributed_job", str(meeting_file)],
            cwd=root,
            env=os.environ | {"RANK": str(rank), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        outputs = [rank.communicate(timeout=150)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0, 0]
    return [json.loads(output.splitlines()[-1]) for output in outputs]


@pytest.mark.parametrize(
    ("case", "flops"),
    [
        ("data_parallel_with_accumulation", 4 * GPT_TRAINING),
        ("compiled_data_parallel", GPT_TRAINING),
        ("fully_sharded", GPT_TRAINING),
        ("tensor_parallel", HALF + 3 * HALF),
    ],
)
def test_each_rank_counts_its_local_work(
    case: str, flops: int, counted: list[dict[str, Any]]
) -> None:
    for rank, cases in enumerate(counted):
        assert cases[case] == {
            "flops": {"float32": flops},
            "reason": None,
            "rank": rank,
            "world_size": 2,
        }
