"""The simulated cluster: the same again every time, and possible in physics."""

import json
import math
import statistics
from itertools import pairwise
from typing import get_args

import pytest

from flopwatch.metrics import BY_NAME, COLUMNS, Reason
from flopwatch.wire import MAX_BODY_BYTES, Batch
from flopwatch_simulation.cluster import Cluster
from tests.simulation.readings import HOUR, NOON, Row, encoded, reports_of, rows_of, settled

NODES = 12
MIG_NODE = 8
A100_NODE = 7
POWER_LIMIT_WATTS = {0: 700, 6: 700, 7: 400, 9: 350}
MEMORY_MIB = {0: 81_559, 6: 143_771, 7: 81_920, 8: 40_448, 9: 46_068}
"""By node of each model: H100, H200, A100, an H100 split in halves, L40S."""

WHOLE_ONLY = [
    "gpu_utilization", "power_watts", "energy_joules", "pcie_tx", "pcie_rx", "nvlink_tx",
    "nvlink_rx",
]  # fmt: skip
Rows = dict[tuple[int, int], list[Row]]


@pytest.fixture(scope="module")
def cluster() -> Cluster:
    return Cluster(seed=7, nodes=NODES)


@pytest.fixture(scope="module")
def rows(cluster: Cluster) -> Rows:
    return rows_of(cluster, HOUR, range(NODES))


@pytest.fixture(scope="module")
def whole(rows: Rows) -> Rows:
    """Those of whole GPUs."""
    return {key: samples for key, samples in rows.items() if key[0] != MIG_NODE}


def test_the_same_seed_makes_the_same_bytes_again() -> None:
    first, second = Cluster(seed=7), Cluster(seed=7)
    assert encoded(first, 2, HOUR) == encoded(second, 2, HOUR)
    assert list(first.feed_lines(NOON, NOON - 3600)) == list(second.feed_lines(NOON, NOON - 3600))


def test_another_seed_is_another_cluster() -> None:
    assert encoded(Cluster(seed=7), 2, HOUR) != encoded(Cluster(seed=8), 2, HOUR)
    devices = [Cluster(seed).agent(0).devices[0].uuid for seed in (7, 8)]
    assert devices[0] != devices[1]


def test_a_window_made_alone_is_the_same_as_within_a_longer_one(cluster: Cluster) -> None:
    long = rows_of(cluster, HOUR, [5])[5, 0]
    short = rows_of(cluster, range(NOON - 590, NOON + 1, 10), [5])[5, 0]
    assert short == long[-60:]


def test_a_larger_cluster_has_the_smaller_one_in_it() -> None:
    small, large = Cluster(seed=7, nodes=6), Cluster(seed=7, nodes=26)
    assert encoded(small, 3, HOUR) == encoded(large, 3, HOUR)
    few = {job.raw_job_id for job in small.jobs(NOON, NOON)}
    many = [job.raw_job_id for job in large.jobs(NOON, NOON)]
    assert few < set(many)
    assert len(many) == len(set(many))


def test_a_short_look_at_the_queue_finds_what_a_long_one_does() -> None:
    cluster = Cluster(seed=7, nodes=24)
    days = cluster.jobs(NOON - 86_400, NOON + 86_400)
    for start in range(NOON - 7200, NOON + 7200, 450):
        expected = [job for job in days if job.listed_at <= start + 60 and job.ended_at >= start]
        assert cluster.jobs(start, start + 60) == expected


def test_devices_are_all_different() -> None:
    cluster = Cluster(seed=7, nodes=60)
    devices = [device for node in range(60) for device in cluster.agent(node).devices]
    assert len({(device.uuid, device.instance) for device in devices}) == 60 * 8 + 5 * 8
    assert len({device.uuid for device in devices}) == 480


def test_people_have_different_uids() -> None:
    jobs = Cluster(seed=7, nodes=12 * 30).jobs(NOON, NOON + 86400)
    people = {job.person for job in jobs}
    users = {person.user for person in people}
    assert len(users) == len({person.uid for person in people})
    assert len(users) > 300
    assert len({person.account for person in people}) > 100


@pytest.mark.parametrize("seed", range(5))
def test_a_visitor_finds_much_to_see_at_any_time_of_day(seed: int) -> None:
    cluster = Cluster(seed)  # as `flopwatch run` plays it
    for time in range(NOON, NOON + 86400, 1700):
        ledger = cluster.truth(time)
        running = [truth for truth in ledger if truth.state == "RUNNING"]
        pending = [truth for truth in ledger if truth.state == "PENDING"]
        assert len(running) >= 8
        assert 1 <= len(pending) <= 6
        assert 64 - sum(truth.gpus for truth in running) >= 6
        assert sum(truth.idle_gpus for truth in running) >= 1
        ages = [time - truth.job.started_at for truth in running if truth.job.started_at]
        assert max(ages) < 7200
        assert len({truth.advice for truth in running}) >= 6


def test_every_value_is_plausible_or_unknown_for_a_reason(cluster: Cluster, rows: Rows) -> None:
    assert len(rows) == NODES * 8 + 8
    for (node, _), samples in rows.items():
        assert [row["time"] for row in samples] == list(HOUR)
        for row in samples:
            unknown = [name for name in COLUMNS if math.isnan(row[name])]
            assert sorted(unknown) == (sorted(WHOLE_ONLY) if node == MIG_NODE else [])
            for name in set(COLUMNS) - set(unknown):
                assert BY_NAME[name].minimum <= row[name] <= BY_NAME[name].maximum, name
    introduction = cluster.agent(MIG_NODE).batch([NOON], introduces=True)[0]
    told = {(entry.device, entry.metric) for entry in introduction.missing}
    assert told == {(place, name) for place in range(16) for name in WHOLE_ONLY}
    assert {entry.reason for entry in introduction.missing} == {"unsupported"}
    assert "unsupported" in get_args(Reason)


def test_columns_of_one_sample_fit_each_other(whole: Rows) -> None:
    for (node, _), samples in whole.items():
        for row in samples:
            assert math.isclose(row["energy_joules"], 10 * row["power_watts"], rel_tol=1e-5)
            assert row["sm_min"] <= row["sm_active"] <= row["sm_max"]
            assert row["sm_active"] <= row["engine_active"]
            assert row["tensor_active"] <= row["sm_active"]
            assert row["sm_occupancy"] <= row["sm_active"]
            assert abs(row["gpu_utilization"] - row["engine_active"]) <= 0.03
            assert row["memory_used_mib"] <= MEMORY_MIB.get(node, MEMORY_MIB[0])
            assert row["power_watts"] <= POWER_LIMIT_WATTS.get(node, 700)
            assert (row["subsample_count"], row["source_period"]) == (10, 1)
            stalls = 10 * row["engine_low_share"]
            assert math.isclose(stalls, round(stalls), abs_tol=1e-5)
            if row["sm_active"] > 0:
                # The mean of ten, `stalls` of them 0, can't be above the highest of them.
                assert row["sm_active"] <= row["sm_max"] * (10 - stalls) / 10 + 1e-6
            else:
                assert row["sm_max"] == 0


def test_a_gpu_at_rest_draws_little_and_a_busy_one_much(whole: Rows) -> None:
    h100 = [row for (node, _), device in whole.items() if node < 6 for row in device]
    resting = [row["power_watts"] for row in h100 if row["memory_used_mib"] == 0]
    tensor = [
        row["power_watts"]
        for row in h100
        if row["throttled_share"] == 0 and row["tensor_active"] > 0.4
    ]
    assert 65 < min(resting) <= max(resting) < 75
    assert min(tensor) > 450


def test_a_free_gpu_shows_no_activity_at_all(rows: Rows) -> None:
    active = [name for name in COLUMNS if name.endswith("_active")]
    for row in rows[5, 7]:
        assert [row[name] for name in active] == [0.0] * len(active)
        assert row["gpu_utilization"] == row["memory_used_mib"] == row["nvlink_tx"] == 0


def test_instances_are_parts_of_their_gpus_and_have_no_power_of_their_own(
    cluster: Cluster,
) -> None:
    devices = cluster.agent(MIG_NODE).devices
    assert [device.instance for device in devices] == ["1/0", "2/0"] * 8
    assert {device.profile for device in devices} == {"3g.40gb"}
    assert [device.minor for device in devices] == [place // 2 for place in range(16)]
    assert len({device.uuid for device in devices}) == 8
    assert {device.power_limit_watts for device in devices} == {None}


def test_an_agent_introduces_its_sources_once(cluster: Cluster) -> None:
    for node, name, passed_over in ((0, "gpm", {}), (A100_NODE, "dcgmi", {"gpm": "unsupported"})):
        introduction = cluster.agent(node).batch([NOON], introduces=True)[0]
        assert [source.device for source in introduction.sources] == list(range(8))
        told = {(source.name, source.period_seconds) for source in introduction.sources}
        assert told == {(name, 1.0)}
        assert all(source.passed_over == passed_over for source in introduction.sources)
        assert cluster.agent(node).batch([NOON])[0].sources == []


@pytest.mark.parametrize(
    ("key", "ranks", "mfu", "dtype", "peak"),
    [
        ("tuned language model", 16, 0.41, "bfloat16", 989.5e12),
        ("starved loader", 4, 0.072, "bfloat16", 989.5e12),
        ("partly idle", 5, 0.33, "bfloat16", 989.5e12),
        ("checkpoint stalls", 4, 0.32, "bfloat16", 989.5e12),
        ("single precision", 2, 0.31, "float32", 67e12),
        ("rollouts", 4, 0.34, "bfloat16", 989.5e12),
        ("communication-bound", 8, 0.09, "bfloat16", 312e12),
        ("double precision", 2, 0.14, "float64", 67e12),
    ],
)
def test_reports_add_up_to_the_mfu_of_the_ledger(
    cluster: Cluster, key: str, ranks: int, mfu: float, dtype: str, peak: float
) -> None:
    job, times = settled(cluster, key)
    last = reports_of(cluster, job, times[-2])
    assert sorted(entry.report.rank for entry in last) == list(range(ranks))
    assert {entry.report.world_size for entry in last} == {ranks}
    flops = sum(entry.report.train_flops[dtype] for entry in last)
    seconds = sum(entry.report.train_seconds for entry in last)
    assert flops / seconds / peak == pytest.approx(mfu, rel=0.01)
    assert {truth.mfu for truth in cluster.truth(times[-2]) if truth.job == job} == {mfu}


def test_rollouts_are_a_phase_with_forward_flops_of_its_own(cluster: Cluster) -> None:
    job, times = settled(cluster, "rollouts")
    report = reports_of(cluster, job, times[-2])[0].report
    generating = report.phase_seconds["generation"]
    assert generating / report.elapsed_seconds == pytest.approx(0.6, abs=0.03)
    flops = report.forward_only_flops["bfloat16"]
    assert flops / generating / 989.5e12 == pytest.approx(0.03)


def test_a_rank_reports_the_device_that_its_job_holds(cluster: Cluster) -> None:
    job, times = settled(cluster, "tuned language model")
    held = [
        cluster.agent(node).devices[ordinal].uuid
        for node, ordinals in job.places
        for ordinal in ordinals
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


def test_the_host_rows_of_a_minute_add_up(cluster: Cluster) -> None:
    host = cluster.agent(2).batch([NOON])[0].host
    whole_node = next(row for row in host if row.job_id is None)
    jobs = [row for row in host if row.job_id is not None]
    assert len(jobs) >= 2
    assert {row.time for row in host} == {NOON}
    used = sum(row.cpu_seconds or 0 for row in jobs)
    assert used < (whole_node.cpu_seconds or 0) <= 60 * (whole_node.cpu_count or 0)
    for row in jobs:
        assert (row.cpu_seconds or 0) <= 60 * (row.cpu_count or 0)
        assert (row.memory_used_mib or 0) <= (row.memory_total_mib or 0)


def test_a_crash_leaves_an_xid(cluster: Cluster) -> None:
    jobs = cluster.jobs(NOON, NOON + 86_400)
    crashed = next(job for job in jobs if job.end_state == "FAILED" and job.places[0][0] == 2)
    end = -(-crashed.ended_at // 10) * 10
    (event,) = cluster.agent(2).batch([end])[0].events
    assert (event.kind, event.value, event.device) == ("xid", 31, 4)
    assert event.time == crashed.ended_at
    assert cluster.agent(2).batch([end + 10])[0].events == []


def test_heat_is_told_when_it_begins_and_when_it_ends(cluster: Cluster) -> None:
    job, times = settled(cluster, "straggler")
    batch, _ = cluster.agent(4).batch(range(times[0], times[-1] + 21, 10))
    told = [event for event in batch.events if event.kind == "clock_reasons"]
    assert job.started_at is not None
    assert [(event.device, event.time, event.value) for event in told] == [
        (2, job.started_at + 300, 0x20),
        (2, job.ended_at, 0),
    ]


def test_an_event_on_the_border_of_two_batches_is_told_once(cluster: Cluster) -> None:
    jobs = cluster.jobs(NOON, NOON + 10 * 86_400)
    border = next(job.ended_at for job in jobs if job.key == "straggler" and not job.ended_at % 10)
    told = [
        [event.time for event in cluster.agent(4).batch([time])[0].events]
        for time in (border - 10, border, border + 10)
    ]
    assert told == [[], [border], []]


def test_the_feed_tells_what_the_ledger_knows(cluster: Cluster) -> None:
    lines = [json.loads(json.dumps(line)) for line in cluster.feed_lines(NOON, NOON - 7200)]
    assert lines[0] == {"kind": "snapshot", "time": NOON, "complete": True}
    open_runs = {
        line["raw_job_id"]: line["state"]
        for line in lines
        if line.get("state") in ("RUNNING", "PENDING") and line["kind"] == "run"
    }
    assert open_runs == {truth.job.raw_job_id: truth.state for truth in cluster.truth(NOON)}
    nodes = {line["name"]: line for line in lines if line["kind"] == "node"}
    assert list(nodes) == [f"gpu{number:03d}" for number in range(1, 13)]
    assert nodes["gpu008"]["gpu_type"] == "a100"
    assert (nodes["gpu009"]["gpu_type"], nodes["gpu009"]["gpu_count"]) == ("h100_3g.40gb", 16)
    ended = [line for line in lines if line["kind"] == "run" and "ended_at" in line]
    assert len(ended) >= 10
    assert all(NOON - 7200 <= line["ended_at"] <= NOON for line in ended)


def test_half_an_hour_of_a_node_is_well_under_the_largest_body(cluster: Cluster) -> None:
    times = range(NOON - 1790, NOON + 1, 10)
    assert len(encoded(cluster, 0, times)) < MAX_BODY_BYTES / 5
    assert len(encoded(cluster, MIG_NODE, times)) < MAX_BODY_BYTES / 5


def test_a_process_that_computes_is_evidence_for_its_device(cluster: Cluster) -> None:
    job, times = settled(cluster, "partly idle")
    batch: Batch = cluster.agent(3).batch([times[-9]])[0]
    seen = [sign for sign in batch.evidence if sign.job_id == job.raw_job_id]
    assert [sign.ordinals for sign in seen if sign.kind == "prolog"] == [list(range(8))]
    assert [sign.device for sign in seen if sign.kind == "cgroup"] == [0, 1, 2, 3, 4]


def test_energy_of_an_hour_is_its_power_over_time(whole: Rows) -> None:
    for samples in whole.values():
        energy = sum(row["energy_joules"] for row in samples)
        assert energy == pytest.approx(
            3600 * statistics.fmean(row["power_watts"] for row in samples), rel=1e-5
        )
