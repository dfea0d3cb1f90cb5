"""Flopwatch in a training script: two lines report the job's Model FLOPs Utilization.

    import flopwatch
    flopwatch.watch(model)

Importing this package imports nothing outside the standard library; PyTorch is imported by `watch`.
"""

import os
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from flopwatch.hook import session as _session
from flopwatch.hook.session import Status

if TYPE_CHECKING:
    import torch

__all__ = ["Status", "phase", "status", "watch"]


def watch(model: "torch.nn.Module") -> None:
    """Report the Model FLOPs Utilization of this process's training from now on.

    Give the outermost module, after `torch.compile` and any wrapper such as
    DistributedDataParallel. Several models may be watched; their FLOPs add up. Never raises:
    `status()` says why there is no MFU, if so.
    """
    if _is_off():
        return
    session = _session.current()
    with session.harmless():
        from flopwatch.hook.watch import attach

        attach(model, session)


def phase(name: str) -> AbstractContextManager[Any]:
    """Mark what runs inside as no training, such as "eval" or "checkpoint".

    Its time is reported by name and is no train time; forward passes inside it are evaluation.
    """
    return nullcontext() if _is_off() else _session.current().phase(name)


def status() -> Status:
    """What would be reported now, and why there is no MFU, if so."""
    if _is_off():
        return Status(report=None, reason="switched off by FLOPWATCH=0")
    return _session.status()


def _is_off() -> bool:
    return os.environ.get("FLOPWATCH") == "0"
