"""One run of one job: who, where, when, and what its GPUs do at a time."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from flopwatch_simulation.character import Character, Places
from flopwatch_simulation.hardware import GpuModel
from flopwatch_simulation.people import Person
from flopwatch_simulation.physics import INTERVAL_SECONDS, WAVE_DEPTH, Load

WATCH_DELAY_SECONDS = 25
"""From the start of a job to its call of `flopwatch.watch`."""

WAVE_SECONDS = 1700.0
_EXIT_CODES = {"COMPLETED": "0:0", "FAILED": "1:0", "OUT_OF_MEMORY": "0:125", "TIMEOUT": "0:0",
               "CANCELLED": "0:15", "NODE_FAIL": "0:0", "PREEMPTED": "0:15"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Job:
    """One run. Times are whole seconds since 1970; `started_at` None means that it never starts.

    `key` is its character's name in the cast, `listed_at` when the queue shows it: later than
    `submitted_at` for a task of an array. `gpu` is the model it runs on.
    """

    key: str
    character: Character
    gpu: GpuModel
    raw_job_id: int
    array_job_id: int | None
    array_task_id: int | None
    name: str
    person: Person
    places: Places
    submitted_at: int
    listed_at: int
    started_at: int | None
    ended_at: int
    end_state: str
    wave_shift: float
    restarts: int = 0

    @property
    def display_id(self) -> str:
        """The id that its owner knows."""
        if self.array_job_id is None:
            return str(self.raw_job_id)
        return f"{self.array_job_id}_{self.array_task_id}"

    @property
    def gpu_count(self) -> int:
        """GPUs allocated, or wanted by a job that only waits."""
        return sum(len(ordinals) for _, ordinals in self.places) or self.character.wanted_gpus

    @property
    def exit_code(self) -> str:
        """Slurm's "code:signal" of its end."""
        return _EXIT_CODES[self.end_state]

    @property
    def watched_at(self) -> int:
        """When its ranks call `flopwatch.watch`."""
        if self.started_at is None:
            raise ValueError(f"job {self.display_id} never starts")
        return self.started_at + WATCH_DELAY_SECONDS

    def state(self, time: float) -> str | None:
        """Slurm's word for it at this time; None while the queue does not show it."""
        if time < self.listed_at:
            return None
        if time >= self.ended_at:
            return self.end_state
        return "RUNNING" if self.runs(time) else "PENDING"

    def runs(self, time: float) -> bool:
        """Whether it holds its GPUs at this time."""
        return self.started_at is not None and self.started_at <= time < self.ended_at

    def works(self, time: int) -> bool:
        """Whether it holds its GPUs over the whole of (time - 10 s, time]."""
        start = self.started_at
        return start is not None and start <= time - INTERVAL_SECONDS and time <= self.ended_at

    def ordinals_on(self, node: int) -> tuple[int, ...]:
        """The GRES ordinals it holds on a node."""
        return next((ordinals for place, ordinals in self.places if place == node), ())

    def ranks_on(self, node: int) -> Iterator[tuple[int, int]]:
        """(rank, GRES ordinal) of its GPUs on a node."""
        first = 0
        for place, ordinals in self.places:
            if place == node:
                yield from enumerate(ordinals, first)
            first += len(ordinals)

    def load(self, rank: int, time: int) -> Load:
        """What the GPU of this rank does over (time - 10 s, time]."""
        interlude = self.character.interlude
        if interlude is not None and self._in_interlude(time):
            return interlude.load
        return self.character.load_of(rank)

    def wave(self, time: float) -> float:
        """The slow wave of its activity, in [-1, 1]: the same for all its GPUs."""
        return math.sin(2 * math.pi * time / WAVE_SECONDS + self.wave_shift)

    def train_seconds(self, time: float) -> float:
        """Seconds in which it has trained since its watch: what interludes leave."""
        return sum(end - start for start, end in self._training_spans(time))

    def train_flops(self, time: float) -> float:
        """FLOPs of one rank since its watch: MFU x peak, integrated over the wave."""
        training = self.character.training
        if training is None:
            return 0.0
        seconds = sum(
            end - start + WAVE_DEPTH * (self._wave_integral(end) - self._wave_integral(start))
            for start, end in self._training_spans(time)
        )
        return training.mfu * self.gpu.peak_flops(training.dtype) * seconds

    @property
    def _interludes_from(self) -> int:
        return self.watched_at // INTERVAL_SECONDS * INTERVAL_SECONDS

    def _in_interlude(self, time: int) -> bool:
        interlude = self.character.interlude
        if interlude is None:
            return False
        since = (time - INTERVAL_SECONDS - self._interludes_from) % interlude.period
        return since >= interlude.period - interlude.seconds

    def _training_spans(self, time: float) -> Iterator[tuple[float, float]]:
        end = min(time, self.ended_at)
        interlude = self.character.interlude
        start = float(self.watched_at)
        if interlude is not None:
            stop = self._interludes_from + interlude.period - interlude.seconds
            while stop < end:
                if stop > start:
                    yield start, stop
                start = stop + interlude.seconds
                stop += interlude.period
        if start < end:
            yield start, end

    def _wave_integral(self, time: float) -> float:
        turns_per_second = 2 * math.pi / WAVE_SECONDS
        return -math.cos(turns_per_second * time + self.wave_shift) / turns_per_second
