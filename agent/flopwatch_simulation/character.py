"""What makes one kind of job: the shape of a row of the cast."""

from dataclasses import dataclass

from flopwatch_simulation.physics import FREE, Load

LONG_CYCLE_SECONDS = 7200
MEDIUM_CYCLE_SECONDS = 2400
SHORT_CYCLE_SECONDS = 1200

Places = tuple[tuple[int, tuple[int, ...]], ...]
"""(node, its GRES ordinals), in the order of ranks."""


@dataclass(frozen=True, slots=True)
class Training:
    """What the job's hook reports: train MFU as a fraction of the dtype's dense peak."""

    mfu: float
    dtype: str
    step_seconds: float


@dataclass(frozen=True, slots=True)
class Interlude:
    """Every `period` seconds all GPUs of the job do `load` for the last `seconds` of them.

    Both are multiples of 10. The hook reports it as a phase, with the forward FLOPs that
    `forward_mfu` of the peak makes.
    """

    phase: str
    period: int
    seconds: int
    load: Load
    forward_mfu: float = 0.0

    @property
    def share(self) -> float:
        """Of the job's time."""
        return self.seconds / self.period


@dataclass(frozen=True, slots=True)
class Character:
    """One kind of job.

    `accounts` run it, each by the first `crew` of its people. `odd_ranks` do `odd_load` instead of
    `load`. `endings` are drawn from for every run. `wanted_gpus` is for a job that only waits in
    the queue, for `reason`, and is given up in the end. `activity` is the class of its GPUs by
    their long-run means, `advice` the one change that would help its owner most.
    """

    names: tuple[str, ...]
    accounts: tuple[str, ...]
    load: Load = FREE
    activity: str = "idle"
    advice: str = "none"
    crew: int = 3
    odd_ranks: frozenset[int] = frozenset()
    odd_load: Load = FREE
    training: Training | None = None
    interlude: Interlude | None = None
    partition: str = "gpu"
    qos: str = "normal"
    endings: tuple[str, ...] = ("COMPLETED",)
    cycle_seconds: int = LONG_CYCLE_SECONDS
    busy_share: tuple[float, float] = (0.90, 0.95)
    time_limit_seconds: int = 7200
    cpus_per_gpu: int = 12
    cpu_share: float = 0.25
    host_mib_per_gpu: float = 60_000.0
    array_tasks: int = 0
    wanted_gpus: int = 0
    reason: str = "Resources"

    def load_of(self, rank: int) -> Load:
        """What the GPU of this rank does outside interludes."""
        return self.odd_load if rank in self.odd_ranks else self.load
