"""One of two ranks that train in several ways and print what each way counted, as JSON."""

import contextlib
import json
import os
import sys
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

import flopwatch
import flopwatch.hook.session
from tests.hook.toys import GPT, TOKENS, WIDTH, report, tokens, train


def data_parallel_with_accumulation() -> None:
    model = nn.parallel.DistributedDataParallel(GPT())
    flopwatch.watch(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        for micro_batch in range(4):
            context = model.no_sync() if micro_batch < 3 else contextlib.nullcontext()
            with context:
                model(tokens()).sum().backward()
        optimizer.step()


def compiled_data_parallel() -> None:
    model = nn.parallel.DistributedDataParallel(torch.compile(GPT(), backend="eager"))
    flopwatch.watch(model)
    train(model, 2, tokens)


def fully_sharded() -> None:
    model = GPT()
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    flopwatch.watch(model)
    train(model, 2, tokens)


def tensor_parallel() -> None:
    """Half of the columns, then half of the rows; the first weight is frozen, its bias is not."""
    model = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
    model[0].weight.requires_grad_(False)
    mesh = init_device_mesh("cpu", (2,))
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    flopwatch.watch(model)
    train(model, 2, lambda: torch.randn(TOKENS, WIDTH))


CASES: list[Callable[[], None]] = [
    data_parallel_with_accumulation,
    compiled_data_parallel,
    fully_sharded,
    tensor_parallel,
]


def main(meeting_file: str) -> None:
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo", init_method=f"file://{meeting_file}", rank=rank, world_size=2)
    counted = {}
    for case in CASES:
        flopwatch.hook.session._session = None
        torch.manual_seed(0)
        case()
        found = report()
        counted[case.__name__] = {
            "flops": found.train_flops,
            "reason": found.reason,
            "rank": found.rank,
            "world_size": found.world_size,
        }
    print(json.dumps(counted))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
