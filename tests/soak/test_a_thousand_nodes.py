"""A thousand simulated nodes report live to one server: what it then knows is what was told."""

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from flopwatch_server.telemetry.models import STATES
from flopwatch_simulation.cluster import Cluster
from flopwatch_simulation.hardware import kind_of, node_name
from tests.lab.postgres import public_folder
from tests.lab.processes import Process, Server, running, wait_for
from tests.soak.intervals import Intervals

CLUSTER = "granite"
NODES = 1_000
"""As many as a server meets in two minutes where two cores are all that it and they have."""

SEED = 3
LIVE_SECONDS = 240
MOST_BEHIND_SECONDS = 60
"""An interval, the time a post may wait in a simulated agent, and one post that failed."""

SAMPLED_NODES = range(7, NODES, 11)

pytestmark = pytest.mark.timeout(1500)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A server after some minutes of reports from all nodes, which have ended."""
    with ExitStack() as stack:
        folder = stack.enter_context(public_folder())
        server = stack.enter_context(Server(folder))
        report_for(server, folder, LIVE_SECONDS)
        yield server


@pytest.fixture(scope="module")
def intervals(server: Server) -> Intervals:
    found = Intervals(server.database_url())
    wait_for(lambda: not found.wrong_minutes(CLUSTER), "all minutes are judged", 300, 5)
    return found


def report_for(server: Server, folder: Path, seconds: float) -> None:
    """Let them report, and measure; what is printed holds for this machine alone."""
    simulation = Process(
        "simulate", "--server", server.url, "--nodes", str(NODES), "--seed", str(SEED),
        "--history-hours", "0",
        "--node-token-file", server.token("node", CLUSTER),
        "--feed-token-file", server.token("feed", CLUSTER),
        log=folder / "simulation.log", environment={},
    )  # fmt: skip
    intervals = Intervals(server.database_url())
    nodes = "SELECT count(*) FROM nodes WHERE last_batch_at IS NOT NULL"
    with running(simulation):
        wait_for(
            lambda: intervals.ask(nodes) == [(NODES,)],
            "all nodes have reported",
            600,
            2,
        )
        began, before = time.monotonic(), _samples(intervals)
        time.sleep(seconds)  # the load itself, not a wait for anything
        elapsed = time.monotonic() - began
        told = _samples(intervals) - before
        age = intervals.newest_age_seconds(CLUSTER)
    assert age < MOST_BEHIND_SECONDS
    assert "Traceback" not in (folder / "simulation.log").read_text()
    print(json.dumps({
        "soak": "a_thousand_nodes", "nodes": NODES, "seconds": round(elapsed), "samples": told,
        "samples_per_second": round(told / elapsed), "oldest_newest_sample_seconds": round(age),
    }))  # fmt: skip


def _samples(intervals: Intervals) -> int:
    [(count,)] = intervals.ask("SELECT count(*) FROM samples")
    return int(count)


def test_every_device_of_every_node_is_there(intervals: Intervals) -> None:
    counted = intervals.ask(
        """SELECT n.name, count(DISTINCT p.device_id) FROM placements p
           JOIN nodes n ON n.id = p.node_id GROUP BY n.name""",
    )
    assert dict(counted) == {node_name(node): kind_of(node).places for node in range(NODES)}


def test_no_interval_is_lost_or_counted_twice(intervals: Intervals) -> None:
    assert len(intervals.devices(CLUSTER)) == sum(kind_of(node).places for node in range(NODES))
    assert intervals.lost(CLUSTER) == []
    assert intervals.twice(CLUSTER) == []
    assert intervals.lost_by_fault() == []


def test_minutes_say_what_the_ledger_says(intervals: Intervals) -> None:
    cluster = Cluster(SEED, NODES)
    checked = 0
    for node in SAMPLED_NODES:
        places = {(device.uuid, device.instance): place
                  for place, device in enumerate(cluster.agent(node).devices)}  # fmt: skip
        found = intervals.ask(
            """SELECT d.uuid, d.instance, extract(epoch FROM m.minute)::bigint, m.state
               FROM device_minutes m JOIN devices d ON d.id = m.device_id
               WHERE d.uuid = ANY(:uuids) AND m.samples_received = 6""",
            uuids=[uuid for uuid, _ in places],
        )
        for uuid, instance, minute, state in found:
            truth = cluster.gpu_minute(node, places[uuid, instance], minute)
            assert STATES[state] == truth.tells, (node, uuid, minute)
            checked += 1
    assert checked >= len(SAMPLED_NODES)


def test_running_jobs_are_those_of_the_ledger(intervals: Intervals) -> None:
    [(fed_at,)] = intervals.ask("SELECT max(last_success_at) FROM scheduler_sources")
    running_now = {
        int(raw) for (raw,) in intervals.ask("SELECT raw_job_id FROM runs WHERE state = 'RUNNING'"
        )
    }  # fmt: skip
    # A body of the feed says when it was made; the server took it some seconds later at most.
    near = range(int(fed_at.timestamp()) - 60, int(fed_at.timestamp()) + 1)
    jobs = Cluster(SEED, NODES).jobs(near[0], near[-1])
    throughout = {job.raw_job_id for job in jobs if all(job.runs(time) for time in near)}
    at_times = {job.raw_job_id for job in jobs if any(job.runs(time) for time in near)}
    assert throughout <= running_now <= at_times
    assert len(running_now) > 50
