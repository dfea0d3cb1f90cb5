"""Attaching to a model: which forward passes run, with what shapes, and what each costs.

The outermost module gets two hooks. A forward pass whose shapes, modes and trainable parameters
were seen before costs one look-up and one addition. A new one is counted once:

* usually by letting it run under a `ForwardCounter`;
* if anything in the model is compiled, by running a copy of the model on fake tensors, which have
  shapes and no data. A compiled call never sees a counter: it would leave the compiled path, and
  stay slow for good. What can't run on fake tensors is not counted at all, since an eager run in
  its place would change numerics and take more memory.
"""

import contextlib
import gc
import sys
import threading
import weakref
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from flopwatch.hook.compiled import (
    compiled_module_type,
    count_on_fakes,
    is_compiled,
    without_compiler,
)
from flopwatch.hook.counting import Count, ForwardCounter
from flopwatch.hook.device import describe_device
from flopwatch.hook.session import Session

_watchers: dict[Session, list["Watcher"]] = {}


def attach(model: torch.nn.Module, session: Session) -> None:
    """Count the model's forward passes and the process's optimizer steps into the session."""
    session.is_watching = True
    if isinstance(model, torch.nn.DataParallel):
        session.fail("nn.DataParallel computes on several devices in one process")
        return
    watchers = _watchers.setdefault(session, [])
    if any(watcher.is_of(model) for watcher in watchers):
        return
    if not watchers:
        register_optimizer_step_post_hook(_StepHook(session, watchers))
    watchers.append(Watcher(model, session))


class Watcher:
    """Knows one watched model and what each kind of forward pass of it costs.

    It must not keep the model alive when the user lets go of it.
    """

    def __init__(self, model: torch.nn.Module, session: Session) -> None:
        self.session = session
        self.has_run = False
        self._model = weakref.ref(model)
        self._flops_by_kind: dict[Any, Mapping[str, float]] = {}
        self._trainable = b""
        self._trainable_read_at = -1
        self._running: _Running | None = None
        self._hook(model)

    def is_of(self, model: torch.nn.Module) -> bool:
        """Whether this watcher watches the model."""
        return self._model() is model

    def before(self, model: torch.nn.Module, args: Any, kwargs: Any) -> None:
        """A forward pass begins."""
        if torch._C._current_graph_task_id() != -1 or torch._C._get_tracing_state() is not None:
            return  # recomputation in a backward pass, or a trace that computes nothing
        self.has_run = True
        training = torch.is_grad_enabled() and not self.session.clock.in_phase
        if training and self._trainable_read_at != self.session.step_events:
            # Once a step is enough to see that parameters were frozen or un-frozen.
            self._trainable_read_at = self.session.step_events
            self._trainable = bytes(map(attrgetter("requires_grad"), model.parameters()))
        kind = (
            training,
            model.training,
            torch._C._is_any_autocast_enabled(),
            self._trainable,
            _shapes(args),
            _shapes(kwargs),
        )
        flops = self._flops_by_kind.get(kind)
        if flops is None:
            self._count(model, kind, training, args, kwargs)
        elif training:
            self.session.add_training(flops)
        else:
            self.session.add_evaluation(flops)

    def after(self, model: torch.nn.Module, args: Any, kwargs: Any, result: Any) -> None:
        """A forward pass has ended, or an exception has ended it."""
        running = self._running
        if running is None or running.thread != threading.get_ident():
            return
        self._running = None
        running.stop()
        if sys.exception() is running.exception_at_start:
            self._keep(running.kind, running.training, running.counter.count)

    def find_compiled(self) -> None:
        """The model was compiled after `watch`, which took our hooks out of it: hook it anew."""
        model, compiled_type = self._model(), compiled_module_type()
        if model is None or compiled_type is None:
            return
        if model._compiled_call_impl is not None:
            self._hook(model)
            return
        for candidate in gc.get_objects():
            if type(candidate) is compiled_type and candidate._orig_mod is model:
                self._hook(candidate)
                return

    def _hook(self, model: torch.nn.Module) -> None:
        if model._compiled_call_impl is not None:
            # module.compile() has compiled the call with its hooks, so stand outside of it.
            if not isinstance(model._compiled_call_impl, _AroundCompiledCall):
                model._compiled_call_impl = _AroundCompiledCall(self, model)
            return
        before, after = _ModelHook(self, self.before), _ModelHook(self, self.after)
        model.register_forward_pre_hook(before, with_kwargs=True)
        model.register_forward_hook(after, with_kwargs=True, always_call=True)

    def _count(
        self, model: torch.nn.Module, kind: Any, training: bool, args: Any, kwargs: Any
    ) -> None:
        if self._running is not None:
            if self._running.thread != threading.get_ident():
                return
            self._running.stop()  # it was interrupted from the keyboard, which calls no hook
            self._running = None
        if torch._C._functorch.peek_interpreter_stack() is not None:
            self.session.fail("the model runs inside a torch.func transform")
        elif is_compiled(model):
            self._keep(kind, training, count_on_fakes(model, training, args, kwargs))
        else:
            self._running = _Running(kind, training)

    def _keep(self, kind: Any, training: bool, count: Count) -> None:
        if not count.forward:
            count.fail("no matrix product was seen in the forward pass")
        if count.problem is not None:
            self.session.fail(count.problem)
        for device in count.devices:
            self.session.set_device(*describe_device(device))
        if training:
            self._flops_by_kind[kind] = count.training
            self.session.add_training(count.training)
        else:
            self._flops_by_kind[kind] = count.forward
            self.session.add_evaluation(count.forward)


class _Running:
    """A forward pass that is being counted while it runs."""

    def __init__(self, kind: Any, training: bool) -> None:
        self.kind = kind
        self.training = training
        self.counter = ForwardCounter(training)
        self.thread = threading.get_ident()
        self.exception_at_start = sys.exception()
        self._contexts = contextlib.ExitStack()
        self._contexts.enter_context(without_compiler())
        self._contexts.enter_context(self.counter)

    def stop(self) -> None:
        """Leave nothing behind."""
        self._contexts.close()


class _ModelHook:
    """A module hook that can do no harm: it raises nothing and is invisible to the compiler.

    A pickle or a deep copy of the module gets a hook that does nothing in its place, and of the
    standard library, so that a saved model does not need Flopwatch.
    """

    def __init__(self, watcher: Watcher, action: Callable[..., None]) -> None:
        self._session = watcher.session
        self._action = action

    def __call__(self, *args: Any) -> None:
        if torch.compiler.is_compiling():
            return
        try:
            self._action(*args)
        except Exception as error:  # noqa: BLE001 - a training run must outlive every fault of ours
            self._session.fail(f"internal error: {type(error).__name__}: {error}")

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (contextlib.nullcontext(), "__exit__")


class _AroundCompiledCall:
    """Stands before the compiled call of a module that was compiled in place."""

    def __init__(self, watcher: Watcher, model: torch.nn.Module) -> None:
        self._before = _ModelHook(watcher, watcher.before)
        self._model = weakref.ref(model)
        self._compiled_call = model._compiled_call_impl

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self._before(self._model(), args, kwargs)
        return self._compiled_call(*args, **kwargs)


class _StepHook:
    """Sees every optimizer step of the process."""

    def __init__(self, session: Session, watchers: list[Watcher]) -> None:
        self._session = session
        self._watchers = watchers

    def __call__(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if torch.compiler.is_compiling():
            return
        with self._session.harmless():
            self._session.end_step()
            if self._session.step_events == 1:
                for watcher in self._watchers:
                    if not watcher.has_run:
                        watcher.find_compiled()


def _shapes(value: Any, depth: int = 4) -> Any:
    """What a value has to do with the cost of a forward pass: the shapes in it, and flags."""
    if isinstance(value, torch.Tensor):
        return value.shape
    if value is None or isinstance(value, bool | str):
        return value
    if depth == 0 or isinstance(value, torch.nn.Module):
        return type(value)
    if isinstance(value, list | tuple):
        return tuple([_shapes(item, depth - 1) for item in value])
    if isinstance(value, dict | Mapping):
        return tuple([(key, _shapes(item, depth - 1)) for key, item in value.items()])
    fields = getattr(value, "__dict__", None)
    return (type(value), _shapes(fields, depth - 1)) if fields else type(value)
