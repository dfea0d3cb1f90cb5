"""The agent of one node: the batches that it would send about any time.

Everything is a pure function of (seed, time): the same interval can be made again and is the same,
sample by sample, so sending it twice counts once.
"""

import uuid
from array import array
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from itertools import groupby
from math import nan

from flopwatch.metrics import COLUMNS, METRICS
from flopwatch.wire import AttributedReport, Batch, Device, Epoch, Event, Missing, Samples, Source
from flopwatch_simulation import signs
from flopwatch_simulation.faults import Faults
from flopwatch_simulation.hardware import GPUS_PER_NODE, kind_of, node_name
from flopwatch_simulation.job import Job
from flopwatch_simulation.physics import FREE, INTERVAL_SECONDS, noise, sample_row
from flopwatch_simulation.schedule import Seat

Held = tuple[Job, int]
"""A job, and its rank on a GPU."""

AGENT_VERSION = "simulation"
XID_FELL_OFF_THE_BUS = 79

DCGM_BLANK = 140_737_488_355_328.0
NOT_OF_INSTANCES = (
    "gpu_utilization", "power_watts", "energy_joules", "pcie_tx", "pcie_rx", "nvlink_tx",
    "nvlink_rx",
)  # fmt: skip
"""What the driver tells of whole GPUs only."""

_EPOCH_STARTED_AT = 1_767_225_600.0
_TIME_STEP = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1
_COLUMNS = list(COLUMNS)
_ACTIVITY = [
    number
    for number, metric in enumerate(METRICS)
    if metric.name.endswith(("_active", "_occupancy", "_min", "_max"))
]
_BLANKS = [_COLUMNS.index(name) for name in NOT_OF_INSTANCES]
_UTILIZATION = _COLUMNS.index("gpu_utilization")
_STALLED = _COLUMNS.index("engine_low_share")
_CLOCK = _COLUMNS.index("sm_clock_mhz")
_TEMPERATURE = _COLUMNS.index("temperature_c")
_SHARED_CELSIUS = 47.0


class Agent:
    """What the agent of one node knows: its devices, and whose jobs are on them."""

    def __init__(self, seed: int, node: int, seats: Sequence[Seat], faults: Faults) -> None:
        self.node = node
        self.kind = kind_of(node)
        self.devices = list(_devices(seed, node))
        self._seats = seats
        self._faults = faults
        self._boot_id = str(uuid.UUID(int=_key(seed, "agent", node, size=16), version=4))
        self._seed = seed
        self._noise = [_key(seed, "noise", node, place) for place in range(self.kind.places)]

    def stretches(self, times: Iterable[int]) -> Iterator[list[int]]:
        """The intervals that the agent has samples of, in one list for each of its lives, and for
        each error of its clock."""

        def key(time: int) -> tuple[int, int] | None:
            if self._faults.silent(self.node, time):
                return None
            lives = 1 + len(self._faults.rebirths(self.node, time))
            return lives, self._faults.skew_seconds(self.node, time)

        for found, stretch in groupby(times, key):
            if found is not None:
                yield list(stretch)

    def jobs(self, start: float, end: float) -> list[Job]:
        """The jobs that hold something of this node at some time of [start, end]."""
        return [
            run
            for seat in self._seats
            for job in seat.jobs(start, end)
            for run in self._faults.runs_of(job)
            if run.started_at is not None and run.started_at < end and run.ended_at >= start
        ]

    def batch(
        self, times: Sequence[int], *, introduces: bool = False
    ) -> "tuple[Batch, array[float]]":
        """What it sends about the intervals that end at `times`: one of its `stretches`.

        An agent introduces its sources once in its life. Of more than a minute it sends the hook
        reports of whole minutes only: counters are cumulative. All times are by its own clock.
        """
        start, end = times[0] - INTERVAL_SECONDS, times[-1]
        jobs = self.jobs(start, end)
        skew = self._faults.skew_seconds(self.node, end)
        values = array("f")
        told = [self._tell(values, held, place, times) for place, held in self.holders(jobs)]
        batch = Batch(
            node=node_name(self.node),
            epoch=self._epoch(end, skew),
            devices=self.devices,
            samples=Samples(
                columns=_COLUMNS,
                device=[place for place, known in enumerate(told) for _ in known],
                time=[time + skew for known in told for time in known],
            ),
            evidence=[s for job in jobs for s in signs.evidence(job, self.node, end, skew)],
            reports=list(self._reports(jobs, times, skew)),
            host=[
                row
                for time in times
                if time % 60 == 0
                for row in signs.host_usage(jobs, self.node, time, skew)
            ],
            events=list(self._events(jobs, start, end, skew)),
        )
        if introduces:
            batch.sources = list(self._sources())
            batch.missing = list(self._missing())
        return batch, values

    def holders(self, jobs: Iterable[Job]) -> Iterator[tuple[int, list[Held]]]:
        """Every place of the node, and which of these jobs hold it as which rank."""
        held: list[list[Held]] = [[] for _ in range(self.kind.places)]
        for job in jobs:
            for rank, place in job.ranks_on(self.node):
                held[place].append((job, rank))
        return enumerate(held)

    def true_row(self, held: Iterable[Held], place: int, time: int) -> tuple[float, ...]:
        """What a sample of a whole GPU would hold if nothing went wrong."""
        load, wave = FREE, 0.0
        for job, rank in held:
            if job.works(time):
                load, wave = job.load(rank, time), job.wave(time)
        bits = noise(self._noise[place] ^ (time * _TIME_STEP & _MASK))
        return sample_row(self.kind.gpu, load, bits, wave)

    def _epoch(self, time: int, skew: int) -> Epoch:
        """The agent's life over (time - 10 s, time]."""
        begins = self._faults.rebirths(self.node, time)
        began = begins[-1] + skew if begins else _EPOCH_STARTED_AT
        return Epoch(self._boot_id, 1 + len(begins), float(began), AGENT_VERSION)

    def _tell(
        self, values: "array[float]", held: Sequence[Held], place: int, times: Sequence[int]
    ) -> Sequence[int]:
        """Append the rows of one device, and return the times it has rows of."""
        if self.kind.split is None and not self._faults.all:
            for time in times:
                values.extend(self.true_row(held, place, time))
            return times
        told = [t for t in times if not self._faults.on(self.node, place, t, "gpu lost")]
        for time in told:
            row = list(self.true_row(held, place, time))
            self._spoil(row, place, time)
            if self.kind.split:
                self._cut(row)
            values.extend(row)
        return told

    def _cut(self, row: list[float]) -> None:
        """Make a whole row that of an instance, which shares its clock and heat."""
        row[_CLOCK], row[_TEMPERATURE] = self.kind.gpu.boost_mhz, _SHARED_CELSIUS
        for column in _BLANKS:
            row[column] = nan

    def _spoil(self, row: list[float], place: int, time: int) -> None:
        """Let counters of a working GPU read what its faults make of them."""
        if self._faults.on(self.node, place, time, "stuck counters") and row[_UTILIZATION] > 0:
            row[_UTILIZATION] = 1.0
            row[_STALLED] = 1.0
            for column in _ACTIVITY:
                row[column] = 0.0
        if self._faults.on(self.node, place, time, "sentinels"):
            for column in _ACTIVITY:
                row[column] = DCGM_BLANK

    def _reports(
        self, jobs: Sequence[Job], times: Sequence[int], skew: int
    ) -> Iterator[AttributedReport]:
        period = INTERVAL_SECONDS if len(times) * INTERVAL_SECONDS <= 60 else 60
        for time in times:
            if time % period == 0:
                for job in jobs:
                    yield from signs.reports(self._seed, job, self.node, self.devices, time, skew)

    def _events(self, jobs: Iterable[Job], start: int, end: int, skew: int) -> Iterator[Event]:
        for job in jobs:
            yield from signs.events(job, self.node, start, end, skew)
        for fault in self._faults.began(self.node, start, end):
            if fault.kind == "gpu lost":
                at = float(fault.start + skew)
                yield Event(fault.place, at, "xid", XID_FELL_OFF_THE_BUS, "fell off the bus")

    def _sources(self) -> Iterator[Source]:
        """GPM where the GPU has it, else DCGM's own tool."""
        name = self.kind.gpu.source
        passed_over = {} if name == "gpm" else {"gpm": "unsupported"}
        for place in range(self.kind.places):
            yield Source(place, name, 1.0, _EPOCH_STARTED_AT, passed_over)

    def _missing(self) -> Iterator[Missing]:
        for place in range(self.kind.places if self.kind.split else 0):
            for metric in NOT_OF_INSTANCES:
                yield Missing(place, metric, "unsupported", _EPOCH_STARTED_AT)


def _devices(seed: int, node: int) -> Iterator[Device]:
    """The devices of a node: their identity depends on the seed and the place alone."""
    kind = kind_of(node)
    for minor in range(GPUS_PER_NODE):
        identity = uuid.UUID(int=_key(seed, "gpu", node, minor, size=16), version=4)
        for instance in kind.split.gpu_instances if kind.split else (None,):
            yield Device(
                uuid=f"GPU-{identity}",
                model=kind.gpu.name,
                memory_mib=kind.memory_mib,
                minor=minor,
                pci_bus_id=f"00000000:{0x19 + 0x11 * minor:02X}:00.0",
                instance="" if instance is None else f"{instance}/0",
                profile=kind.split.profile if kind.split else "",
                power_limit_watts=None if kind.split else kind.gpu.power_limit_watts,
            )


def _key(*parts: object, size: int = 8) -> int:
    text = "/".join(str(part) for part in parts)
    return int.from_bytes(blake2b(text.encode(), digest_size=size).digest(), "big")
