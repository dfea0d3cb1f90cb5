"""Every member of the cast shows what its name says, and deserves its class and its advice.

The conditions are those of the house's rules, in the numbers of the reference, applied here to the
samples, the host rows and the scheduler's words, and to nothing that the simulation knows inside.
"""

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby

import pytest

from flopwatch_simulation.cast import CAST
from flopwatch_simulation.cluster import Cluster
from flopwatch_simulation.job import Job
from tests.simulation.readings import NOON, Row, reports_of, rows_of, settled

NODES = 12
DAY_SECONDS = 86_400
PCIE_HEAVY = 1e9
A100_NVLINK_PEAK = 300e9
A100_LIMIT_WATTS = 400
WAITING = {"waiting for resources", "waiting for priority"}


@dataclass(frozen=True)
class Seen:
    """One job as a reader of its batches and feed lines sees it."""

    job: Job
    rows: list[list[Row]]
    cpu_share: float
    mfu: float | None
    line: dict[str, object]

    def mean(self, column: str, rank: int = 0) -> float:
        return statistics.fmean(row[column] for row in self.rows[rank])

    def highest(self, column: str) -> float:
        return max(row[column] for rows in self.rows for row in rows)

    @property
    def elapsed_seconds(self) -> int:
        return self.job.ended_at - (self.job.started_at or 0)

    @property
    def gap_share(self) -> float:
        """Share of time in gaps of 30 s and more in which the first GPU's engine rests."""
        resting = [row["engine_active"] < 0.05 for row in self.rows[0]]
        gaps = [len(list(run)) for rests, run in groupby(resting) if rests]
        return sum(length for length in gaps if length >= 3) / len(resting)

    @property
    def idle_gpus(self) -> int:
        """GPUs that were idle in every sample: SM activity below 1 % and utilization 0."""
        return sum(
            all(row["sm_active"] < 0.01 and not row["gpu_utilization"] > 0 for row in rows)
            for rows in self.rows
        )


@pytest.fixture(scope="module")
def cluster() -> Cluster:
    return Cluster(seed=7, nodes=NODES)


@pytest.fixture(scope="module")
def seen(cluster: Cluster) -> dict[str, Seen]:
    """One settled job of every character that runs."""
    return {key: look(cluster, key) for key in CAST if key not in WAITING}


def look(cluster: Cluster, key: str) -> Seen:
    job, times = settled(cluster, key)
    rows = rows_of(cluster, times[:360], (node for node, _ in job.places))
    minute = times[-1] // 60 * 60
    host = cluster.agent(job.places[0][0]).batch([minute])[0].host
    used = next(row for row in host if row.job_id == job.raw_job_id)
    reports = reports_of(cluster, job, times[-2])
    mfu = job.character.training.mfu if job.character.training and reports else None
    feed = cluster.feed_lines(job.ended_at, job.ended_at)
    return Seen(
        job=job,
        rows=[rows[node, place] for node, places in job.places for place in places],
        cpu_share=(used.cpu_seconds or 0) / (60 * (used.cpu_count or 1)),
        mfu=mfu,
        line=next(line for line in feed if line.get("raw_job_id") == job.raw_job_id),
    )


def kempner_class(one: Seen) -> str:
    """The twelve classes, first match wins; `real` is the preset "ai" of Real Utilization."""
    sm, tensor, dram, fp64 = (
        one.mean(name) for name in ("sm_active", "tensor_active", "dram_active", "fp64_active")
    )
    engine = one.mean("engine_active")
    io_heavy = max(one.mean("pcie_tx"), one.mean("pcie_rx")) >= PCIE_HEAVY
    real = 0.35 * sm + 0.35 * tensor + 0.20 * dram + 0.10 * engine
    classes = (
        ("idle", real < 0.05 and engine < 0.05 and dram < 0.05 and not io_heavy),
        ("tensor-heavy compute", tensor >= 0.50 and sm >= 0.60),
        ("tensor compute", tensor >= 0.15 and sm >= 0.40),
        ("FP64 compute", fp64 >= 0.20 and sm >= 0.50),
        ("I/O or data loading", io_heavy and sm < 0.30),
        ("memory-bound", dram >= 0.50 and sm < 0.50),
        ("compute-heavy", sm >= 0.80),
        ("compute-active", sm >= 0.50),
        ("memory-active", dram >= 0.40),
        ("busy, low SM use", engine >= 0.40 and sm < 0.25),
        ("low utilization", engine < 0.15 and sm < 0.15 and dram < 0.15),
    )
    return next((name for name, holds in classes if holds), "mixed")


ADVICE: dict[str, Callable[[Seen], bool]] = {
    "idle allocation": lambda one: one.idle_gpus == len(one.rows),
    "some GPUs idle": lambda one: 0 < one.idle_gpus < len(one.rows),
    "input starvation": lambda one: (
        0.2 <= one.mean("engine_low_share") <= 0.8
        and one.highest("engine_active") > 0.7
        and one.cpu_share >= 0.90
    ),
    "single precision without tensor cores": lambda one: (
        one.mean("sm_active") >= 0.50
        and one.mean("tensor_active") < 0.02
        and one.mean("fp32_active") >= 0.15
    ),
    "weak tensor use": lambda one: (
        one.mean("sm_active") >= 0.60
        and 0.02 <= one.mean("tensor_active") < 0.15
        and one.mean("dram_active") < 0.50
    ),
    "unexpected double precision": lambda one: (
        one.mean("fp64_active") >= 0.20 and one.mfu is not None
    ),
    "launch-bound": lambda one: (
        one.mean("engine_active") >= 0.80
        and one.mean("sm_active") < 0.40
        and one.mean("dram_active") < 0.40
        and one.mean("pcie_rx") < PCIE_HEAVY
    ),
    "memory-bound": lambda one: (
        one.mean("dram_active") >= 0.50 and one.mean("tensor_active") < 0.15
    ),
    "GPU larger than needed": lambda one: (
        len(one.rows) == 1
        and 0 < one.mean("gpu_utilization") <= 0.20
        and one.highest("memory_used_mib") <= 10_000
    ),
    "slow GPU": lambda one: (
        min(one.mean("sm_clock_mhz", rank) for rank in range(len(one.rows)))
        < 0.90 * statistics.median(one.mean("sm_clock_mhz", rank) for rank in range(len(one.rows)))
    ),
    "communication-bound": lambda one: (
        len(one.rows) >= 2
        and one.mean("tensor_active") < 0.15
        and one.mean("nvlink_tx") >= 0.20 * A100_NVLINK_PEAK
        and one.mean("power_watts") < 0.60 * A100_LIMIT_WATTS
    ),
    "spread over too many nodes": lambda one: len(one.job.places) > -(-len(one.rows) // 8),
    "checkpoint stalls": lambda one: one.gap_share >= 0.05,
    "time limit far above need": lambda one: (
        one.line["state"] == "COMPLETED"
        and one.elapsed_seconds < 0.60 * one.job.character.time_limit_seconds
    ),
    "out of memory": lambda one: one.line["state"] == "OUT_OF_MEMORY",
    "time limit reached": lambda one: one.line["state"] == "TIMEOUT",
    "well used": lambda one: (
        one.mean("sm_active") >= 0.80
        and (one.mean("tensor_active") >= 0.50 or (one.mfu or 0) >= 0.40)
    ),
}  # fmt: skip
"""What must be so for each advice, by rules R01 to R26 of the reference."""

IDLE = {"idle allocation", "some GPUs idle"}
MAY_ALSO_HOLD = {"memory-bound": {"out of memory"}, "out of time": {"weak tensor use"}}
"""What else is true of some, and says nothing against the advice that the ledger names."""


def test_a_cluster_of_twelve_nodes_shows_everybody_within_a_day(cluster: Cluster) -> None:
    keys = {job.key for job in cluster.jobs(NOON, NOON + DAY_SECONDS)}
    assert keys == set(CAST)
    states = {job.end_state for job in cluster.jobs(NOON, NOON + DAY_SECONDS)}
    assert states >= {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "OUT_OF_MEMORY"}


@pytest.mark.parametrize("key", sorted(set(CAST) - WAITING - {"MIG service", "MIG notebook"}))
def test_everybody_is_of_the_class_that_the_ledger_names(seen: dict[str, Seen], key: str) -> None:
    assert kempner_class(seen[key]) == CAST[key].activity


@pytest.mark.parametrize("key", sorted(set(CAST) - WAITING))
def test_everybody_deserves_the_advice_that_the_ledger_names(
    seen: dict[str, Seen], key: str
) -> None:
    deserved = CAST[key].advice
    holding = {name for name, holds in ADVICE.items() if holds(seen[key])}
    if holding & IDLE:  # the rules about idleness silence all others
        holding &= IDLE
    assert holding - MAY_ALSO_HOLD.get(key, set()) - {deserved} == set()
    assert deserved == "none" or deserved in holding


@pytest.mark.parametrize("key", sorted(set(CAST) - WAITING))
def test_no_mfu_is_above_what_the_pipes_could_do(seen: dict[str, Seen], key: str) -> None:
    one = seen[key]
    training = one.job.character.training
    if training is None or one.mfu is None:
        return
    pipe = {"bfloat16": "tensor_active", "float32": "fp32_active", "float64": "fp64_active"}
    steady = [row[pipe[training.dtype]] for row in one.rows[0] if row["engine_active"] > 0.05]
    assert one.mfu <= max(steady) + 0.10


@pytest.mark.parametrize(
    ("key", "column", "low", "high"),
    [
        ("tuned language model", "tensor_active", 0.51, 0.55),
        ("tuned language model", "power_watts", 580, 640),
        ("starved loader", "sm_active", 0.31, 0.35),
        ("starved loader", "engine_low_share", 0.45, 0.55),
        ("single precision", "tensor_active", 0.0, 0.0),
        ("single precision", "fp32_active", 0.40, 0.46),
        ("idle notebook", "sm_active", 0.0, 0.0),
        ("idle notebook", "memory_used_mib", 2000, 3000),
        ("memory-bound", "gpu_utilization", 1.0, 1.0),
        ("memory-bound", "dram_active", 0.75, 0.80),
        ("GPU too big", "gpu_utilization", 0.10, 0.20),
        ("MIG service", "sm_active", 0.40, 0.44),
    ],
)
def test_each_character_is_what_its_name_says(
    seen: dict[str, Seen], key: str, column: str, low: float, high: float
) -> None:
    for rank in range(len(seen[key].rows)):
        assert low <= seen[key].mean(column, rank) <= high


def test_three_of_eight_gpus_of_the_partly_idle_job_do_nothing(seen: dict[str, Seen]) -> None:
    busy = [seen["partly idle"].mean("sm_active", rank) > 0 for rank in range(8)]
    assert busy == [True] * 5 + [False] * 3


def test_one_gpu_of_the_straggler_is_slow_and_hot(seen: dict[str, Seen]) -> None:
    clocks = [seen["straggler"].mean("sm_clock_mhz", rank) for rank in range(4)]
    assert clocks[2] < 0.8 * statistics.median(clocks)
    hot = [seen["straggler"].mean("temperature_c", rank) for rank in range(4)]
    assert hot[2] > 80 > max(hot[:2])


def test_checkpoints_stall_all_gpus_at_once_for_a_tenth_of_the_time(seen: dict[str, Seen]) -> None:
    shares = [seen["checkpoint stalls"].mean("engine_low_share", rank) for rank in range(4)]
    assert len(set(shares)) == 1
    assert shares[0] == pytest.approx(0.1, abs=0.01)


def test_rollouts_alternate_between_reading_memory_and_doing_math(seen: dict[str, Seen]) -> None:
    rows = seen["rollouts"].rows[0]
    decoding = [row for row in rows if row["tensor_active"] < 0.1]
    updating = [row for row in rows if row["tensor_active"] > 0.4]
    assert len(decoding) + len(updating) == len(rows)
    assert len(decoding) / len(rows) == pytest.approx(0.6, abs=0.03)
    assert statistics.fmean(row["dram_active"] for row in decoding) > 0.6


@pytest.mark.parametrize("column", ["sm_active", "tensor_active", "dram_active"])
@pytest.mark.parametrize("key", sorted(set(CAST) - WAITING))
def test_samples_bear_out_the_ledger(
    cluster: Cluster, seen: dict[str, Seen], key: str, column: str
) -> None:
    one = seen[key]
    time = one.job.ended_at - 10
    ledger = next(truth for truth in cluster.truth(time) if truth.job == one.job)
    ranks = range(len(one.rows))
    mean = statistics.fmean(one.mean(column, rank) for rank in ranks)
    assert mean == pytest.approx(getattr(ledger, column), abs=0.01)
    assert ledger.idle_gpus == one.idle_gpus
    assert (ledger.activity, ledger.advice) == (CAST[key].activity, CAST[key].advice)
