"""A cluster that is not there: what its agents and its scheduler would send about any time.

Everything is a pure function of (seed, time): the same interval can be made again and is the same,
sample by sample, so sending it twice counts once. `truth` tells what a reader ought to find.
"""

import uuid
from array import array
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import Any

from flopwatch.metrics import COLUMNS
from flopwatch.wire import (
    AttributedReport,
    Batch,
    Device,
    Epoch,
    Evidence,
    HostUsage,
    Report,
    Samples,
)
from flopwatch_simulation.cast import GPUS_PER_NODE, NODES_PER_BLOCK
from flopwatch_simulation.feed import node_line, node_name, run_line
from flopwatch_simulation.physics import (
    FREE,
    INTERVAL_SECONDS,
    MEMORY_MIB,
    MODEL,
    POWER_LIMIT_WATTS,
    Load,
    noise,
    sample_row,
)
from flopwatch_simulation.schedule import Job, seats
from flopwatch_simulation.truth import Truth, true_of

AGENT_VERSION = "simulation"
CPUS_PER_NODE = 96
HOST_MEMORY_MIB = 1_031_000.0
_EPOCH_STARTED_AT = 1_767_225_600.0
_TIME_STEP = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


class Cluster:
    """`nodes` nodes of 8 GPUs each, and the jobs on them."""

    def __init__(self, seed: int = 1, nodes: int = NODES_PER_BLOCK) -> None:
        self.seed = seed
        self.nodes = nodes
        self._seats = seats(seed, nodes)
        self._seats_by_node: dict[int, list[int]] = {node: [] for node in range(nodes)}
        for index, seat in enumerate(self._seats):
            for node, _ in seat.places:
                self._seats_by_node[node].append(index)

    def jobs(self, start: float, end: float) -> list[Job]:
        """All jobs that the queue shows, or that end, at some time of [start, end]."""
        return [job for seat in self._seats for job in seat.jobs(start, end)]

    def truth(self, time: float) -> list[Truth]:
        """The ledger: every pending and running job as it really is at this time."""
        listed = ((job, job.state(time)) for job in self.jobs(time, time))
        return [true_of(job, state) for job, state in listed if state in ("PENDING", "RUNNING")]

    def batch(
        self, node: int, times: Sequence[int], report_period: int
    ) -> "tuple[Batch, array[float]]":
        """What the agent of a node sends about the intervals that end at `times`, in order.

        Hook reports are those of every `report_period` seconds, as of an agent that was cut off.
        """
        jobs = self._jobs_of_node(node, times[0] - INTERVAL_SECONDS, times[-1])
        batch = Batch(
            node=node_name(node),
            epoch=Epoch(self._boot_id(node), 1, _EPOCH_STARTED_AT, AGENT_VERSION),
            devices=[self.device(node, ordinal) for ordinal in range(GPUS_PER_NODE)],
            samples=Samples(
                columns=list(COLUMNS),
                device=[ordinal for ordinal in range(GPUS_PER_NODE) for _ in times],
                time=list(times) * GPUS_PER_NODE,
            ),
            evidence=[sign for job in jobs for sign in self._evidence(job, node, times)],
            reports=[
                report
                for time in times
                if time % report_period == 0
                for job in jobs
                for report in self._reports(job, node, time)
            ],
            host=[row for time in times if time % 60 == 0 for row in _host_usage(jobs, node, time)],
        )
        return batch, self._values(node, jobs, times)

    def device(self, node: int, ordinal: int) -> Device:
        """One GPU: its identity depends on the seed and its place alone."""
        identity = uuid.UUID(int=self._key("gpu", node, ordinal, size=16), version=4)
        return Device(
            uuid=f"GPU-{identity}",
            model=MODEL,
            memory_mib=MEMORY_MIB,
            minor=ordinal,
            pci_bus_id=f"00000000:{0x19 + 0x11 * ordinal:02X}:00.0",
            power_limit_watts=POWER_LIMIT_WATTS,
        )

    def feed_lines(self, time: float, ended_since: float) -> Iterator[dict[str, Any]]:
        """The scheduler's word at `time`: a complete snapshot, and the runs ended since then."""
        yield {"kind": "snapshot", "time": time, "complete": True}
        jobs = self.jobs(ended_since, time)
        yield from (run_line(job, time) for job in jobs)
        used = {node: 0 for node in range(self.nodes)}
        for job in jobs:
            for node, ordinals in job.places if job.runs(time) else ():
                used[node] += len(ordinals)
        yield from (node_line(node, count) for node, count in used.items())

    def _jobs_of_node(self, node: int, start: float, end: float) -> list[Job]:
        return [
            job
            for index in self._seats_by_node[node]
            for job in self._seats[index].jobs(start, end)
            if job.started_at is not None and job.started_at < end
        ]

    def _values(self, node: int, jobs: Sequence[Job], times: Sequence[int]) -> "array[float]":
        values = array("f")
        for ordinal in range(GPUS_PER_NODE):
            key = self._key("noise", node, ordinal)
            held = [(job, load) for job in jobs if (load := _load_on(job, node, ordinal))]
            for time in times:
                bits = noise(key ^ (time * _TIME_STEP & _MASK))
                for job, load in held:
                    if job.works(time):
                        values.extend(sample_row(load, bits, job.wave(time), job.paused(time)))
                        break
                else:
                    values.extend(sample_row(FREE, bits, 0.0, False))
        return values

    def _evidence(self, job: Job, node: int, times: Sequence[int]) -> Iterator[Evidence]:
        """The prolog's file of the job, and the processes that the agent saw on its GPUs."""
        if job.started_at is None:
            return
        first, last = float(job.started_at), float(min(times[-1], job.ended_at))
        ordinals = _ordinals_on(job, node)
        yield Evidence("prolog", job.raw_job_id, first, last, ordinals=list(ordinals), uid=job.uid)
        seen = float(job.watched_at)
        for rank, ordinal in _ranks_on(job, node):
            if job.character.load_of(rank).has_context and seen <= last:
                yield Evidence(
                    "cgroup", job.raw_job_id, seen, last,
                    device=ordinal, pid=_pid(job, rank), uid=job.uid,
                )  # fmt: skip

    def _reports(self, job: Job, node: int, time: int) -> Iterator[AttributedReport]:
        """What each rank's hook says at `time`: counters since its watch."""
        training = job.character.training
        if training is None or not job.runs(time) or time <= job.watched_at:
            return
        ranks = [
            rank for rank in range(job.character.gpu_count)
            if job.character.load_of(rank).has_context
        ]  # fmt: skip
        train_seconds = sum(end - start for start, end in job.training_spans(time))
        elapsed = float(time - job.watched_at)
        pause = job.character.pause
        for rank, ordinal in _ranks_on(job, node):
            if rank not in ranks:
                continue
            report = Report(
                boot=f"{self._key('boot', job.raw_job_id, rank):016x}",
                sequence=(time - job.watched_at) // INTERVAL_SECONDS,
                rank=rank,
                world_size=len(ranks),
                device_name=MODEL,
                device_uuid=self.device(node, ordinal).uuid,
                train_flops={training.dtype: job.train_flops(time)},
                forward_only_flops={},
                train_seconds=train_seconds,
                elapsed_seconds=elapsed,
                steps=int(train_seconds / training.step_seconds),
                phase_seconds={pause.phase: elapsed - train_seconds} if pause else {},
            )
            yield AttributedReport(report, _pid(job, rank), job.uid, job.raw_job_id, float(time))

    def _boot_id(self, node: int) -> str:
        """The same life of the agent whenever the simulation runs: equal keys, equal samples."""
        return str(uuid.UUID(int=self._key("agent", node, size=16), version=4))

    def _key(self, *parts: object, size: int = 8) -> int:
        text = "/".join(str(part) for part in (self.seed, *parts))
        return int.from_bytes(blake2b(text.encode(), digest_size=size).digest(), "big")


def _ranks_on(job: Job, node: int) -> Iterator[tuple[int, int]]:
    """(rank, GRES ordinal) of a job's GPUs on one node."""
    rank = 0
    for place, ordinals in job.places:
        for ordinal in ordinals:
            if place == node:
                yield rank, ordinal
            rank += 1


def _ordinals_on(job: Job, node: int) -> tuple[int, ...]:
    return next((ordinals for place, ordinals in job.places if place == node), ())


def _load_on(job: Job, node: int, ordinal: int) -> Load | None:
    for rank, place in _ranks_on(job, node):
        if place == ordinal:
            return job.character.load_of(rank)
    return None


def _pid(job: Job, rank: int) -> int:
    return 100_000 + (job.raw_job_id * 37 + rank) % 3_000_000


def _host_usage(jobs: Sequence[Job], node: int, time: int) -> Iterator[HostUsage]:
    """CPU and memory over (time - 60 s, time]: of each job that held the whole minute, and all."""
    cpu_seconds, memory = 60.0, 14_000.0
    for job in jobs:
        if job.started_at is None or job.started_at > time - 60 or job.ended_at < time:
            continue
        gpus, character = len(_ordinals_on(job, node)), job.character
        cpus = gpus * character.cpus_per_gpu
        used, resident = 60.0 * cpus * character.cpu_share, gpus * character.host_memory_mib_per_gpu
        yield HostUsage(time, job.raw_job_id, used, cpus, resident, gpus * 125_000.0)
        cpu_seconds += used
        memory += resident
    yield HostUsage(time, None, cpu_seconds, CPUS_PER_NODE, memory, HOST_MEMORY_MIB)
