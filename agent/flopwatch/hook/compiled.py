"""Compiled models: finding them, and counting them without touching the compiled code.

The forward pass is run once more, eagerly, by a deep copy of the model whose tensors are fake: they
have shapes, dtypes and devices, but no data. The copy keeps what the model writes to itself while
it runs away from the real one.
"""

import copy
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeCopyMode, FakeTensorMode
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_map_only

from flopwatch.hook.counting import Count, ForwardCounter


def compiled_module_type() -> type[torch.nn.Module] | None:
    """The type of what `torch.compile(module)` returns; None if nothing can be compiled yet."""
    eval_frame = sys.modules.get("torch._dynamo.eval_frame")
    return eval_frame.OptimizedModule if eval_frame else None


def without_compiler() -> AbstractContextManager[Any]:
    """While entered, compiled functions run as they were written, and lose no compiled code."""
    if "torch._dynamo" not in sys.modules:
        return nullcontext()
    stance: AbstractContextManager[Any] = torch.compiler.set_stance("force_eager")
    return stance


def is_compiled(model: torch.nn.Module) -> bool:
    """Whether the model or any module in it is compiled."""
    compiled_type = compiled_module_type()
    return compiled_type is not None and any(
        isinstance(module, compiled_type)
        or module._compiled_call_impl is not None
        or hasattr(module.forward, "_torchdynamo_orig_callable")
        for module in model.modules()
    )


def count_on_fakes(model: torch.nn.Module, training: bool, args: Any, kwargs: Any) -> Count:
    """Count a forward pass of a copy of the model on fake tensors.

    The count has a problem if the pass depends on data, or the model can't be copied.
    """
    counter = ForwardCounter(training, on_fakes=True)
    model = _unwrapped(model)
    hook = _foreign_hook(model)
    if hook is not None:
        counter.count.fail(f"the compiled model has a hook that may keep fake tensors: {hook!r}")
        return counter.count
    fakes = FakeTensorMode(allow_non_fake_inputs=True)
    try:
        with without_compiler():
            with FakeCopyMode(fakes):
                model = copy.deepcopy(model, _shared_with_copy(model))
            args, kwargs = tree_map_only(torch.Tensor, fakes.from_tensor, (args, kwargs))
            with fakes, counter:
                model(*args, **kwargs)
    except Exception as error:  # noqa: BLE001 - whatever a model does on fakes is its own affair
        counter.count.fail(
            f"the compiled model can't run on fake tensors: {type(error).__name__}: {error}"
        )
    return counter.count


def _unwrapped(model: torch.nn.Module) -> torch.nn.Module:
    """The module inside wrappers whose own forward only communicates or compiles."""
    while True:
        if isinstance(model, DistributedDataParallel):
            model = model.module
        elif isinstance(model, compiled_module_type() or ()):
            model = model._orig_mod
        else:
            return model


def _shared_with_copy(model: torch.nn.Module) -> dict[int, Any]:
    """What compiled modules in the model share with their copies: the compiler's own state."""
    contexts = (getattr(module, "dynamo_ctx", None) for module in model.modules())
    return {id(context): context for context in contexts if context is not None}


def _foreign_hook(model: torch.nn.Module) -> Callable[..., Any] | None:
    """A forward hook of the user's: the copy would call it, and it may write anywhere."""
    for module in model.modules():
        hooks: list[Callable[..., Any]]
        hooks = [*module._forward_pre_hooks.values(), *module._forward_hooks.values()]
        for hook in hooks:
            owner = getattr(hook, "__module__", None) or type(hook).__module__
            if owner.partition(".")[0] not in ("torch", "flopwatch"):
                return hook
    return None
