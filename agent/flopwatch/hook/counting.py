"""Counting one forward pass: every matrix product in it, and what its backward pass will cost.

Only forward passes are seen. The backward cost follows from which operands need a gradient, so what
checkpointing recomputes in the backward pass can't enter. Three places hide `requires_grad`:

* reentrant checkpointing runs its block without gradients and runs it again in the backward pass;
* a tensor subclass such as DTensor carries the flag on the outside, not on its local tensor;
* any other custom autograd function with a product inside: what its backward costs is not known.

In the first two the flag is carried from operands to results here, by storage, so that views and
in-place writes keep it.
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from types import FrameType
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd.function import FunctionCtx
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from flopwatch.hook.formulas import FORMULAS, Formula, Product, UncountableError, looks_costly

# Higher-order operators that only carry another one's call.
_FREE_HIGHER_ORDER = frozenset({"run_dtensor_rng_op", "print"})


@dataclass(slots=True)
class Count:
    """What one forward pass costs, by dtype, and the backward pass that it implies.

    `problem` says why the numbers are not to be used, if so.
    """

    forward: dict[str, float] = field(default_factory=dict)
    backward: dict[str, float] = field(default_factory=dict)
    devices: set[torch.device] = field(default_factory=set)
    problem: str | None = None

    @property
    def training(self) -> dict[str, float]:
        """Forward and backward together."""
        return {
            dtype: flops + self.backward.get(dtype, 0.0) for dtype, flops in self.forward.items()
        }

    def fail(self, problem: str) -> None:
        """Note a problem; the first one is kept."""
        self.problem = self.problem or problem


class ForwardCounter(TorchDispatchMode):  # type: ignore[misc]
    """While entered, counts the products of every operator that runs on this thread.

    `training` says whether a backward pass will follow, `on_fakes` whether the pass itself runs on
    fake tensors. Operators run as they would without the counter.
    """

    supports_higher_order_operators = True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """False: PyTorch would else import its compiler, for seconds, at the first operator."""
        return False

    def __init__(self, training: bool, on_fakes: bool = False) -> None:
        super().__init__()
        self.count = Count()
        self._training = training
        self._on_fakes = on_fakes
        self._inside_subclass = False
        self._carries_gradient: set[StorageWeakRef] = set()

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if isinstance(func, torch._ops.HigherOrderOperator):
            if func.name() not in _FREE_HIGHER_ORDER:
                self.count.fail(f"no formula for the higher-order operator {func.name()}")
            return func(*args, **kwargs)
        if any(_is_wrapper(kind) for kind in types):
            return self._run_subclass(func, args, kwargs)
        if self._inside_subclass and FakeTensor in types:
            return func(*args, **kwargs)  # DTensor works out the global shape of a result
        operator = _operator(func)
        if operator.is_composite:
            with self:
                return func.decompose(*args, **kwargs)
        result = func(*args, **kwargs)
        self._note(operator, args, kwargs, result)
        return result

    def _run_subclass(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Let a tensor subclass do its own work, and count the plain operators it calls.

        NotImplemented, on the second visit, is what hands the call to the subclass with this mode
        still active.
        """
        if self._on_fakes:
            self.count.fail("the compiled model has parameters of a tensor subclass")
            return func(*args, **kwargs)
        if not self._inside_subclass and torch.is_grad_enabled():
            self._carries_gradient.clear()
        self._carry_inwards(args, kwargs)
        if self._inside_subclass:
            return NotImplemented
        self._inside_subclass = True
        try:
            with self:
                return func(*args, **kwargs)
        finally:
            self._inside_subclass = False

    def _note(
        self, operator: "_Operator", args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> None:
        """Count an operator that has run. Nothing may be raised: it would end the user's run."""
        try:
            products = operator.products(args, kwargs, result)
            context = self._enclosing_function()
            if products:
                self._add(products, context)
            if self._training and (self._inside_subclass or context is not None):
                tensors = _floating_tensors(tree_iter((args, kwargs)))
                if any(map(self._needs_gradient, tensors)):
                    self._carry(_floating_tensors(tree_iter(result)))
        except UncountableError as error:
            self.count.fail(str(error))
        except Exception as error:  # noqa: BLE001 - an error here would abort the user's forward
            self.count.fail(f"{operator.name}: {type(error).__name__}: {error}")

    def _add(self, products: list[Product], context: FunctionCtx | None) -> None:
        if torch._C._current_graph_task_id() != -1:
            raise UncountableError("the forward pass runs a backward pass of its own")
        if context is not None and not _is_checkpoint(context):
            name = type(context).__name__.removesuffix("Backward")
            raise UncountableError(
                f"the backward pass of the autograd function {name} is not known"
            )
        has_backward = self._training and (
            torch.is_grad_enabled() or (context is not None and any(context.needs_input_grad))
        )
        for product in products:
            dtype = _dtype_name(product)
            needing = sum(any(map(self._needs_gradient, tensors)) for tensors in product.operands)
            backward = product.flops * needing if has_backward else 0
            self.count.forward[dtype] = self.count.forward.get(dtype, 0.0) + product.flops
            self.count.backward[dtype] = self.count.backward.get(dtype, 0.0) + backward
            self.count.devices.add(product.device)

    def _needs_gradient(self, tensor: torch.Tensor) -> bool:
        if tensor.requires_grad:
            return True
        if not self._carries_gradient or (torch.is_grad_enabled() and not self._inside_subclass):
            return False
        return StorageWeakRef(tensor.untyped_storage()) in self._carries_gradient

    def _carry(self, tensors: Iterable[torch.Tensor]) -> None:
        self._carries_gradient.update(
            StorageWeakRef(tensor.untyped_storage()) for tensor in tensors
        )

    def _carry_inwards(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Mark the tensors inside subclassed arguments that need a gradient. Raise nothing."""
        try:
            self._carry(list(_inner_tensors(tree_iter((args, kwargs)), self._needs_gradient)))
        except Exception as error:  # noqa: BLE001 - an error here would abort the user's forward
            self.count.fail(f"a tensor subclass can't be looked into: {error}")

    def _enclosing_function(self) -> FunctionCtx | None:
        """The custom autograd function whose forward runs now, without gradients; else None."""
        if not self._training or torch.is_grad_enabled():
            return None
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            code = frame.f_code
            # Reading f_locals keeps a frame's tensors alive, so it is done for likely frames only.
            if code.co_name == "forward" and code.co_varnames[:1] != ("self",):
                first = frame.f_locals.get(code.co_varnames[0]) if code.co_argcount else None
                if isinstance(first, FunctionCtx):
                    return first
            frame = frame.f_back
        return None


@dataclass(frozen=True, slots=True)
class _Operator:
    """What is to be done when an operator runs. `is_composite`: it is counted by its parts, which
    it calls itself; that happens in inference mode and inside tensor subclasses only."""

    name: str
    argument_names: tuple[str, ...]
    formula: Formula | None
    is_composite: bool
    looks_costly: bool

    def products(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> list[Product]:
        if self.formula is not None:
            return self.formula(dict(zip(self.argument_names, args, strict=False)) | kwargs, result)
        if self.looks_costly:
            raise UncountableError(f"no formula for the operator {self.name}")
        return []


@cache
def _operator(func: Any) -> _Operator:
    namespace, _, name = func._schema.name.partition("::")
    in_place = name.endswith("_") and not name.endswith("__")
    formula = FORMULAS.get(name.removesuffix("_") if in_place else name)
    if namespace != "aten":
        formula = None
    return _Operator(
        name=func._schema.name,
        argument_names=tuple(argument.name for argument in func._schema.arguments),
        formula=formula,
        # Decomposing an operator of another namespace has aborted the process (prim::device).
        is_composite=namespace == "aten" and formula is None and func._can_decompose(),
        looks_costly=formula is None and looks_costly(namespace, name),
    )


def _is_wrapper(kind: type) -> bool:
    """Whether a tensor subclass runs operators by code of its own on tensors inside it."""
    handler = getattr(kind, "__torch_dispatch__", None)
    plain = handler is None or handler is torch._C._disabled_torch_dispatch_impl
    return not plain and not issubclass(kind, FakeTensor)


def _inner_tensors(
    values: Iterable[Any], chosen: Callable[[torch.Tensor], bool]
) -> Iterator[torch.Tensor]:
    """The floating tensors inside the chosen ones of the subclassed tensors among values."""
    for value in values:
        if isinstance(value, torch.Tensor) and _is_wrapper(type(value)) and chosen(value):
            names, _ = value.__tensor_flatten__()
            yield from _floating_tensors(getattr(value, name) for name in names)


def _floating_tensors(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            yield value


def _is_checkpoint(context: FunctionCtx) -> bool:
    """By its name: PyTorch's own and the copies of it in Megatron, DeepSpeed and others."""
    return "checkpoint" in type(context).__name__.lower()


def _dtype_name(product: Product) -> str:
    if product.dtype is torch.float32 and _may_use_tf32(product):
        return "tf32"
    return str(product.dtype).removeprefix("torch.")


def _may_use_tf32(product: Product) -> bool:
    """Whether PyTorch may compute a float32 product in TF32: NVIDIA, from Ampere on, if allowed."""
    if product.device.type != "cuda" or torch.version.cuda is None:
        return False
    if torch.cuda.get_device_capability(product.device) < (8, 0):
        return False
    backend: Any = (
        torch.backends.cudnn.conv if product.is_convolution else torch.backends.cuda.matmul
    )
    return bool(backend.fp32_precision == "tf32")
