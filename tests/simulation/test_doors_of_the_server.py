"""The server's own readers take what the simulation sends: every batch, and every feed."""

import json
from datetime import UTC, datetime

import pytest

from flopwatch import wire
from flopwatch_server.scheduler.feed import FeedSnapshot, parse
from flopwatch_server.telemetry.ingest import clear_implausible, decode, validate
from flopwatch_simulation.cluster import Cluster
from flopwatch_simulation.faults import KINDS, Fault, drawn
from flopwatch_simulation.feed import Line
from flopwatch_simulation.replay import Post, feeds, posts
from tests.simulation.readings import NOON

NODES = 12
ACTIVITY = {
    "engine_active", "sm_active", "sm_occupancy", "tensor_active", "dram_active", "fp64_active",
    "fp32_active", "fp16_active", "sm_min", "sm_max",
}  # fmt: skip


def read(post: Post) -> tuple[int, int, set[str]]:
    """What the server makes of a post: samples taken, refused, and metrics that can't be."""
    body = wire.encode_batch(post.batch, post.values)
    received_at = datetime.fromtimestamp(post.at, UTC)
    batch, values = decode(body, wire.BATCH_TYPE)
    found = validate(batch, values, 1, received_at, post.sent_at)
    implausible = clear_implausible(found.device, found.time, found.values.copy())
    return len(found.time), found.refused, {entry.metric for entry in implausible}


@pytest.mark.parametrize("window_seconds", [10, 600])
def test_every_sample_is_taken_and_none_is_implausible(window_seconds: int) -> None:
    cluster = Cluster(seed=7, nodes=NODES)
    found = [read(post) for post in posts(cluster, NOON, NOON + 600, window_seconds)]
    assert sum(taken for taken, _, _ in found) == 60 * (NODES * 8 + 8)
    assert {refused for _, refused, _ in found} == {0}
    assert {frozenset(implausible) for _, _, implausible in found} == {frozenset()}


def test_sentinels_are_implausible_and_the_rest_of_the_sample_is_not() -> None:
    fault = Fault("sentinels", 3, NOON, NOON + 60)
    cluster = Cluster(seed=7, nodes=4, faults=[fault])
    found = [read(post) for post in posts(cluster, NOON, NOON + 60) if post.node == 3]
    assert [implausible for _, _, implausible in found] == [ACTIVITY] * 6


def test_a_cluster_full_of_faults_breaks_no_contract() -> None:
    faults = drawn(5, NODES, NOON, NOON + 1800, KINDS)
    cluster = Cluster(seed=7, nodes=NODES, faults=faults)
    assert {refused for _, refused, _ in map(read, posts(cluster, NOON, NOON + 1800))} == {0}
    for feed in feeds(cluster, NOON, NOON + 1800):
        _parsed(feed.lines, feed.at)


def test_a_feed_is_read_whole() -> None:
    cluster = Cluster(seed=7, nodes=NODES)
    snapshot = _parsed(list(cluster.feed_lines(NOON, NOON - 7200)), NOON)
    assert snapshot.complete
    assert {job.raw_job_id for job in snapshot.jobs} == {
        job.raw_job_id for job in cluster.jobs(NOON - 7200, NOON)
    }
    held = sum(
        gpus.count for job in snapshot.jobs if job.state == "RUNNING" for gpus in job.gpus or ()
    )
    assert held == sum(one.gpus for one in cluster.truth(NOON) if one.state == "RUNNING")
    assert [node.name for node in snapshot.nodes] == [f"gpu{n:03d}" for n in range(1, NODES + 1)]


def _parsed(lines: list[Line], at: float) -> FeedSnapshot:
    body = "".join(json.dumps(line) + "\n" for line in lines).encode()
    return parse(body, datetime.fromtimestamp(at, UTC))
