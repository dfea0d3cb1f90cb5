"""A post that is wrong is refused with the field that is wrong, and costs nothing else."""

import gzip
import json
import tracemalloc
from array import array
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import pytest

from flopwatch import wire
from flopwatch_server.house import House
from flopwatch_server.telemetry import ingest
from flopwatch_server.telemetry.header import InvalidBatch
from tests.lab.ingest import (
    NOW,
    NOW_SECONDS,
    IngestClient,
    batch,
    device,
    ingest_client,
    query,
    sampled,
)

JSON = "application/json"
TABLES = ("samples", "nodes", "devices", "agent_epochs", "evidence", "hook_counters", "gaps")


def posted(**changes: Any) -> dict[str, Any]:
    """A right batch with one sample, as JSON alone would carry it, with some fields changed."""
    samples = wire.Samples(["sm_active"], [0], [NOW_SECONDS], [[0.5]])
    return asdict(batch(samples=samples)) | changes


def samples(**changes: Any) -> dict[str, Any]:
    right = {"columns": ["sm_active"], "device": [0], "time": [NOW_SECONDS], "values": [[0.5]]}
    return posted(samples=right | changes)


def devices(**changes: Any) -> dict[str, Any]:
    return posted(devices=[asdict(device()) | changes])


def report(**changes: Any) -> dict[str, Any]:
    right = wire.Report("boot", 1, 0, 1, "NVIDIA H100", None, {"bfloat16": 1e15}, {}, 10.0, 20.0, 5)
    attributed = asdict(wire.AttributedReport(right, 100, 1000, 7, NOW_SECONDS))
    attributed["report"] |= changes
    return posted(reports=[attributed])


def evidence(**changes: Any) -> dict[str, Any]:
    sign = asdict(wire.Evidence("cgroup", 7, NOW_SECONDS - 10, NOW_SECONDS, 0, None, 100, 1000))
    return posted(evidence=[sign | changes])


WRONG: list[tuple[str, dict[str, Any]]] = [
    ("$.version", posted(version=2)),
    ("$.capabilities", posted(capabilities={"no name": "v2"})),
    ("$.capabilities", posted(capabilities={str(number): "" for number in range(65)})),
    ("$.capabilities[...]", posted(capabilities={"cgroup": 2})),
    ("$.node", posted(node="")),
    ("$.node", posted(node="gpu01/../gpu02")),
    ("$.node", posted(node="n" * 254)),
    ("$.node", posted(node=7)),
    ("$.epoch.number", posted(epoch={**posted()["epoch"], "number": -1})),
    ("$.epoch.number", posted(epoch={**posted()["epoch"], "number": 2**70})),
    ("$.epoch.boot_id", posted(epoch={**posted()["epoch"], "boot_id": "a\0b"})),
    ("$.aliases[0]", posted(aliases=["<script>"])),
    ("$.aliases", posted(aliases=["a"] * 17)),
    ("$.devices[0].uuid", devices(uuid="GPU 1")),
    ("$.devices[0].instance", devices(instance="1' OR '1'='1")),
    ("$.devices[0].minor", devices(minor=-1)),
    ("$.devices[0].gres_ordinal", devices(gres_ordinal=-1)),
    ("$.devices[0].gres_ordinal", devices(gres_ordinal=1024)),
    ("$.devices[0].memory_mib", devices(memory_mib=-1.0)),
    ("$.devices[0].model", devices(model=None)),
    ("$.devices[1]", posted(devices=[asdict(device()), asdict(device())])),
    ("$.samples.columns[0]", samples(columns=["sm_activity"])),
    ("$.samples.columns", samples(columns=["sm_active"] * 2, values=[[0.5, 0.5]])),
    ("$.samples.time[0]", samples(time=[NOW_SECONDS + 1])),
    ("$.samples.time[0]", samples(time=[-10])),
    ("$.samples.time[0]", samples(time=["soon"])),
    ("$.samples.time[2]", samples(time=[0, 10, 25], device=[0] * 3, values=[[0.5]] * 3)),
    ("$.samples.time[0]", samples(time=[2**70])),
    ("$.samples.time", samples(time=[0] * 100_001, device=[0] * 100_001, values=[[1]] * 100_001)),
    ("$.samples.device[0]", samples(device=[1])),
    ("$.samples.device[0]", samples(device=[-1])),
    ("$.samples.device", samples(device=[])),
    ("$.samples.values", samples(values=[])),
    ("$.samples.values", samples(values=None)),
    ("$.samples.values[0]", samples(values=[[0.5, 0.5]])),
    ("$.samples.values[0][0]", samples(values=[["NaN"]])),
    ("$.missing[0].metric", posted(missing=[asdict(wire.Missing(0, "x", "stale", 1.0))])),
    ("$.missing[0].reason", posted(missing=[asdict(wire.Missing(0, "sm_active", "x", 1.0))])),
    ("$.missing[0].device", posted(missing=[asdict(wire.Missing(1, "sm_active", None, 1.0))])),
    ("$.evidence[0].kind", evidence(kind="rumour")),
    ("$.evidence[0].device", evidence(device=8)),
    ("$.evidence[0].job_id", evidence(job_id=2**63)),
    ("$.evidence[0].last_seen", evidence(last_seen=1.0)),
    ("$.evidence[0].ordinals[1]", evidence(ordinals=[0, -1])),
    ("$.reports[0].report.boot", report(boot="")),
    ("$.reports[0].report.version", report(version=2)),
    ("$.reports[0].report.steps", report(steps=-1)),
    ("$.reports[0].report.train_seconds", report(train_seconds=-0.1)),
    ("$.reports[0].report.train_flops.bfloat16", report(train_flops={"bfloat16": -1.0})),
    ("$.reports[0].report.phase_seconds", report(phase_seconds={"a\0": 1.0})),
    ("$.host[0].time", posted(host=[asdict(wire.HostUsage(-60, None, 1.0, 1, 1.0, 1.0))])),
    ("$.host[0].cpu_seconds", posted(host=[asdict(wire.HostUsage(60, None, -1.0, 1, 1.0, 1.0))])),
    ("$.gaps[0].end", posted(gaps=[asdict(wire.Gap(20.0, 10.0, "spool full"))])),
    ("$.gaps[0].device", posted(gaps=[asdict(wire.Gap(10.0, 20.0, "spool full", 5))])),
    ("$.gaps", posted(gaps=[asdict(wire.Gap(10.0, 20.0, "spool full"))] * 10_001)),
    (
        "$.gaps",
        posted(
            gaps=[asdict(wire.Gap(10.0, 20.0, "spool full"))] * 1000,
            devices=[asdict(device(number)) for number in range(21)],
        ),
    ),
]


@pytest.mark.parametrize(("field", "message"), WRONG, ids=lambda value: str(value)[:40])
def test_a_wrong_field_is_named(field: str, message: dict[str, Any]) -> None:
    body = json.dumps(message).encode()
    with pytest.raises(InvalidBatch) as refused:
        ingest.validate(*ingest.decode(body, JSON), 1, NOW)
    assert refused.value.field == field


def test_the_batch_that_the_wrong_ones_are_made_from_is_right() -> None:
    for message in (posted(), samples(), devices(), report(), evidence()):
        taken = ingest.validate(*ingest.decode(json.dumps(message).encode(), JSON), 1, NOW)
        assert taken.time.tolist() == [NOW_SECONDS]


def test_a_wrong_post_is_answered_422_and_nothing_of_it_is_kept(agent: IngestClient) -> None:
    message = samples(time=[NOW_SECONDS, NOW_SECONDS + 3], device=[0, 0], values=[[0.5], [0.5]])
    message["gaps"] = [asdict(wire.Gap(10.0, 20.0, "spool full"))]
    answer = agent.raw(json.dumps(message).encode(), JSON)
    assert answer.status_code == 422
    assert answer.json() == {
        "detail": [{"field": "$.samples.time[1]", "problem": "is not a multiple of 10"}]
    }
    database = agent.database
    assert [query(database, f"SELECT count(*) FROM {name}") for name in TABLES] == [[(0,)]] * 7
    assert agent.post(*sampled([(0, NOW_SECONDS, {"sm_active": 0.5})])).status_code == 200


HEAD = json.dumps({name: value for name, value in posted().items() if name != "version"})[:-1]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b"{",
        HEAD.encode() + b',"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        HEAD.encode() + b',"version":NaN}',
        HEAD.encode() + b',"version":Infinity}',
        HEAD.encode() + b',"version":1e999}',
        HEAD.encode() + b',"version":1' + b"0" * 5000 + b"}",
        HEAD.encode() + b',"aliases":["\\ud800"]}',
        HEAD.encode() + b',"aliases":["\xff"]}',
        b"\xef\xbb\xbf" + HEAD.encode() + b"}",
    ],
    ids=["empty", "null", "list", "cut", "deep", "nan", "infinity", "overflow", "long integer",
         "half surrogate", "not utf-8", "byte order mark"],
)  # fmt: skip
def test_what_is_not_the_json_of_a_batch_is_refused(agent: IngestClient, body: bytes) -> None:
    assert agent.raw(body, JSON).status_code == 422


@pytest.mark.parametrize("size", [-4, -1, 1, 4])
def test_a_block_that_does_not_fit_its_header_is_refused(agent: IngestClient, size: int) -> None:
    message, values = sampled([(0, NOW_SECONDS, {"sm_active": 0.5})])
    body = wire.encode_batch(message, values)
    body = body[:size] if size < 0 else body + bytes(size)
    answer = agent.raw(body, wire.BATCH_TYPE)
    assert answer.status_code == 422
    assert answer.json()["detail"][0]["field"] == "$.samples"


def test_a_batch_without_a_line_feed_or_with_values_twice_is_refused(agent: IngestClient) -> None:
    assert agent.raw(b'{"node":"gpu01"}', wire.BATCH_TYPE).status_code == 422
    answer = agent.raw(json.dumps(posted()).encode() + b"\n" + bytes(4), wire.BATCH_TYPE)
    assert answer.json()["detail"][0]["field"] == "$.samples.values"


@pytest.mark.parametrize(
    ("content_type", "encoding", "status"),
    [
        ("text/plain", None, 415),
        ("", None, 415),
        (JSON, "zstd", 415),
        (JSON, "br", 415),
        (JSON, "gzip, gzip", 415),
        ("application/json; charset=utf-8", None, 200),
        ("Application/JSON", "identity", 200),
    ],
)
def test_only_the_forms_on_offer_are_taken(
    agent: IngestClient, content_type: str, encoding: str | None, status: int
) -> None:
    body = json.dumps(posted()).encode()
    assert agent.raw(body, content_type, encoding).status_code == status


@pytest.mark.parametrize(
    "body",
    [
        b"not gzip",
        b"",
        gzip.compress(b"{}")[:-4],
        gzip.compress(b"{}") + b"more",
        gzip.compress(b"{}")[:-8] + bytes(8),
    ],
    ids=["other", "empty", "cut", "followed", "wrong checksum"],
)
def test_broken_gzip_is_400(agent: IngestClient, body: bytes) -> None:
    assert agent.raw(body, JSON, "gzip").status_code == 400


def test_gzip_in_gzip_is_no_batch(agent: IngestClient) -> None:
    body = gzip.compress(gzip.compress(json.dumps(posted()).encode()))
    assert agent.raw(body, JSON, "gzip").status_code == 422


def test_what_is_no_post_is_told_that_batches_are_posted(agent: IngestClient) -> None:
    answer = agent.http.get("/ingest")
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")


def test_a_body_that_unpacks_over_the_limit_is_413(agent: IngestClient) -> None:
    bomb = gzip.compress(bytes(wire.MAX_DECODED_BYTES + 1))
    assert len(bomb) < 100_000
    assert agent.raw(bomb, JSON, "gzip").status_code == 413


def test_a_gzip_bomb_takes_no_more_memory_than_the_limit() -> None:
    bomb = gzip.compress(bytes(200 * 1024 * 1024))
    tracemalloc.start()
    try:
        with pytest.raises(ingest.BodyTooLarge):
            ingest.unpack(bomb, "gzip")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 64 * 1024 * 1024


@pytest.mark.parametrize(
    ("open_", "part", "close"),
    [
        (',"samples":{"values":[', "[]", "]}}"),
        (',"samples":{"device":[', "1000", "]}}"),
        (',"gaps":[', '{"start":1,"end":2,"cause":""}', "]}"),
        (',"reports":[', "{}", "]}"),
        (',"aliases":[', '""', "]}"),
    ],
)
def test_json_that_is_small_on_the_wire_takes_little_memory_decoded(
    open_: str, part: str, close: str
) -> None:
    """Lists of nothing pack 1000 to 1 and would fill 20 times their bytes in memory."""
    parts = (wire.MAX_DECODED_BYTES - 2000) // (len(part) + 1)
    head = json.dumps(posted(samples=None))[:-1].replace(', "samples": null', "")
    body = (head + open_ + ",".join([part] * parts) + close).encode()
    packed = gzip.compress(body, 1)
    del body
    assert len(packed) < wire.MAX_BODY_BYTES
    tracemalloc.start()
    try:
        with pytest.raises((InvalidBatch, ingest.BodyTooLarge)):
            ingest.decode(ingest.unpack(packed, "gzip"), JSON)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 80 * 1024 * 1024


def test_a_nodes_token_speaks_for_that_node_only(still_house: House) -> None:
    with ingest_client(still_house, node="gpu01") as client:
        assert client.post(batch(node="gpu02")).status_code == 403
        assert client.post(batch(node="gpu01", aliases=["gpu02"])).status_code == 200
    assert query(still_house.database, "SELECT name, aliases FROM nodes") == [("gpu01", [])]


def test_a_feed_token_is_403(still_house: House) -> None:
    with ingest_client(still_house, kind="feed") as client:
        assert client.post(batch()).status_code == 403


CUT: list[tuple[str, Callable[[str], wire.Batch]]] = [
    ("SELECT model FROM devices", lambda text: batch(devices=[device(model=text)])),
    ("SELECT cause FROM gaps", lambda text: batch(gaps=[wire.Gap(10.0, 20.0, text)])),
    ("SELECT agent_version FROM agent_epochs", lambda text: batch(
        epoch=wire.Epoch("boot-a", 1, 0.0, text))),
]  # fmt: skip


@pytest.mark.parametrize(("statement", "made"), CUT, ids=["model", "cause", "version"])
def test_free_text_is_cut_and_freed_of_control_characters(
    agent: IngestClient, statement: str, made: Callable[[str], wire.Batch]
) -> None:
    assert agent.post(made("a\0b\x1b[31m" + "ä" * 400), array("f")).status_code == 200
    [(kept,)] = query(agent.database, statement)
    assert kept == "a b [31m" + "ä" * 292
