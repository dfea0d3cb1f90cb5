"""Compiled models are counted exactly, and stay as compiled as they are without Flopwatch."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import _len_torch_dispatch_stack

import flopwatch
from tests.hook.toys import (
    GPT,
    GPT_FORWARD,
    GPT_TRAINING,
    lora_gpt,
    lora_training,
    report,
    tokens,
    train,
)


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


class Backend:
    """A compiler backend that counts its graphs and sees which modes are on when they run."""

    def __init__(self) -> None:
        self.graphs = 0
        self.runs = 0
        self.modes_seen = 0

    def __call__(self, graph: torch.fx.GraphModule, _: list[torch.Tensor]) -> Callable[..., Any]:
        self.graphs += 1

        def run(*args: Any) -> Any:
            self.runs += 1
            self.modes_seen += _len_torch_dispatch_stack()
            return graph(*args)

        return run


def watch_compiled(model: nn.Module, backend: Any, way: str) -> nn.Module:
    """Compile and watch in one of the orders that scripts use; return what the script calls."""
    if way == "whole":
        model = torch.compile(model, backend=backend)
        flopwatch.watch(model)
    elif way == "in place":
        model.compile(backend=backend)
        flopwatch.watch(model)
    elif way == "by block":
        model.blocks = nn.ModuleList(torch.compile(b, backend=backend) for b in model.blocks)
        flopwatch.watch(model)
    elif way == "watched first":
        flopwatch.watch(model)
        model = torch.compile(model, backend=backend, fullgraph=True)
    elif way == "watched first, in place":
        flopwatch.watch(model)
        model.compile(backend=backend, fullgraph=True)
    return model


WAYS = ["whole", "in place", "by block", "watched first", "watched first, in place"]


@pytest.mark.parametrize("way", WAYS)
def test_compiled_gpt_is_exact_and_its_graphs_never_see_a_counter(way: str) -> None:
    backend = Backend()
    model = watch_compiled(GPT(), backend, way)
    steps = 4
    train(model, steps, tokens)
    # Watched before it was compiled, a model is found at the first step; the second opens a window.
    counted = steps - (2 if way.startswith("watched first") else 1)
    assert report().reason is None
    assert report().train_flops == {"float32": counted * GPT_TRAINING}
    assert backend.modes_seen == 0

    torch.compiler.reset()
    alone = Backend()
    unwatched = watch_compiled(GPT(), alone, "by block" if way == "by block" else "whole")
    train(unwatched, steps, tokens)
    assert (backend.graphs, backend.runs) == (alone.graphs, alone.runs)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_real_backends_are_exact(backend: str) -> None:
    model = watch_compiled(GPT(), backend, "whole")
    train(model, 3, tokens)
    with torch.no_grad():
        model(tokens())
    assert report().train_flops == {"float32": 2 * GPT_TRAINING}
    assert report().forward_only_flops == {"float32": GPT_FORWARD}


@pytest.mark.parametrize("recompute", ["reentrant", "non-reentrant"])
def test_checkpointed_lora_model_with_compiled_blocks_is_exact(recompute: str) -> None:
    model = watch_compiled(lora_gpt(recompute), "aot_eager", "by block")
    train(model, 3, tokens)
    assert report().reason is None
    assert report().train_flops == {"float32": 2 * lora_training(recompute == "reentrant")}


def test_counting_on_fakes_leaves_nothing_in_the_real_model() -> None:
    class Remembering(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)
            self.seen: list[torch.Tensor] = []
            self.norm = nn.BatchNorm1d(4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.seen.append(x)
            return self.norm(self.linear(x))

    model = Remembering()
    model.compile(backend="eager")
    flopwatch.watch(model)
    model(torch.randn(8, 4))
    assert len(model.seen) == 1
    assert type(model.seen[0]) is torch.Tensor
    assert model.norm.num_batches_tracked.item() == 1


def test_compiled_model_that_depends_on_data_has_no_mfu_and_a_reason() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(x[x[:, 0] > 0])

    model = torch.compile(Model(), backend="eager")
    flopwatch.watch(model)
    model(torch.randn(8, 4))
    assert "fake tensors" in (report().reason or "")


def test_user_hook_inside_a_compiled_model_never_sees_a_fake_tensor() -> None:
    seen = []
    model = nn.Sequential(nn.Linear(4, 4))
    model[0].register_forward_hook(lambda module, args, output: seen.append(output))
    compiled = torch.compile(model, backend="eager")
    flopwatch.watch(compiled)
    compiled(torch.randn(8, 4))
    assert [type(tensor) for tensor in seen] == [torch.Tensor]
    assert "hook" in (report().reason or "")


def test_compiled_function_inside_an_eager_model_keeps_its_compiled_code() -> None:
    backend = Backend()
    activation = torch.compile(lambda x: torch.relu(x) * 2, backend=backend)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return activation(self.linear(x))

    model = Model()
    flopwatch.watch(model)
    train(model, 3, lambda: torch.randn(8, 4))
    assert report().train_flops == {"float32": 2 * 2 * (2 * 8 * 4 * 4)}
    assert (backend.graphs, backend.runs, backend.modes_seen) == (1, 2, 0)
