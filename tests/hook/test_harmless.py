"""A run with Flopwatch is the run without it."""

import copy
import gc
import io
import pickle
import subprocess
import sys
import weakref
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode, _len_torch_dispatch_stack

import flopwatch
from tests.hook.conftest import Agent
from tests.hook.toys import GPT, GPT_TRAINING, report, tokens, train


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("recompute", [None, "reentrant", "non-reentrant"])
def test_losses_with_dropout_are_bit_identical(recompute: str | None, compiled: bool) -> None:
    def losses(watched: bool) -> list[float]:
        torch.compiler.reset()
        torch.manual_seed(7)
        model = GPT(recompute, dropout=0.3)
        if compiled:
            model.blocks = nn.ModuleList(torch.compile(b, backend="eager") for b in model.blocks)
        if watched:
            flopwatch.watch(model)
        return train(model, 4, tokens)

    assert losses(watched=True) == losses(watched=False)
    assert report().reason is None


def test_exception_in_the_first_forward_leaves_no_mode_and_the_next_is_exact() -> None:
    class Failing(GPT):
        fails = True

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            output = super().forward(ids)
            if self.fails:
                raise ValueError("out of luck")
            return output

    model = Failing()
    flopwatch.watch(model)
    with pytest.raises(ValueError, match="out of luck"):
        model(tokens())
    assert _len_torch_dispatch_stack() == 0
    model.fails = False
    train(model, 2, tokens)
    assert report().train_flops == {"float32": GPT_TRAINING}


def test_interrupt_from_the_keyboard_is_cleared_up_at_the_next_forward() -> None:
    class Interrupted(nn.Linear):
        interrupts = True

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.interrupts:
                raise KeyboardInterrupt
            return super().forward(x)

    model = Interrupted(4, 4)
    flopwatch.watch(model)
    with pytest.raises(KeyboardInterrupt):
        model(torch.randn(2, 4))
    model.interrupts = False
    train(model, 2, lambda: torch.randn(2, 4))
    assert _len_torch_dispatch_stack() == 0
    assert report().train_flops == {"float32": 2 * (2 * 2 * 4 * 4)}


class NoSync(TorchDispatchMode):
    """Fails on what makes the host wait for a device: reading a value of a tensor."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func is not torch.ops.aten._local_scalar_dense.default
        assert func is not torch.ops.aten._to_copy.default
        return func(*args, **(kwargs or {}))


def test_no_value_of_a_tensor_is_ever_read() -> None:
    model = GPT()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batch = tokens()
    flopwatch.watch(model)
    with NoSync():
        for _ in range(3):
            model(batch).sum().backward()
            optimizer.step()
    assert report().train_flops == {"float32": 2 * GPT_TRAINING}


def test_an_error_of_ours_becomes_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Linear(4, 4)
    flopwatch.watch(model)

    def broken(*_: Any) -> None:
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr("flopwatch.hook.watch._shapes", broken)
    train(model, 2, lambda: torch.randn(2, 4))
    assert "a fault of ours" in (report().reason or "")


class Labelled(torch.Tensor):
    """A tensor subclass that nothing can look into."""

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C._DisableTorchDispatch():
            return func(*args, **(kwargs or {}))


def test_a_foreign_tensor_subclass_raises_nothing_and_is_the_reason() -> None:
    model = nn.Linear(4, 4)
    x = torch.randn(2, 4).as_subclass(Labelled).requires_grad_()
    expected = model(x)
    flopwatch.watch(model)
    assert torch.equal(model(x), expected)
    assert "subclass" in (report().reason or "")


def test_what_is_no_module_raises_nothing() -> None:
    flopwatch.watch("not a model")
    assert report().reason is not None


def test_a_copy_of_a_watched_model_is_not_watched() -> None:
    model = nn.Linear(4, 4)
    flopwatch.watch(model)
    average = copy.deepcopy(model)
    with torch.no_grad():
        average(torch.randn(2, 4))
    assert report().forward_only_flops == {}


def test_a_watched_model_saves_without_naming_flopwatch() -> None:
    model = nn.Linear(4, 4)
    flopwatch.watch(model)
    saved = pickle.dumps(model)
    assert b"flopwatch" not in saved
    x = torch.randn(2, 4)
    assert torch.equal(pickle.loads(saved)(x), model(x))
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    assert torch.equal(torch.load(buffer, weights_only=False)(x), model(x))


@pytest.mark.parametrize("in_place", [False, True])
def test_a_model_that_is_let_go_is_freed(in_place: bool) -> None:
    model = nn.Linear(4, 4)
    if in_place:
        model.compile(backend="eager")
    flopwatch.watch(model)
    train(model, 2, lambda: torch.randn(2, 4))
    alive = weakref.ref(model)
    torch.compiler.reset()
    del model
    gc.collect()
    assert alive() is None


def test_switched_off_it_attaches_and_sends_nothing(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLOPWATCH", "0")
    model = nn.Linear(4, 4)
    flopwatch.watch(model)
    with flopwatch.phase("eval"):
        model(torch.randn(2, 4))
    assert not model._forward_pre_hooks
    assert flopwatch.status().report is None
    assert "FLOPWATCH=0" in (flopwatch.status().reason or "")
    assert agent.reports() == []


def test_importing_flopwatch_imports_the_standard_library_only() -> None:
    script = """
import sys
before = set(sys.modules)
import flopwatch
new = {name.partition(".")[0] for name in set(sys.modules) - before}
print(sorted(new - sys.stdlib_module_names - {"flopwatch"}))
"""
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"
