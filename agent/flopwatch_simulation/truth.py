"""The ledger of truth: what a reader ought to find, for whoever checks one."""

from dataclasses import dataclass
from typing import Literal

from flopwatch.metrics import COLUMNS
from flopwatch_simulation.agent import Agent
from flopwatch_simulation.faults import Faults
from flopwatch_simulation.job import Job
from flopwatch_simulation.physics import INTERVAL_SECONDS, Load

State = Literal["idle", "low", "active", "unknown"]
_SM_ACTIVE = COLUMNS.index("sm_active")
_UTILIZATION = COLUMNS.index("gpu_utilization")
_IDLE_SM_ACTIVE = 0.01
_LOW_SM_ACTIVE = 0.15
_ENOUGH_SAMPLES = 5


@dataclass(frozen=True, slots=True)
class Truth:
    """What is so about one job at one time. Ratios are its long-run means over all its GPUs, 0
    while it is pending.

    `mfu` is the train MFU of the ranks that report, None where none does. `activity` is the class
    of its GPUs, odd ones left out, and `advice` what its owner deserves to be told.
    """

    job: Job
    state: str
    gpus: int
    idle_gpus: int
    sm_active: float
    tensor_active: float
    dram_active: float
    mfu: float | None
    activity: str
    advice: str


@dataclass(frozen=True, slots=True)
class GpuMinute:
    """One GPU over one minute.

    `does` is what it does, whoever can see it. `tells` is what a reader who counts minutes by the
    house's definition should say: "unknown" where samples are missing or lie. A skewed clock is
    taken as corrected. `job` held it for the whole minute. Nobody may be told of idleness unless
    `tells` is "idle".
    """

    does: State
    tells: State
    job: Job | None


def true_of(job: Job, state: str) -> Truth:
    """The truth about one job in this state."""
    character = job.character
    ranks = range(job.gpu_count) if state == "RUNNING" else ()
    loads = [character.load_of(rank) for rank in ranks]
    return Truth(
        job=job,
        state=state,
        gpus=job.gpu_count,
        idle_gpus=sum(load.rests for load in loads),
        sm_active=_mean(job, loads, "sm"),
        tensor_active=_mean(job, loads, "tensor"),
        dram_active=_mean(job, loads, "dram"),
        mfu=character.training.mfu if character.training else None,
        activity=character.activity,
        advice=character.advice,
    )


def gpu_minute(agent: Agent, faults: Faults, place: int, minute: int) -> GpuMinute:
    """The truth about one GPU over (minute, minute + 60 s]."""
    times = range(minute + INTERVAL_SECONDS, minute + 61, INTERVAL_SECONDS)
    jobs = agent.jobs(minute, minute + 60)
    held = next(held for found, held in agent.holders(jobs) if found == place)
    rows = [agent.true_row(held, place, time) for time in times]
    does = _state(rows)
    told = sum(
        not faults.silent(agent.node, time)
        and not faults.on(agent.node, place, time, "gpu lost", "sentinels")
        for time in times
    )
    # Stuck counters lie only while the GPU works: at rest they read what is so.
    lied = any(
        faults.on(agent.node, place, time, "stuck counters") and row[_UTILIZATION] > 0
        for time, row in zip(times, rows, strict=True)
    )
    return GpuMinute(
        does=does,
        tells=does if told >= _ENOUGH_SAMPLES and not lied else "unknown",
        job=next((job for job, _ in held if all(map(job.works, times))), None),
    )


def _state(rows: list[tuple[float, ...]]) -> State:
    """Idle, low or active, by the house's definition of idle."""
    if all(row[_SM_ACTIVE] < _IDLE_SM_ACTIVE and row[_UTILIZATION] == 0 for row in rows):
        return "idle"
    mean = sum(row[_SM_ACTIVE] for row in rows) / len(rows)
    return "low" if mean < _LOW_SM_ACTIVE else "active"


def _mean(job: Job, loads: list[Load], ratio: str) -> float:
    """What the mean of a ratio is in the long run, stalls and interludes included."""

    def lasting(load: Load) -> float:
        return float(getattr(load, ratio)) * (1 - load.stalled)

    interlude = job.character.interlude
    share = interlude.share if interlude else 0.0
    meanwhile = lasting(interlude.load) if interlude else 0.0
    of_each = (lasting(load) * (1 - share) + meanwhile * share for load in loads)
    return sum(of_each) / (len(loads) or 1)
