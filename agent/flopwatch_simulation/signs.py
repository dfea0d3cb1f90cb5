"""What an agent sees of jobs beside their GPUs' counters: processes, hooks, cgroups, mishaps.

`skew` is how many seconds the agent's clock is ahead, by which it tells all times.
"""

from collections.abc import Iterable, Iterator, Sequence

from flopwatch.wire import AttributedReport, Device, Event, Evidence, HostUsage, Report
from flopwatch_simulation.hardware import CPUS_PER_NODE, HOST_MEMORY_MIB
from flopwatch_simulation.job import Job
from flopwatch_simulation.physics import INTERVAL_SECONDS

XID_MMU_FAULT = 31
THERMAL_SLOWDOWN = 0x20
"""NVML's bit of the clock event reasons for a slowdown by software because of heat."""

_HEAT_DELAY_SECONDS = 300
_HOST_MIB_PER_GPU = 125_000.0


def evidence(job: Job, node: int, end: int, skew: int) -> Iterator[Evidence]:
    """The prolog's file of a job, and its processes that were seen on GPUs of a node."""
    if job.started_at is None:
        return
    uid = job.person.uid
    first, last = float(job.started_at + skew), float(min(end, job.ended_at) + skew)
    ordinals = list(job.ordinals_on(node))
    yield Evidence("prolog", job.raw_job_id, first, last, ordinals=ordinals, uid=uid)
    seen = float(job.watched_at + skew)
    for rank, ordinal in job.ranks_on(node):
        if job.character.load_of(rank).has_context and seen <= last:
            pid = _pid(job, rank)
            yield Evidence(
                "cgroup", job.raw_job_id, seen, last, device=ordinal, pid=pid, uid=uid
            )  # fmt: skip


def reports(
    seed: int, job: Job, node: int, devices: Sequence[Device], time: int, skew: int
) -> Iterator[AttributedReport]:
    """What the hook of each rank on a node says at `time`: counters since its watch."""
    training = job.character.training
    if training is None or not job.runs(time) or time <= job.watched_at:
        return
    world_size = sum(job.character.load_of(rank).has_context for rank in range(job.gpu_count))
    train_seconds, train_flops = job.train_seconds(time), job.train_flops(time)
    elapsed = float(time - job.watched_at)
    phases, forward_flops = _interludes(job, elapsed - train_seconds)
    for rank, ordinal in job.ranks_on(node):
        if not job.character.load_of(rank).has_context:
            continue
        report = Report(
            boot=f"{seed}-{job.raw_job_id}-{rank}-{job.restarts}",
            sequence=(time - job.watched_at) // INTERVAL_SECONDS,
            rank=rank,
            world_size=world_size,
            device_name=job.gpu.name,
            device_uuid=devices[ordinal].uuid,
            train_flops={training.dtype: train_flops},
            forward_only_flops=forward_flops,
            train_seconds=train_seconds,
            elapsed_seconds=elapsed,
            steps=int(train_seconds / training.step_seconds),
            phase_seconds=phases,
        )
        pid, uid = _pid(job, rank), job.person.uid
        yield AttributedReport(report, pid, uid, job.raw_job_id, float(time + skew))


def events(job: Job, node: int, start: int, end: int, skew: int) -> Iterator[Event]:
    """Rare things that a job met on a node in (start, end]: heat, and a crash."""
    if job.started_at is None:
        return
    ranks = list(job.ranks_on(node))
    for rank, ordinal in ranks:
        if job.character.load_of(rank).throttled:
            hot_at = job.started_at + _HEAT_DELAY_SECONDS
            for at, bits in ((hot_at, THERMAL_SLOWDOWN), (job.ended_at, 0)):
                if start < at <= end:
                    yield Event(ordinal, float(at + skew), "clock_reasons", bits)
    if job.end_state == "FAILED" and start < job.ended_at <= end:
        rank, ordinal = ranks[0]
        detail = f"MMU fault, pid {_pid(job, rank)}"
        yield Event(ordinal, float(job.ended_at + skew), "xid", XID_MMU_FAULT, detail)


def host_usage(jobs: Iterable[Job], node: int, time: int, skew: int) -> Iterator[HostUsage]:
    """CPU and memory over (time - 60 s, time]: of each job that held the whole minute, and all."""
    cpu_seconds, memory = 60.0, 14_000.0
    for job in jobs:
        if job.started_at is None or job.started_at > time - 60 or job.ended_at < time:
            continue
        gpus, character = len(job.ordinals_on(node)), job.character
        cpus = gpus * character.cpus_per_gpu
        used, resident = 60.0 * cpus * character.cpu_share, gpus * character.host_mib_per_gpu
        limit = gpus * _HOST_MIB_PER_GPU
        yield HostUsage(time + skew, job.raw_job_id, used, cpus, resident, limit)
        cpu_seconds += used
        memory += resident
    yield HostUsage(time + skew, None, cpu_seconds, CPUS_PER_NODE, memory, HOST_MEMORY_MIB)


def _interludes(job: Job, seconds: float) -> tuple[dict[str, float], dict[str, float]]:
    """So many seconds of interludes as phases, and as forward FLOPs by dtype."""
    interlude, training = job.character.interlude, job.character.training
    if interlude is None or training is None:
        return {}, {}
    phases = {interlude.phase: seconds}
    if interlude.forward_mfu == 0:
        return phases, {}
    flops = interlude.forward_mfu * job.gpu.peak_flops(training.dtype) * seconds
    return phases, {training.dtype: flops}


def _pid(job: Job, rank: int) -> int:
    return 100_000 + (job.raw_job_id * 37 + rank) % 3_000_000
