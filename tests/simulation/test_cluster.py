"""The simulated cluster: the same again every time, and possible in physics."""

import statistics
from collections import defaultdict
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import pytest

from flopwatch.metrics import BY_NAME, COLUMNS
from flopwatch.wire import MAX_BODY_BYTES, Batch, encode_batch
from flopwatch_simulation.cluster import Cluster
from flopwatch_simulation.schedule import Job

# A Thursday; nothing depends on it.
NOON = 1_773_316_800
HOUR = range(NOON - 3590, NOON + 1, 10)
H100_POWER_LIMIT_WATTS = 700
H100_MEMORY_MIB = 81559
BF16_PEAK = 989.5e12
Row = dict[str, float]


def rows_of(
    cluster: Cluster, times: range, nodes: Iterable[int]
) -> dict[tuple[int, int], list[Row]]:
    """All samples of these nodes by (node, ordinal), in order of time."""
    found: dict[tuple[int, int], list[Row]] = defaultdict(list)
    for node in nodes:
        batch, values = cluster.batch(node, times, 60)
        width = len(COLUMNS)
        for index, (device, time) in enumerate(
            zip(batch.samples.device, batch.samples.time, strict=True)
        ):
            cells = values[index * width : (index + 1) * width]
            found[node, device].append({"time": time, **dict(zip(COLUMNS, cells, strict=True))})
    return found


@pytest.fixture(scope="module")
def cluster() -> Cluster:
    return Cluster(seed=7)


@pytest.fixture(scope="module")
def rows(cluster: Cluster) -> dict[tuple[int, int], list[Row]]:
    return rows_of(cluster, HOUR, range(6))


def settled(cluster: Cluster, character: str) -> tuple[Job, range]:
    """A job of this character, and intervals that it held from end to end, after its start."""
    times = (NOON + minutes * 60 for minutes in range(0, 24 * 60, 5))
    for time in times:
        for truth in cluster.truth(time):
            job = truth.job
            if job.character.key == character and job.started_at is not None:
                first = (job.started_at // 10 + 2) * 10
                return job, range(first, job.ended_at // 10 * 10 + 1, 10)
    raise AssertionError(f"no {character} in a day")


def means(cluster: Cluster, job: Job, times: range, column: str) -> list[float]:
    """The mean of a column for each GPU of a job, in the order of ranks."""
    rows = rows_of(cluster, times, (node for node, _ in job.places))
    return [
        statistics.fmean(row[column] for row in rows[node, ordinal])
        for node, ordinals in job.places
        for ordinal in ordinals
    ]


def encoded(cluster: Cluster, node: int, times: range) -> bytes:
    return encode_batch(*cluster.batch(node, times, 10))


def test_the_same_seed_makes_the_same_bytes_again() -> None:
    first, second = Cluster(seed=7), Cluster(seed=7)
    assert encoded(first, 2, HOUR) == encoded(second, 2, HOUR)
    assert list(first.feed_lines(NOON, NOON - 3600)) == list(second.feed_lines(NOON, NOON - 3600))


def test_another_seed_is_another_cluster() -> None:
    assert encoded(Cluster(seed=7), 2, HOUR) != encoded(Cluster(seed=8), 2, HOUR)
    assert Cluster(seed=7).device(0, 0).uuid != Cluster(seed=8).device(0, 0).uuid


def test_a_window_made_alone_is_the_same_as_within_a_longer_one(cluster: Cluster) -> None:
    long = rows_of(cluster, HOUR, [5])[5, 0]
    short = rows_of(cluster, range(NOON - 590, NOON + 1, 10), [5])[5, 0]
    assert short == long[-60:]


def test_a_larger_cluster_has_the_smaller_one_in_it() -> None:
    small, large = Cluster(seed=7, nodes=6), Cluster(seed=7, nodes=14)
    assert encoded(small, 3, HOUR) == encoded(large, 3, HOUR)
    few = {job.raw_job_id for job in small.jobs(NOON, NOON)}
    many = [job.raw_job_id for job in large.jobs(NOON, NOON)]
    assert few < set(many)
    assert len(many) == len(set(many))


def test_devices_are_all_different() -> None:
    cluster = Cluster(seed=7, nodes=60)
    devices = [cluster.device(node, ordinal).uuid for node in range(60) for ordinal in range(8)]
    assert len(set(devices)) == 480


def test_people_have_different_uids(cluster: Cluster) -> None:
    uids = {(job.user, job.uid) for job in cluster.jobs(NOON, NOON + 30 * 86400)}
    assert len(uids) == len({user for user, _ in uids}) == len({uid for _, uid in uids})


def test_no_gpu_is_ever_held_by_two_jobs(cluster: Cluster) -> None:
    held: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for job in cluster.jobs(NOON, NOON + 86400):
        for node, ordinals in job.places if job.started_at else ():
            for ordinal in ordinals:
                held[node, ordinal].append((job.started_at or 0, job.ended_at))
    assert len(held) == 42
    for spans in held.values():
        spans.sort()
        assert all(end < start for (_, end), (start, _) in pairwise(spans))


@pytest.mark.parametrize("seed", range(5))
def test_a_visitor_finds_the_cast_at_any_time_of_day(seed: int) -> None:
    cluster = Cluster(seed)
    for time in range(NOON, NOON + 86400, 1700):
        ledger = cluster.truth(time)
        running = [truth for truth in ledger if truth.state == "RUNNING"]
        pending = [truth for truth in ledger if truth.state == "PENDING"]
        assert len(running) >= 6
        assert 1 <= len(pending) <= 6
        assert 48 - sum(truth.gpus for truth in running) >= 6
        ages = [time - truth.job.started_at for truth in running if truth.job.started_at]
        assert max(ages) < 7200
    kinds = {truth.job.character.key for truth in cluster.truth(NOON)}
    assert len(kinds) >= 8


def test_every_value_is_plausible(rows: dict[tuple[int, int], list[Row]]) -> None:
    assert len(rows) == 48
    for samples in rows.values():
        assert [row["time"] for row in samples] == list(HOUR)
        for row in samples:
            for name in COLUMNS:
                assert BY_NAME[name].minimum <= row[name] <= BY_NAME[name].maximum, name


def test_columns_of_one_sample_fit_each_other(rows: dict[tuple[int, int], list[Row]]) -> None:
    for row in (row for samples in rows.values() for row in samples):
        assert row["energy_joules"] == pytest.approx(10 * row["power_watts"], rel=1e-5)
        assert row["sm_min"] <= row["sm_active"] <= row["sm_max"]
        assert row["sm_active"] <= row["engine_active"]
        assert row["tensor_active"] <= row["sm_active"]
        assert row["sm_occupancy"] <= row["sm_active"]
        assert row["gpu_utilization"] == pytest.approx(row["engine_active"], abs=0.03)
        assert row["memory_used_mib"] <= H100_MEMORY_MIB
        assert row["power_watts"] <= H100_POWER_LIMIT_WATTS
        assert (row["subsample_count"], row["source_period"]) == (10, 1)
        stalls = 10 * row["engine_low_share"]
        assert stalls == pytest.approx(round(stalls), abs=1e-5)
        if row["sm_active"] > 0:
            # The mean of ten sub-samples, `stalls` of them 0, can't be above the highest of them.
            assert row["sm_active"] <= row["sm_max"] * (10 - stalls) / 10 + 1e-6
        else:
            assert row["sm_max"] == 0


def test_a_gpu_at_rest_draws_little_and_a_busy_one_much(
    rows: dict[tuple[int, int], list[Row]],
) -> None:
    samples = [row for device in rows.values() for row in device]
    resting = [row["power_watts"] for row in samples if row["memory_used_mib"] == 0]
    tensor = [
        row["power_watts"]
        for row in samples
        if row["throttled_share"] == 0 and row["tensor_active"] > 0.4
    ]
    assert 65 < min(resting) <= max(resting) < 75
    assert min(tensor) > 450


def test_a_free_gpu_shows_no_activity_at_all(rows: dict[tuple[int, int], list[Row]]) -> None:
    active = [name for name in COLUMNS if name.endswith("_active")]
    for row in rows[5, 7]:
        assert [row[name] for name in active] == [0.0] * len(active)
        assert row["gpu_utilization"] == row["memory_used_mib"] == row["nvlink_tx"] == 0


@pytest.mark.parametrize(
    ("character", "column", "low", "high"),
    [
        ("tuned language model", "tensor_active", 0.45, 0.55),
        ("starved loader", "sm_active", 0.31, 0.35),
        ("starved loader", "engine_low_share", 0.40, 0.60),
        ("single precision", "tensor_active", 0.0, 0.0),
        ("single precision", "fp32_active", 0.40, 0.46),
        ("idle notebook", "sm_active", 0.0, 0.0),
        ("idle notebook", "memory_used_mib", 2000, 3000),
        ("memory-bound", "gpu_utilization", 1.0, 1.0),
        ("memory-bound", "tensor_active", 0.02, 0.03),
        ("memory-bound", "dram_active", 0.75, 0.80),
    ],
)
def test_each_character_is_what_its_name_says(
    cluster: Cluster, character: str, column: str, low: float, high: float
) -> None:
    job, times = settled(cluster, character)
    for mean in means(cluster, job, times, column):
        assert low <= mean <= high


def test_three_of_eight_gpus_of_the_partly_idle_job_do_nothing(cluster: Cluster) -> None:
    job, times = settled(cluster, "partly idle")
    assert [mean == 0 for mean in means(cluster, job, times, "sm_active")] == [False] * 5 + [
        True
    ] * 3


def test_one_gpu_of_the_straggler_is_slow_and_hot(cluster: Cluster) -> None:
    job, times = settled(cluster, "straggler")
    clocks = means(cluster, job, times, "sm_clock_mhz")
    assert clocks[2] < 0.8 * statistics.median(clocks)
    hot = means(cluster, job, times, "temperature_c")
    assert hot[2] > 80 > max(hot[:2])


def test_checkpoints_stall_all_gpus_at_once_for_a_tenth_of_the_time(cluster: Cluster) -> None:
    job, times = settled(cluster, "checkpoint stalls")
    shares = means(cluster, job, times, "engine_low_share")
    assert len(set(shares)) == 1
    assert shares[0] == pytest.approx(0.1, abs=0.01)


@pytest.mark.parametrize("column", ["sm_active", "tensor_active", "dram_active"])
def test_samples_bear_out_the_ledger(cluster: Cluster, column: str) -> None:
    for truth in cluster.truth(NOON):
        if truth.state != "RUNNING":
            continue
        job, times = settled(cluster, truth.job.character.key)
        mean = statistics.fmean(means(cluster, job, times, column))
        assert mean == pytest.approx(getattr(truth, column), abs=0.01), job.character.key


def reports_of(cluster: Cluster, job: Job, time: int) -> list[Any]:
    return [
        entry
        for node, _ in job.places
        for entry in cluster.batch(node, [time], 10)[0].reports
        if entry.job_id == job.raw_job_id
    ]


@pytest.mark.parametrize(
    ("character", "ranks", "mfu", "dtype", "peak"),
    [
        ("tuned language model", 16, 0.41, "bfloat16", BF16_PEAK),
        ("starved loader", 4, 0.072, "bfloat16", BF16_PEAK),
        ("partly idle", 5, 0.33, "bfloat16", BF16_PEAK),
        ("checkpoint stalls", 4, 0.32, "bfloat16", BF16_PEAK),
        ("single precision", 2, 0.31, "float32", 67e12),
    ],
)
def test_reports_add_up_to_the_mfu_of_the_ledger(
    cluster: Cluster, character: str, ranks: int, mfu: float, dtype: str, peak: float
) -> None:
    job, times = settled(cluster, character)
    last = reports_of(cluster, job, times[-2])
    assert sorted(entry.report.rank for entry in last) == list(range(ranks))
    assert {entry.report.world_size for entry in last} == {ranks}
    flops = sum(entry.report.train_flops[dtype] for entry in last)
    seconds = sum(entry.report.train_seconds for entry in last)
    assert flops / seconds / peak == pytest.approx(mfu, rel=0.01)


def test_a_rank_reports_the_device_that_its_job_holds(cluster: Cluster) -> None:
    job, times = settled(cluster, "tuned language model")
    held = [
        cluster.device(node, ordinal).uuid for node, ordinals in job.places for ordinal in ordinals
    ]
    reported = reports_of(cluster, job, times[-2])
    assert [entry.report.device_uuid for entry in reported] == held
    assert [entry.report.rank for entry in reported] == list(range(16))


def test_counters_of_reports_only_grow_and_stand_still_while_a_checkpoint_is_saved(
    cluster: Cluster,
) -> None:
    job, times = settled(cluster, "checkpoint stalls")
    reports = [
        found[0].report for time in times[5:130] if (found := reports_of(cluster, job, time))
    ]
    steps = list(pairwise(reports))
    grown = [b.train_flops["bfloat16"] - a.train_flops["bfloat16"] for a, b in steps]
    assert min(grown) == 0
    assert sum(step == 0 for step in grown) >= 10
    for before, after in steps:
        assert after.sequence == before.sequence + 1
        assert after.train_seconds - before.train_seconds <= 10
        assert after.steps >= before.steps
        total = after.train_seconds + after.phase_seconds["checkpoint"]
        assert total == pytest.approx(after.elapsed_seconds)


def test_the_feed_tells_what_the_ledger_knows(cluster: Cluster) -> None:
    lines = list(cluster.feed_lines(NOON, NOON - 7200))
    assert lines[0] == {"kind": "snapshot", "time": NOON, "complete": True}
    open_runs = {
        line["raw_job_id"]: line["state"]
        for line in lines
        if line.get("state") in ("RUNNING", "PENDING") and line["kind"] == "run"
    }
    assert open_runs == {truth.job.raw_job_id: truth.state for truth in cluster.truth(NOON)}
    nodes = [line for line in lines if line["kind"] == "node"]
    assert [node["name"] for node in nodes] == [f"gpu00{number}" for number in range(1, 7)]
    ended = [line for line in lines if line["kind"] == "run" and "ended_at" in line]
    assert len(ended) >= 10
    assert all(NOON - 7200 <= line["ended_at"] <= NOON for line in ended)


def test_half_an_hour_of_a_node_is_well_under_the_largest_body(cluster: Cluster) -> None:
    assert len(encoded(cluster, 0, range(NOON - 1790, NOON + 1, 10))) < MAX_BODY_BYTES / 5


def test_a_process_that_computes_is_evidence_for_its_device(cluster: Cluster) -> None:
    job, times = settled(cluster, "partly idle")
    batch: Batch = cluster.batch(3, times[-9:], 10)[0]
    seen = [sign for sign in batch.evidence if sign.job_id == job.raw_job_id]
    assert [sign.ordinals for sign in seen if sign.kind == "prolog"] == [list(range(8))]
    assert [sign.device for sign in seen if sign.kind == "cgroup"] == [0, 1, 2, 3, 4]
