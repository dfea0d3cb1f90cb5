"""What agents post is kept once, exactly, and before it is acknowledged."""

import asyncio
import json
from array import array
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from flopwatch import wire
from flopwatch.metrics import COLUMNS, METRICS
from flopwatch_server.database import partitions
from flopwatch_server.database.copy import Floats, copy_rows, timestamps
from flopwatch_server.database.engine import Database
from flopwatch_server.house import House
from flopwatch_server.telemetry import ingest
from tests.lab.ingest import (
    NAN,
    NOW,
    NOW_SECONDS,
    IngestClient,
    batch,
    device,
    ingest_app,
    ingest_client,
    query,
    sampled,
)
from tests.lab.processes import wait_for

KEPT = f"SELECT {', '.join(COLUMNS)} FROM samples ORDER BY ts, device_id"
COUNT = "SELECT count(*) FROM samples"


def at(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def busy(end: int, device: int = 0) -> tuple[int, int, dict[str, float]]:
    return device, end, {"sm_active": 0.5, "gpu_utilization": 1.0}


@pytest.fixture
def any_agent(any_database: Database, still_house: House) -> Any:
    with ingest_client(replace(still_house, database=any_database)) as client:
        yield client


def test_a_sample_is_kept_column_by_column_and_what_is_unknown_is_null(
    any_agent: IngestClient,
) -> None:
    cells = {metric.name: (number + 1) / 32 for number, metric in enumerate(METRICS)}
    del cells["fp64_active"], cells["source_period"]
    answer = any_agent.post(*sampled([(0, NOW_SECONDS, cells)]))
    assert answer.status_code == 200
    assert answer.json() == {
        "accepted": 1, "duplicates": 0, "refused": 0, "server_time": NOW.timestamp(),
    }  # fmt: skip
    [row] = query(any_agent.database, KEPT)
    assert row == tuple(cells.get(name) for name in COLUMNS)
    assert query(any_agent.database, "SELECT ts FROM samples") == [(NOW,)]


def test_columns_may_come_in_any_order_and_number(agent: IngestClient) -> None:
    row = (0, NOW_SECONDS, {"power_watts": 512.0, "sm_active": 0.25})
    assert agent.post(*sampled([row], ["power_watts", "sm_active"])).status_code == 200
    kept = query(agent.database, "SELECT sm_active, power_watts, engine_active FROM samples")
    assert kept == [(0.25, 512.0, None)]


def test_json_alone_is_as_good_as_a_block(agent: IngestClient) -> None:
    message = batch(
        samples=wire.Samples(
            ["sm_active", "power_watts"], [0, 0], [NOW_SECONDS - 10, NOW_SECONDS],
            [[0.5, None], [None, 300]],
        )
    )  # fmt: skip
    answer = agent.raw(json.dumps(asdict(message)).encode(), "application/json")
    assert answer.json()["accepted"] == 2
    kept = query(agent.database, "SELECT sm_active, power_watts FROM samples ORDER BY ts")
    assert kept == [(0.5, None), (None, 300.0)]


FLOATS = npst.arrays(
    np.float32,
    st.tuples(st.integers(1, 12), st.just(len(COLUMNS))),
    elements=st.one_of(st.just(NAN), st.floats(-(2.0**100), 2.0**100, width=32)),
)


@settings(max_examples=settings().max_examples // 4)
@given(values=FLOATS)
def test_every_pattern_of_nulls_comes_back_bit_for_bit(
    any_database: Database, values: Floats
) -> None:
    number = np.arange(len(values))
    ids = number.astype(np.int32)
    keys = [ids, np.ones_like(ids), timestamps(np.full_like(number, NOW_SECONDS))]
    with any_database.session() as session:
        partitions.ensure(session, NOW)
        copy_rows(session, "samples", ("device_id", "epoch_id", "ts", *COLUMNS), keys, values)
        rows = session.connection().exec_driver_sql(
            f"SELECT {', '.join(COLUMNS)} FROM samples ORDER BY device_id"
        )
        kept = np.array([tuple(row) for row in rows], np.float32)
        session.rollback()
    assert kept.tobytes() == values.tobytes()


def test_values_that_cannot_be_are_unknown_and_reported_as_implausible(agent: IngestClient) -> None:
    ends = [NOW_SECONDS - 30 + 10 * number for number in range(4)]
    cells = [1.5, float("inf"), 0.5, -0.1]
    rows = [
        (0, end, {"sm_active": cell, "power_watts": 300.0})
        for end, cell in zip(ends, cells, strict=True)
    ]
    assert agent.post(*sampled(rows)).json()["accepted"] == 4
    kept = query(agent.database, "SELECT sm_active, power_watts FROM samples ORDER BY ts")
    assert kept == [(None, 300.0), (None, 300.0), (0.5, 300.0), (None, 300.0)]
    states = "SELECT metric, reason, valid_from, valid_to FROM metric_states ORDER BY valid_from"
    first = ("sm_active", "implausible", at(-40), at(-20))
    assert query(agent.database, states) == [
        first, ("sm_active", "implausible", at(-10), at(0)),
    ]  # fmt: skip
    agent.post(*sampled([(0, NOW_SECONDS + 10, {"sm_active": 7.0})]))
    assert query(agent.database, states) == [
        first, ("sm_active", "implausible", at(-10), at(10)),
    ]  # fmt: skip


def test_infinity_is_implausible_where_a_metric_has_no_upper_bound(agent: IngestClient) -> None:
    agent.post(*sampled([(0, NOW_SECONDS, {"subsample_count": float("inf"), "sm_active": 0.5})]))
    kept = query(agent.database, "SELECT subsample_count, sm_active FROM samples")
    assert kept == [(None, 0.5)]
    assert query(agent.database, "SELECT metric, reason FROM metric_states") == [
        ("subsample_count", "implausible")
    ]


def test_the_devices_of_ten_thousand_nodes_in_turn_are_decoded_once() -> None:
    bodies = [
        wire.encode_batch(batch(devices=[device(uuid=f"GPU-{node}")]), array("f"))
        for node in range(10_000)
    ]
    first, second = ([ingest.decode(body, wire.BATCH_TYPE)[0] for body in bodies] for _ in range(2))
    pairs = zip(first, second, strict=True)
    assert all(before.devices is after.devices for before, after in pairs)


def test_a_device_has_been_where_it_is_since_its_first_sample_began(agent: IngestClient) -> None:
    agent.post(*sampled([busy(NOW_SECONDS - 20), busy(NOW_SECONDS)]))
    since = [(at(-30),)]
    assert query(agent.database, "SELECT valid_from FROM devices") == since
    assert query(agent.database, "SELECT valid_from FROM placements") == since


def test_a_batch_sent_again_adds_nothing(any_agent: IngestClient) -> None:
    message, values = sampled([busy(NOW_SECONDS - 10), busy(NOW_SECONDS)])
    message.reports = [
        wire.AttributedReport(
            wire.Report("b", 1, 0, 1, "NVIDIA H100", None, {"bfloat16": 1e15}, {}, 1.0, 2.0, 3),
            100, 1000, 7, float(NOW_SECONDS),
        )
    ]  # fmt: skip
    message.evidence = [wire.Evidence("cgroup", 7, 10.0, 20.0, 0, None, 100, 1000)]
    message.gaps = [wire.Gap(10.0, 20.0, "spool full")]
    message.missing = [wire.Missing(0, "fp64_active", "unsupported", 10.0)]
    message.host = [wire.HostUsage(NOW_SECONDS, None, 1.0, 8, 100.0, 200.0),
                    wire.HostUsage(NOW_SECONDS, 7, 1.0, 8, 100.0, 200.0)]  # fmt: skip
    assert any_agent.post(message, values).json()["accepted"] == 2
    tables = ("samples", "reports", "evidence", "gaps", "metric_states", "node_minutes",
              "run_minutes", "devices", "placements", "agent_epochs", "nodes")  # fmt: skip
    contents = [
        query(any_agent.database, f"SELECT * FROM {name.replace('reports', 'hook_counters')}")
        for name in tables
    ]
    assert [len(rows) for rows in contents] == [2] + [1] * 10
    again = any_agent.post(message, values).json()
    assert (again["accepted"], again["duplicates"]) == (0, 2)
    with ingest_client(any_house(any_agent)) as another_process:
        assert another_process.post(message, values).json()["duplicates"] == 2
    assert contents == [
        query(any_agent.database, f"SELECT * FROM {name.replace('reports', 'hook_counters')}")
        for name in tables
    ]


def any_house(agent: IngestClient) -> House:
    house: House = agent.http.app.state.house  # type: ignore[attr-defined]
    return house


def test_a_batch_that_is_partly_known_adds_the_rest(agent: IngestClient) -> None:
    agent.post(*sampled([busy(NOW_SECONDS - 10)]))
    answer = agent.post(*sampled([busy(NOW_SECONDS - 10), busy(NOW_SECONDS), busy(NOW_SECONDS)]))
    assert (answer.json()["accepted"], answer.json()["duplicates"]) == (1, 2)
    assert query(agent.database, COUNT) == [(2,)]


def test_the_same_time_in_another_life_of_the_agent_is_another_sample(agent: IngestClient) -> None:
    for number in (1, 2):
        epoch = wire.Epoch("boot-a", number, float(NOW_SECONDS), "0.1.0")
        assert agent.post(*sampled([busy(NOW_SECONDS)], epoch=epoch)).json()["accepted"] == 1
    assert query(agent.database, "SELECT count(*), count(DISTINCT epoch_id) FROM samples") == [
        (2, 2)
    ]


def test_days_get_their_partition_when_a_sample_needs_it(agent: IngestClient) -> None:
    midnight = NOW_SECONDS // 86400 * 86400
    ends = [midnight - 86400, midnight - 10, midnight, midnight + 10]
    assert agent.post(*sampled([busy(end) for end in ends])).json()["accepted"] == 4
    tables = query(
        agent.database,
        "SELECT tableoid::regclass::text, count(*) FROM samples GROUP BY 1 ORDER BY 1",
    )
    assert tables == [("samples_20250309", 2), ("samples_20250310", 2)]


def test_partitions_are_made_from_yesterday_to_two_days_ahead_and_again_at_no_cost(
    any_database: Database,
) -> None:
    for _ in range(2):
        with any_database.session() as session:
            partitions.ensure(session, datetime(2025, 12, 31, 23, 59, tzinfo=UTC))
    names = "SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent='samples'::regclass"
    assert sorted(name for (name,) in query(any_database, names)) == [
        "samples_20251230", "samples_20251231", "samples_20260101", "samples_20260102",
    ]  # fmt: skip


def test_posts_at_once_are_all_kept_and_one_that_repeats_itself_harms_no_other(
    still_house: House,
) -> None:
    nodes = [f"gpu{number:02d}" for number in range(12)]

    async def run() -> list[httpx.Response]:
        app = ingest_app(still_house)
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://lab") as http,
        ):
            return await asyncio.gather(*(post(http, node) for node in nodes for _ in range(3)))

    async def post(http: httpx.AsyncClient, node: str) -> httpx.Response:
        uuid = f"GPU-{node}"
        rows = [busy(NOW_SECONDS - 10 * back) for back in range(20)]
        message, values = sampled(rows, node=node, devices=[device(uuid=uuid)])
        headers = {"content-type": wire.BATCH_TYPE}
        return await http.post(
            "/ingest", content=wire.encode_batch(message, values), headers=headers
        )

    answers = asyncio.run(run())
    assert {answer.status_code for answer in answers} == {200}
    assert sum(answer.json()["accepted"] for answer in answers) == 12 * 20
    assert sum(answer.json()["duplicates"] for answer in answers) == 12 * 40
    assert query(still_house.database, COUNT) == [(12 * 20,)]


def test_a_metrics_reason_is_kept_over_time(agent: IngestClient) -> None:
    def tell(reason: str | None, since: float) -> None:
        missing = [wire.Missing(0, "sm_active", reason, NOW_SECONDS + since)]
        assert agent.post(batch(missing=missing)).status_code == 200

    tell("no permission", 0)
    tell("no permission", 10)  # says again what is known
    tell("stale", 60)
    tell(None, 120)
    tell("absent", 180)
    tell("unsupported", 90)  # an old word that comes late
    states = "SELECT reason, valid_from, valid_to FROM metric_states ORDER BY valid_from"
    assert query(agent.database, states) == [
        ("no permission", at(0), at(60)),
        ("stale", at(60), at(120)),
        ("unsupported", at(90), at(180)),
        ("absent", at(180), None),
    ]


def test_a_gap_without_a_device_is_about_all_of_the_node(agent: IngestClient) -> None:
    agent.post(batch(devices=[device(0), device(1)]))
    assert agent.post(batch(devices=[], gaps=[wire.Gap(100.0, 200.0, "agent down")])).is_success
    gaps = query(agent.database, "SELECT device_id, cause FROM gaps ORDER BY 1")
    assert [cause for _, cause in gaps] == ["agent down"] * 2


def test_evidence_seen_again_moves_its_last_time_only_forward(agent: IngestClient) -> None:
    for last_seen in (20.0, 40.0, 30.0):
        sign = wire.Evidence("prolog", 7, 10.0, last_seen, None, [0, 3])
        agent.post(batch(evidence=[sign, sign]))
    moments = [datetime.fromtimestamp(seconds, UTC) for seconds in (10, 40)]
    kept = "SELECT kind, raw_job_id, ordinals, device_id, first_seen_at, last_seen_at FROM evidence"
    moved = [("prolog", 7, "0,3", None, *moments)]
    wait_for(lambda: query(agent.database, kept) == moved, "the sign is moved", 20)


def test_a_host_minute_is_the_one_that_ends_with_its_time(agent: IngestClient) -> None:
    message = batch(host=[wire.HostUsage(NOW_SECONDS, None, 90.0, 64, 1000.0, 2000.0),
                          wire.HostUsage(NOW_SECONDS, 7, 60.0, 8, 500.0, None)])  # fmt: skip
    agent.post(message)
    columns = "minute, cpu_seconds, cpu_count, memory_used_mib, memory_total_mib"
    assert query(agent.database, f"SELECT {columns} FROM node_minutes") == [
        (at(-60), 90.0, 64, 1000.0, 2000.0)
    ]
    assert query(agent.database, f"SELECT raw_job_id, {columns} FROM run_minutes") == [
        (7, at(-60), 60.0, 8, 500.0, None)
    ]


def test_a_report_of_a_process_is_kept_with_what_the_agent_knows_of_it(
    agent: IngestClient,
) -> None:
    report = wire.Report(
        boot="b", sequence=9, rank=3, world_size=8, device_name="NVIDIA H100", device_uuid="GPU-1",
        train_flops={"bfloat16": 1e15, "tf32": 2e12}, forward_only_flops={"bfloat16": 3e13},
        train_seconds=100.5, elapsed_seconds=200.25, steps=50, phase_seconds={"data": 1.5},
        dropped=2,
    )  # fmt: skip
    agent.post(batch(reports=[wire.AttributedReport(report, 100, 1000, 7, float(NOW_SECONDS))]))
    [row] = query(agent.database, "SELECT boot, sequence, rank, world_size, device_uuid, "
                  "train_flops, forward_only_flops, train_seconds, elapsed_seconds, steps, "
                  "phase_seconds, reason, dropped, pid, uid, raw_job_id, received_at, cluster_id "
                  "FROM hook_counters")  # fmt: skip
    assert row == ("b", 9, 3, 8, "GPU-1", {"bfloat16": 1e15, "tf32": 2e12}, {"bfloat16": 3e13},
                   100.5, 200.25, 50, {"data": 1.5}, None, 2, 100, 1000, 7, NOW, 1)  # fmt: skip


def test_signs_that_are_moved_and_made_in_one_group_are_each_kept_once(agent: IngestClient) -> None:
    """Two processes of one job: the second one starts while the first goes on."""
    first = wire.Evidence("cgroup", 7, 10.0, 20.0, 0, None, 1, 1)
    agent.post(batch(evidence=[first]))
    first.last_seen = 30.0
    agent.post(batch(evidence=[first, wire.Evidence("cgroup", 7, 25.0, 30.0, 0, None, 2, 1)]))
    agent.post(batch())
    first.last_seen = 50.0
    agent.post(batch(evidence=[first]))
    kept = "SELECT pid, extract(epoch FROM last_seen_at)::int FROM evidence ORDER BY pid"
    told = [(1, 50), (2, 30)]
    wait_for(lambda: query(agent.database, kept) == told, "the signs are written", 20)
