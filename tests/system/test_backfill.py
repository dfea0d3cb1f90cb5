"""Batches that an agent joins are to the server what they were apart."""

import gzip

from flopwatch import wire
from flopwatch_agent.backfill import joined
from flopwatch_server.house import House
from tests.lab.ingest import NOW, NOW_SECONDS, device, ingest_client, query, sampled

TABLES = {
    "samples": "SELECT device_id, ts, power_watts FROM samples ORDER BY 1, 2",
    "gaps": "SELECT device_id, valid_from, valid_to, cause FROM gaps ORDER BY 1, 2",
    "evidence": "SELECT raw_job_id, device_id, first_seen_at, last_seen_at FROM evidence",
    "states": "SELECT device_id, metric, valid_from, valid_to, reason FROM metric_states",
}


def _batch(end: int) -> bytes:
    """Two GPUs over an interval, with a gap, evidence and a metric that comes and goes."""
    at = float(end)
    message, values = sampled(
        [(0, end, {"power_watts": 300.0 + end % 60}), (1, end, {"power_watts": 70.0})],
        devices=[device(0), device(1)],
        gaps=[wire.Gap(at - 20, at - 10, "only 2 readings", 1)],
        evidence=[wire.Evidence("cgroup", 77, NOW_SECONDS - 100.0, at, device=0, pid=5)],
        missing=[wire.Missing(1, "sm_active", "stale" if end % 20 else None, at)],
    )
    return gzip.compress(wire.encode_batch(message, values))


def test_a_joined_post_leaves_what_its_batches_would_have_left_one_by_one(house: House) -> None:
    house.clock = lambda: NOW
    bodies = [_batch(end) for end in range(NOW_SECONDS - 60, NOW_SECONDS + 10, 10)]
    count, whole = joined(bodies)
    assert count == len(bodies)
    with ingest_client(house) as server:
        answer = server.raw(whole, wire.BATCH_TYPE, "gzip").json()
        assert (answer["accepted"], answer["duplicates"]) == (14, 0)
        together = {name: query(house.database, select) for name, select in TABLES.items()}
        for body in bodies:
            answer = server.raw(body, wire.BATCH_TYPE, "gzip").json()
            assert (answer["accepted"], answer["duplicates"]) == (0, 2)
        apart = {name: query(house.database, select) for name, select in TABLES.items()}
    assert together == apart
    assert all(together.values())
