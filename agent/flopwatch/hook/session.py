"""The counters of this process: what was computed, in which time, and why there is no MFU."""

import atexit
import os
import secrets
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from flopwatch.hook.clock import Clock
from flopwatch.hook.transport import Transport
from flopwatch.wire import Report, as_text

REPORT_PERIOD_SECONDS = 1.0

# Consecutive multiples of the golden ratio, modulo 1, are spread evenly: so are the ranks' reports.
_GOLDEN_RATIO = 0.6180339887498949


@dataclass(frozen=True, slots=True)
class Status:
    """What would be reported now (None before `watch`), and why there is no MFU, if so."""

    report: Report | None
    reason: str | None


class Session:
    """One process's counters from its first call of Flopwatch on. FLOPs are by dtype."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self.clock = Clock(now)
        self._transport = Transport()
        self._boot = secrets.token_hex(8)
        self._sequence = 0
        self._steps = 0
        self._train_flops: dict[str, float] = {}
        self._forward_only_flops: dict[str, float] = {}
        self._window_flops: dict[str, float] = {}
        self._window_forwards = 0
        self._problem: str | None = None
        self._device: tuple[str, str | None] | None = None
        self._next_report = now() + REPORT_PERIOD_SECONDS * _own_phase()
        self.is_watching = False
        self.has_seen_training = False
        self.step_events = 0
        atexit.register(self.flush)

    @property
    def is_own_process(self) -> bool:
        """False in a fork of the process that the session belongs to."""
        return self._transport.is_own_process

    @contextmanager
    def harmless(self) -> Iterator[None]:
        """Keep any error of ours away from the run: it becomes the reason why there is no MFU."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - a training run must outlive every fault of ours
            self.fail(f"internal error: {type(error).__name__}: {error}")

    def fail(self, reason: str) -> None:
        """There is no MFU any more; the first reason is the one that is reported."""
        if self._problem is None:
            self._problem = as_text(reason)

    def set_device(self, name: str, uuid: str | None) -> None:
        """Name the device that computes; one process may report one only."""
        device = (as_text(name), uuid)
        if self._device not in (None, device):
            self.fail("the watched models compute on several devices in one process")
        self._device = device

    def add_training(self, flops_by_dtype: Mapping[str, float]) -> None:
        """Add a forward pass and the backward pass it implies to the open window."""
        for dtype, flops in flops_by_dtype.items():
            self._window_flops[dtype] = self._window_flops.get(dtype, 0.0) + flops
        self._window_forwards += 1
        self.has_seen_training = True
        self.report_if_due()

    def add_evaluation(self, flops_by_dtype: Mapping[str, float]) -> None:
        """Add a forward pass that no backward pass follows."""
        for dtype, flops in flops_by_dtype.items():
            self._forward_only_flops[dtype] = self._forward_only_flops.get(dtype, 0.0) + flops
        self.report_if_due()

    def end_step(self) -> None:
        """An optimizer has stepped. Several may do so per step, as in a GAN: each closes a window,
        and only windows with a forward pass count as steps. A step inside a phase is no training.
        """
        self.step_events += 1
        if self.clock.in_phase or not self.has_seen_training:
            return
        if self.clock.close_window():
            for dtype, flops in self._window_flops.items():
                self._train_flops[dtype] = self._train_flops.get(dtype, 0.0) + flops
            self._steps += self._window_forwards > 0
        self._window_flops.clear()
        self._window_forwards = 0
        self.report_if_due()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time inside goes to the phase, not to training."""
        with self.harmless():
            self.clock.enter_phase(name)
        try:
            yield
        finally:
            with self.harmless():
                self.clock.leave_phase()
                self.report_if_due()

    def report_if_due(self) -> None:
        """Send a report if the last one is a second old."""
        now = self._now()
        if now >= self._next_report:
            self._next_report = now + REPORT_PERIOD_SECONDS
            self._send()

    def flush(self) -> None:
        """Send the last counters when the process ends."""
        with self.harmless():
            self._send()

    def report(self) -> Report:
        """The counters as they would be sent now."""
        rank, world_size = _rank_and_world_size()
        device_name, device_uuid = self._device or ("", None)
        return Report(
            boot=self._boot,
            sequence=self._sequence,
            rank=rank,
            world_size=world_size,
            device_name=device_name,
            device_uuid=device_uuid,
            train_flops=dict(self._train_flops),
            forward_only_flops=dict(self._forward_only_flops),
            train_seconds=self.clock.train_seconds,
            elapsed_seconds=self.clock.elapsed_seconds,
            steps=self._steps,
            phase_seconds=dict(self.clock.phase_seconds),
            reason=self._reason(),
            dropped=self._transport.dropped,
        )

    def _reason(self) -> str | None:
        if self._problem is not None:
            return self._problem
        if not self.has_seen_training:
            return "no forward pass of a watched model with gradients yet"
        if self.clock.train_seconds == 0:
            return "fewer than two optimizer steps yet"
        return None

    def _send(self) -> None:
        if self.is_watching and self.is_own_process:
            self._transport.send(self.report())
            self._sequence += 1


_session: Session | None = None


def current() -> Session:
    """This process's session; a fork that calls Flopwatch itself begins its own."""
    global _session
    if _session is None or not _session.is_own_process:
        _session = Session()
    return _session


def status() -> Status:
    """The state of this process's session."""
    if _session is None or not _session.is_own_process:
        return Status(report=None, reason="watch() has not been called")
    report = _session.report()
    return Status(report, report.reason)


def _rank_and_world_size() -> tuple[int, int]:
    """From torch.distributed if it is initialised, else from the launcher's environment."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return _environment_number("RANK", 0), _environment_number("WORLD_SIZE", 1)


def _environment_number(name: str, otherwise: int) -> int:
    text = os.environ.get(name, "")
    return int(text) if text.isdecimal() else otherwise


def _own_phase() -> float:
    return _environment_number("RANK", 0) * _GOLDEN_RATIO % 1.0
