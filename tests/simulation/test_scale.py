"""Ten thousand nodes: what they hold, and what a post of theirs costs, by counting."""

import gzip
import json
import sys
import tracemalloc
from collections import Counter
from types import FrameType
from typing import Any

import pytest

from flopwatch.wire import MAX_BODY_BYTES
from flopwatch_simulation.cluster import Cluster
from flopwatch_simulation.feed import bodies
from flopwatch_simulation.hardware import kind_of
from flopwatch_simulation.replay import posts
from tests.simulation.readings import NOON, encoded

NODES = 10_000
MOST_CALLS_A_POST = 1_500
MOST_BYTES_A_POST = 3_000
MOST_BYTES_A_NODE = 16_000


@pytest.fixture(scope="module")
def cluster() -> Cluster:
    return Cluster(seed=3, nodes=NODES)


def test_each_gpu_is_held_by_one_job_at_most(cluster: Cluster) -> None:
    jobs = [job for job in cluster.jobs(NOON, NOON) if job.runs(NOON)]
    held = Counter((node, place) for job in jobs for node, places in job.places for place in places)
    assert max(held.values()) == 1
    assert all(place < kind_of(node).places for node, place in held)
    assert 0.5 < len(held) / (NODES * 8) < 0.9
    assert len({job.raw_job_id for job in jobs}) == len(jobs)


def test_the_feed_and_the_ledger_agree_on_what_is_allocated(cluster: Cluster) -> None:
    lines = list(cluster.feed_lines(NOON, NOON))
    running = [line for line in lines if line.get("state") == "RUNNING"]
    allocated = sum(held["count"] for line in running for held in line["gpus"])
    assert allocated == sum(one.gpus for one in cluster.truth(NOON) if one.state == "RUNNING")
    nodes = [line for line in lines if line["kind"] == "node"]
    assert len({line["name"] for line in nodes}) == NODES
    assert {line["gpu_type"] for line in nodes} == {"h100", "h200", "a100", "l40s", "h100_3g.40gb"}
    assert len({partition for line in nodes for partition in line["partitions"]}) == 6
    assert len({line["user"] for line in running}) > 300
    assert len({line["account"] for line in running}) > 100


def test_the_feed_comes_in_bodies_that_a_server_takes(cluster: Cluster) -> None:
    lines = list(cluster.feed_lines(NOON, NOON - 7200))
    sent = list(bodies(lines))
    sizes = [sum(len(json.dumps(line)) + 1 for line in body) for body in sent]
    assert max(sizes) < MAX_BODY_BYTES
    queue = [line for line in lines if line.get("state") in ("RUNNING", "PENDING")]
    shares = [line for line in lines if line["kind"] == "share"]
    assert sent[0] == [lines[0], *queue, *shares]
    assert all(line["kind"] != "snapshot" for body in sent[1:] for line in body)
    assert sorted(map(id, lines)) == sorted(id(line) for body in sent for line in body)
    few = list(Cluster(seed=3).feed_lines(NOON, NOON - 7200))
    assert list(bodies(few)) == [few]


def test_it_has_the_first_nodes_of_a_small_cluster(cluster: Cluster) -> None:
    small = Cluster(seed=3, nodes=12)
    for node in range(12):
        assert encoded(cluster, node, [NOON]) == encoded(small, node, [NOON])


def test_a_post_costs_so_many_calls_and_bytes_at_most(cluster: Cluster) -> None:
    nodes = range(4_800, 4_920)
    for node in nodes:  # its devices are made once
        cluster.agent(node).batch([NOON - 10])
    calls = 0

    def count(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    size = 0
    sys.setprofile(count)
    try:
        for node in nodes:
            size += len(gzip.compress(encoded(cluster, node, [NOON]), 1))
    finally:
        sys.setprofile(None)
    assert calls / len(nodes) < MOST_CALLS_A_POST
    assert size / len(nodes) < MOST_BYTES_A_POST


def test_memory_does_not_grow_with_time(cluster: Cluster) -> None:
    nodes = range(1_200, 1_236)
    tracemalloc.start()
    try:
        for node in nodes:
            cluster.agent(node).batch([NOON])
        first, _ = tracemalloc.get_traced_memory()
        for turn in range(1, 21):
            for node in nodes:
                cluster.agent(node).batch([NOON + 10 * turn])
        later, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert first / len(nodes) < MOST_BYTES_A_NODE
    assert later - first < 0.25 * first


def test_every_node_posts_once_an_interval_and_no_second_is_crowded() -> None:
    cluster = Cluster(seed=3, nodes=600)
    found = list(posts(cluster, NOON, NOON + 20))
    assert Counter(post.node for post in found) == dict.fromkeys(range(600), 2)
    arrivals = [post.at for post in found]
    assert arrivals == sorted(arrivals)
