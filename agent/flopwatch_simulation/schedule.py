"""Which job runs where and when: a pure function of the seed and the time, without a beginning.

Every character of every block has one seat: its GPUs, on which its jobs follow one another in a
fixed cycle. So a simulation that is started again finds the very jobs that it left, and any stretch
of time can be made again.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from random import Random

from flopwatch_simulation.cast import CAST, NODES_PER_BLOCK, SHORT_CYCLE_SECONDS, Character, Places
from flopwatch_simulation.physics import INTERVAL_SECONDS, PEAK_FLOPS, WAVE_DEPTH

WATCH_DELAY_SECONDS = 25
"""From the start of a job to its call of `flopwatch.watch`."""

WAVE_SECONDS = 1700.0
_OPENING = 1_767_225_600  # 2026-01-01: job ids count the short cycles since then
_SEATS_PER_BLOCK = 16
_IDS_PER_BLOCK = 100_000_000
_GOLDEN = 0.618033988749895
_UIDS = {
    user: 20_001 + number
    for number, user in enumerate(sorted({user for one in CAST for user, _ in one.people}))
}
_EXIT_CODES = {"COMPLETED": "0:0", "FAILED": "1:0", "OUT_OF_MEMORY": "0:125",
               "TIMEOUT": "0:0", "CANCELLED": "0:15"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Job:
    """One run. Times are whole seconds since 1970; `started_at` None means that it never starts.

    `listed_at` is when the queue shows it: later than `submitted_at` for a task of an array.
    """

    character: Character
    raw_job_id: int
    display_id: str
    array_job_id: int | None
    array_task_id: int | None
    name: str
    user: str
    account: str
    uid: int
    places: Places
    submitted_at: int
    listed_at: int
    started_at: int | None
    ended_at: int
    end_state: str
    phase: float

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

    def wave(self, time: float) -> float:
        """The slow wave of its activity, in [-1, 1]: the same for all its GPUs."""
        return math.sin(2 * math.pi * time / WAVE_SECONDS + self.phase)

    def paused(self, time: int) -> bool:
        """Whether it stalls over the whole of (time - 10 s, time]."""
        pause = self.character.pause
        if pause is None or self.started_at is None:
            return False
        return (time - INTERVAL_SECONDS - self._pauses_from) % pause.period >= (
            pause.period - pause.seconds
        )

    def training_spans(self, time: float) -> Iterator[tuple[float, float]]:
        """The stretches in which it has trained since its watch: what pauses leave."""
        end = min(time, self.ended_at)
        pause = self.character.pause
        start = float(self.watched_at)
        if pause is not None:
            stop = self._pauses_from + pause.period - pause.seconds
            while stop < end:
                if stop > start:
                    yield start, stop
                start = stop + pause.seconds
                stop += pause.period
        if start < end:
            yield start, end

    def train_flops(self, time: float) -> float:
        """FLOPs of one rank since its watch: MFU x peak, integrated over the wave."""
        training = self.character.training
        if training is None:
            return 0.0
        seconds = sum(
            end - start + WAVE_DEPTH * (self._wave_integral(end) - self._wave_integral(start))
            for start, end in self.training_spans(time)
        )
        return training.mfu * PEAK_FLOPS[training.dtype] * seconds

    @property
    def _pauses_from(self) -> int:
        return self.watched_at // INTERVAL_SECONDS * INTERVAL_SECONDS

    def _wave_integral(self, time: float) -> float:
        turns_per_second = 2 * math.pi / WAVE_SECONDS
        return -math.cos(turns_per_second * time + self.phase) / turns_per_second


@dataclass(frozen=True, slots=True)
class Seat:
    """The GPUs of one character in one block, and the cycle of its jobs."""

    seed: int
    block: int
    index: int

    @property
    def character(self) -> Character:
        """What kind of jobs it has."""
        return CAST[self.index]

    @property
    def places(self) -> Places:
        """Its GPUs by the cluster's node numbers."""
        first = self.block * NODES_PER_BLOCK
        return tuple((first + node, ordinals) for node, ordinals in self.character.places)

    def jobs(self, start: float, end: float) -> list[Job]:
        """Its jobs that the queue shows at some time of [start, end], in order, ended ones too
        if they ended in it."""
        cycle = self.character.cycle_seconds
        first = int(start // cycle) - 2
        last = int(end // cycle) + 1
        jobs = (_job(self, turn) for turn in range(first, last + 1))
        return [job for job in jobs if job.listed_at <= end and job.ended_at >= start]


def seats(seed: int, nodes: int) -> list[Seat]:
    """All seats whose GPUs are among the first `nodes` nodes."""
    blocks = range(-(-nodes // NODES_PER_BLOCK))
    every = (Seat(seed, block, index) for block in blocks for index in range(len(CAST)))
    return [seat for seat in every if all(node < nodes for node, _ in seat.places)]


def _nominal_start(seat: Seat, turn: int) -> int:
    """Starts of a block's seats are spread evenly, so that something ends every few minutes."""
    cycle = seat.character.cycle_seconds
    shift = Random(f"{seat.seed}/{seat.block}").random()
    share = (shift + (seat.index + 1) * _GOLDEN) % 1
    return turn * cycle + int(share * cycle)


def _raw_job_id(seat: Seat, turn: int) -> int:
    slot = (_nominal_start(seat, turn) - _OPENING) // SHORT_CYCLE_SECONDS
    return seat.block * _IDS_PER_BLOCK + 1_000_000 + slot * _SEATS_PER_BLOCK + seat.index


@lru_cache(maxsize=100_000)
def _job(seat: Seat, turn: int) -> Job:
    character = seat.character
    random = Random(f"{seat.seed}/{seat.block}/{seat.index}/{turn}")
    nominal = _nominal_start(seat, turn)
    started_at = nominal + random.randrange(60)
    lead = random.randrange(120, 900)
    listed_at = nominal - min(lead, character.cycle_seconds // 4)
    held = int(character.cycle_seconds * random.uniform(*character.busy_share))
    user, account = random.choice(character.people)
    raw_job_id = _raw_job_id(seat, turn)
    task = turn % character.array_tasks if character.array_tasks else None
    array_job_id = None if task is None else _raw_job_id(seat, turn - task)
    submitted_at = listed_at if task is None else _nominal_start(seat, turn - task) - 300
    return Job(
        character=character,
        raw_job_id=raw_job_id,
        display_id=str(raw_job_id) if task is None else f"{array_job_id}_{task}",
        array_job_id=array_job_id,
        array_task_id=task,
        name=random.choice(character.names),
        user=user,
        account=account,
        uid=_UIDS[user],
        places=seat.places,
        submitted_at=submitted_at,
        listed_at=listed_at,
        started_at=started_at if character.places else None,
        ended_at=started_at + held,
        end_state=random.choice(character.endings),
        phase=random.uniform(0, 2 * math.pi),
    )
