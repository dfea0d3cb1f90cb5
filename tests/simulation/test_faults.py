"""What goes wrong on purpose: what batches and feed look like then, and what stays true."""

from itertools import pairwise

import pytest

from flopwatch.metrics import BY_NAME
from flopwatch_simulation.cluster import Cluster
from flopwatch_simulation.faults import KINDS, Fault, drawn
from flopwatch_simulation.replay import Post, feeds, posts
from tests.simulation.readings import NOON, encoded, rows_of, settled

BEGIN, END = NOON + 600, NOON + 1200
NODE = 3
ACTIVITY = [
    "engine_active", "sm_active", "sm_occupancy", "tensor_active", "dram_active", "fp64_active",
    "fp32_active", "fp16_active", "sm_min", "sm_max",
]  # fmt: skip
ALL_TIMES = range(NOON + 10, NOON + 1801, 10)


def faulty(*faults: Fault, nodes: int = 4) -> Cluster:
    return Cluster(seed=7, nodes=nodes, faults=faults)


def told(cluster: Cluster, start: int = NOON, end: int = NOON + 1800) -> list[Post]:
    return [post for post in posts(cluster, start, end) if post.node == NODE]


def times_of(found: list[Post]) -> list[int]:
    return [time for post in found for time in post.batch.samples.time[:1]]


def busy_place(cluster: Cluster) -> int:
    """A GPU of the node that works through the whole fault and a minute around it."""
    minutes = range(BEGIN - 60, END + 61, 60)
    return next(
        place
        for place in range(8)
        if all(cluster.gpu_minute(NODE, place, minute).does == "active" for minute in minutes)
    )


def test_without_faults_every_interval_is_told_once_and_in_order() -> None:
    cluster = faulty()
    found = list(posts(cluster, NOON, NOON + 300))
    assert len(found) == 4 * 30
    assert all(one.at <= other.at for one, other in pairwise(found))
    assert all(post.at == post.sent_at for post in found)
    assert times_of([post for post in found if post.node == 2]) == list(
        range(NOON + 10, NOON + 301, 10)
    )
    assert {post.batch.epoch.number for post in found} == {1}


def test_faults_elsewhere_change_nothing() -> None:
    fault = Fault("stuck counters", 2, BEGIN, END)
    times = range(BEGIN + 10, END + 1, 10)
    assert encoded(faulty(), NODE, times) == encoded(faulty(fault), NODE, times)
    assert encoded(faulty(), 2, times) != encoded(faulty(fault), 2, times)


@pytest.mark.parametrize("kind", ["agent down", "node lost"])
def test_an_agent_that_is_away_has_no_samples_and_comes_back_as_another_epoch(kind: str) -> None:
    found = told(faulty(Fault(kind, NODE, BEGIN, END)))  # type: ignore[arg-type]
    assert times_of(found) == [time for time in ALL_TIMES if not BEGIN < time <= END]
    numbers = [(post.batch.epoch.number, post.batch.epoch.started_at) for post in found]
    assert numbers[0][0] == numbers[59][0] == 1
    assert set(numbers[60:]) == {(2, END)}
    sources = [len(post.batch.sources) for post in found]
    assert [place for place, count in enumerate(sources) if count] == [0, 60]


def test_an_agent_that_restarts_loses_the_interval_of_its_restart() -> None:
    found = told(faulty(Fault("agent restart", NODE, BEGIN, BEGIN + 10)))
    assert times_of(found) == [time for time in ALL_TIMES if time != BEGIN + 10]
    assert [post.batch.epoch.number for post in found] == [1] * 60 + [2] * 119


def test_a_gpu_that_is_lost_tells_nothing_and_the_others_go_on() -> None:
    cluster = faulty(Fault("gpu lost", NODE, BEGIN, END, place=5))
    rows = rows_of(cluster, ALL_TIMES, [NODE])
    assert [row["time"] for row in rows[NODE, 5]] == [
        time for time in ALL_TIMES if not BEGIN < time <= END
    ]
    assert [row["time"] for row in rows[NODE, 4]] == list(ALL_TIMES)
    events = [event for post in told(cluster) for event in post.batch.events]
    xids = [(event.device, event.time, event.value) for event in events if event.kind == "xid"]
    assert xids == [(5, BEGIN, 79)]


def test_stuck_counters_read_no_activity_while_the_gpu_works() -> None:
    place = busy_place(faulty())
    cluster = faulty(Fault("stuck counters", NODE, BEGIN, END, place=place))
    rows = rows_of(cluster, ALL_TIMES, [NODE])[NODE, place]
    for row in rows:
        if BEGIN < row["time"] <= END:
            assert [row[name] for name in ACTIVITY] == [0.0] * len(ACTIVITY)
            assert row["gpu_utilization"] == 1.0
            assert row["power_watts"] > 400
        else:
            assert row["sm_active"] > 0.5


def test_sentinels_are_values_that_no_gpu_can_have() -> None:
    cluster = faulty(Fault("sentinels", NODE, BEGIN, END, place=1))
    rows = rows_of(cluster, range(BEGIN + 10, END + 1, 10), [NODE])[NODE, 1]
    for name in ACTIVITY:
        assert {row[name] for row in rows} == {2.0**47}  # DCGM's blank of a double
        assert BY_NAME[name].maximum < 2.0**47
    assert all(row["power_watts"] <= 700 for row in rows)


@pytest.mark.parametrize("skew", [-90, 90])
def test_an_agent_whose_clock_is_wrong_tells_all_times_by_it(skew: int) -> None:
    cluster = faulty(Fault("clock skew", NODE, BEGIN, END, seconds=skew))
    truthful = {post.at: post for post in told(faulty(), BEGIN, END)}
    found = told(cluster, BEGIN, END)
    assert len(found) == len(truthful) == 60
    for post in found:
        true = truthful[post.at]
        assert post.sent_at == post.at + skew
        assert post.values == true.values
        assert post.batch.samples.time == [time + skew for time in true.batch.samples.time]
        assert [report.received_at for report in post.batch.reports] == [
            report.received_at + skew for report in true.batch.reports
        ]
        assert [sign.last_seen for sign in post.batch.evidence] == [
            sign.last_seen + skew for sign in true.batch.evidence
        ]


@pytest.mark.parametrize(("skew", "begins"), [(-90, BEGIN), (90, END)])
def test_a_clock_that_steps_back_begins_another_epoch(skew: int, begins: int) -> None:
    found = told(faulty(Fault("clock skew", NODE, BEGIN, END, seconds=skew)))
    for post in found:
        assert post.batch.epoch.number == (1 if int(post.at) <= begins else 2)
    keys = [(post.batch.epoch.number, time) for post in found for time in post.batch.samples.time]
    assert len(set(keys)) == len(keys) / 8


def test_late_batches_arrive_together_with_what_they_would_have_held() -> None:
    found = told(faulty(Fault("late", NODE, BEGIN, END)))
    assert [post.batch for post in found] == [post.batch for post in told(faulty())]
    late = [post.at for post in found if BEGIN < post.batch.samples.time[0] <= END]
    assert len(late) == 60
    assert all(END <= at < END + 1 for at in late)
    assert sorted(post.at for post in found) == [post.at for post in found]


def test_duplicates_are_the_same_batch_again() -> None:
    found = told(faulty(Fault("duplicates", NODE, BEGIN, END)))
    doubled = [post for post in found if BEGIN < post.batch.samples.time[0] <= END]
    assert len(doubled) == 120
    for first, second in zip(doubled[::2], doubled[1::2], strict=True):
        assert (first.batch, first.values) == (second.batch, second.values)
        assert first.at < second.at
    assert len(found) == 180 + 60


def test_nobody_tells_of_jobs_while_the_scheduler_is_away() -> None:
    cluster = faulty(Fault("scheduler outage", 0, BEGIN, END))
    at = [feed.at for feed in feeds(cluster, NOON, NOON + 1800)]
    assert at == [time for time in range(NOON, NOON + 1801, 30) if not BEGIN <= time < END]
    everything = {
        line["raw_job_id"]
        for feed in feeds(cluster, NOON, NOON + 1800)
        for line in feed.lines
        if line["kind"] == "run"
    }
    assert everything >= {job.raw_job_id for job in cluster.jobs(NOON, NOON + 1800)}


def test_a_lost_node_is_down_and_its_jobs_start_anew_when_it_is_back() -> None:
    job, _ = settled(Cluster(seed=7, nodes=4), "partly idle")
    assert job.started_at is not None
    lost = (job.started_at // 10 + 100) * 10
    cluster = faulty(Fault("node lost", NODE, lost, lost + 600))
    before, after = (run for run in cluster.jobs(lost, lost + 900) if run.key == "partly idle")
    assert (before.ended_at, before.end_state) == (lost, "NODE_FAIL")
    assert (after.submitted_at, after.started_at) == (lost, lost + 720)
    assert (before.restarts, after.restarts) == (0, 1)
    assert before.raw_job_id == after.raw_job_id
    assert after.ended_at == job.ended_at
    states = {}
    for time in (lost - 10, lost + 10, lost + 610):
        lines = cluster.feed_lines(time, time)
        states[time - lost] = {line["name"]: line["state"] for line in lines if "name" in line
                               and line["kind"] == "node"}["gpu004"]  # fmt: skip
    assert states == {-10: "ALLOCATED", 10: "DOWN", 610: "IDLE"}
    for place in range(8):
        minute = cluster.gpu_minute(NODE, place, lost // 60 * 60 + 120)
        assert (minute.does, minute.tells, minute.job) == ("idle", "unknown", None)


def test_a_requeued_job_is_another_run_of_the_same_job() -> None:
    job, _ = settled(Cluster(seed=7, nodes=4), "tuned language model")
    assert job.started_at is not None
    at = (job.started_at // 10 + 100) * 10
    cluster = faulty(Fault("requeue", 1, at, at + 300))
    runs = [run for run in cluster.jobs(at, at + 600) if run.raw_job_id == job.raw_job_id]
    assert [(run.submitted_at, run.state(at + 60)) for run in runs] == [
        (job.submitted_at, "PREEMPTED"),
        (at, "PENDING"),
    ]
    # It holds nothing on any of its nodes meanwhile.
    for node in (0, 1):
        assert cluster.gpu_minute(node, 0, at // 60 * 60 + 120).does == "idle"
        assert cluster.gpu_minute(node, 0, at // 60 * 60 + 120).tells == "idle"
    boots = {
        entry.report.boot
        for time in (at - 10, at + 480)
        for entry in cluster.agent(0).batch([time])[0].reports
        if entry.job_id == job.raw_job_id
    }
    assert len(boots) == 16


@pytest.mark.parametrize("kind", ["agent down", "gpu lost", "stuck counters", "sentinels"])
def test_nobody_may_be_called_idle_where_samples_are_missing_or_lie(kind: str) -> None:
    place = busy_place(faulty())
    cluster = faulty(Fault(kind, NODE, BEGIN, END, place=place))  # type: ignore[arg-type]
    for minute in range(BEGIN, END, 60):
        assert cluster.gpu_minute(NODE, place, minute).does == "active"
        assert cluster.gpu_minute(NODE, place, minute).tells == "unknown"
    for minute in (BEGIN - 60, END):
        assert cluster.gpu_minute(NODE, place, minute).tells == "active"


def test_stuck_counters_of_a_gpu_at_rest_tell_the_truth() -> None:
    cluster = faulty(Fault("stuck counters", NODE, BEGIN, END, place=7))
    assert cluster.gpu_minute(NODE, 7, BEGIN).tells == "idle"


def test_one_missing_sample_of_a_minute_is_no_reason_for_doubt_but_two_are() -> None:
    place = busy_place(faulty())
    for seconds, tells in ((10, "active"), (20, "unknown")):
        cluster = faulty(Fault("gpu lost", NODE, BEGIN, BEGIN + seconds, place=place))
        assert cluster.gpu_minute(NODE, place, BEGIN).tells == tells


def test_drawn_faults_are_the_same_again_and_of_every_kind() -> None:
    first = drawn(5, 12, NOON, NOON + 7200, KINDS)
    assert first == drawn(5, 12, NOON, NOON + 7200, KINDS)
    assert first != drawn(6, 12, NOON, NOON + 7200, KINDS)
    assert {fault.kind for fault in first} == set(KINDS)
    assert len(first) == 12 * len(KINDS)
    for fault in first:
        assert NOON <= fault.start < fault.end <= NOON + 7200
        assert fault.start % 10 == fault.end % 10 == 0
        assert -90 <= fault.seconds <= 90


def test_a_cluster_full_of_faults_still_makes_sense() -> None:
    faults = drawn(5, 12, NOON, NOON + 3600, KINDS, per_node=0.5)
    cluster = Cluster(seed=7, nodes=12, faults=faults)
    held: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for job in cluster.jobs(NOON, NOON + 3600):
        if job.started_at is not None:
            assert job.submitted_at <= job.started_at <= job.ended_at
            for node, places in job.places:
                for place in places:
                    held.setdefault((node, place), []).append((job.started_at, job.ended_at))
    for spans in held.values():
        assert all(end < start for (_, end), (start, _) in pairwise(sorted(spans)))
    found = list(posts(cluster, NOON, NOON + 3600))
    arrivals = [post.at for post in found]
    assert arrivals == sorted(arrivals)
    epochs: dict[int, list[int]] = {}
    for post in found:
        epochs.setdefault(post.node, []).append(post.batch.epoch.number)
    assert all(numbers == sorted(numbers) for numbers in epochs.values())
    assert max(max(numbers) for numbers in epochs.values()) > 1
