"""The ledger of truth: what a reader ought to find, for whoever checks one."""

from dataclasses import dataclass

from flopwatch_simulation.physics import mean_activity
from flopwatch_simulation.schedule import Job


@dataclass(frozen=True, slots=True)
class Truth:
    """What is so about one job at one time. Ratios are its long-run means over all its GPUs, 0
    while it is pending.

    `mfu` is the train MFU of the ranks that report, None where none does.
    """

    job: Job
    state: str
    gpus: int
    idle_gpus: int
    sm_active: float
    tensor_active: float
    dram_active: float
    mfu: float | None


def true_of(job: Job, state: str) -> Truth:
    """The truth about one job in this state."""
    character = job.character
    ranks = range(character.gpu_count) if state == "RUNNING" else ()
    loads = [character.load_of(rank) for rank in ranks]
    paused = character.pause.seconds / character.pause.period if character.pause else 0.0
    gpus = len(loads) or 1
    return Truth(
        job=job,
        state=state,
        gpus=character.gpu_count,
        idle_gpus=sum(load.sm == 0 for load in loads),
        sm_active=sum(mean_activity(load.sm, load, paused) for load in loads) / gpus,
        tensor_active=sum(mean_activity(load.tensor, load, paused) for load in loads) / gpus,
        dram_active=sum(mean_activity(load.dram, load, paused) for load in loads) / gpus,
        mfu=character.training.mfu if character.training else None,
    )
