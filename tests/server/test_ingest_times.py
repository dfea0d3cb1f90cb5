"""Times: of the agent's clock, the server's, and what lies too far from either."""

from array import array
from datetime import UTC, datetime, timedelta

import pytest

from flopwatch import wire
from flopwatch_server.house import House
from tests.lab.ingest import (
    NOW,
    NOW_SECONDS,
    IngestClient,
    batch,
    ingest_client,
    query,
    sampled,
)
from tests.lab.processes import wait_for


def at(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def busy(end: int) -> tuple[int, int, dict[str, float]]:
    return 0, end, {"sm_active": 0.5, "gpu_utilization": 1.0}


def sent(after: float) -> dict[str, str]:
    """The header of a post whose sender's clock says so many seconds after NOW."""
    return {wire.SENT_AT_HEADER: f"{NOW_SECONDS + after}"}


def test_samples_out_of_the_window_are_refused_one_by_one_and_leave_a_gap(
    agent: IngestClient,
) -> None:
    hours = 48 * 3600
    ends = [NOW_SECONDS - hours - 20, NOW_SECONDS - hours - 10, NOW_SECONDS - hours,
            NOW_SECONDS, NOW_SECONDS + 300, NOW_SECONDS + 310]  # fmt: skip
    message, values = sampled([busy(end) for end in ends])
    answer = agent.post(message, values, **sent(310)).json()
    assert (answer["accepted"], answer["refused"]) == (3, 3)
    kept = [moment for (moment,) in query(agent.database, "SELECT ts FROM samples ORDER BY ts")]
    assert kept == [at(-hours), at(0), at(300)]
    gaps = query(agent.database, "SELECT valid_from, valid_to, cause FROM gaps ORDER BY 1")
    assert gaps == [
        (at(-hours - 30), at(-hours - 10), "came too late"),
        (at(-10), at(0), "from the future"),  # when it was taken, by the server's clock
    ]


def test_the_agents_clock_is_measured_against_the_servers(agent: IngestClient) -> None:
    agent.post(batch(), None, **sent(2.5))
    skews = "SELECT clock_skew_seconds FROM agent_epochs"
    assert query(agent.database, skews) == [(2.5,)]
    agent.post(batch(), None, **sent(-1.25))
    wait_for(lambda: query(agent.database, skews) == [(-1.25,)], "the skew is written", 20)
    assert query(agent.database, "SELECT last_batch_at FROM nodes") == [(NOW,)]


@pytest.mark.parametrize(
    "text", ["", "noon", "-1", "1e9", "nan", "9" * 40, "1.2.3", "253402300800"]
)
def test_a_clock_that_is_no_time_is_refused_by_name(agent: IngestClient, text: str) -> None:
    answer = agent.post(batch(), None, **{wire.SENT_AT_HEADER: text})
    assert answer.status_code == 400
    assert wire.SENT_AT_HEADER in answer.json()["detail"]


def test_an_empty_batch_is_a_sign_of_life(agent: IngestClient) -> None:
    assert agent.post(batch(devices=[]), array("f")).json()["accepted"] == 0
    assert query(agent.database, "SELECT name, last_batch_at FROM nodes") == [("gpu01", NOW)]


def test_what_a_clock_ahead_tells_of_the_future_is_kept_where_it_belongs(
    agent: IngestClient,
) -> None:
    """The agent's clock is an hour ahead: what was a minute ago is stamped 59 minutes from now."""
    ahead = NOW_SECONDS + 3600.0
    message = batch(
        missing=[wire.Missing(0, "fp64_active", "absent", ahead - 60)],
        evidence=[wire.Evidence("cgroup", 7, ahead - 60, ahead, 0, None, 1, 1)],
        gaps=[wire.Gap(ahead - 120, ahead - 60, "spool full")],
        events=[wire.Event(0, ahead - 60, "xid", 79)],
        host=[wire.HostUsage(int(ahead) - 60, None, 1.0, 8, 100.0, 200.0)],
    )
    assert agent.post(message, None, **sent(3600)).is_success
    told = {
        "SELECT valid_from FROM metric_states": [(at(-60),)],
        "SELECT first_seen_at, last_seen_at FROM evidence": [(at(-60), at(0))],
        "SELECT valid_from, valid_to FROM gaps": [(at(-120), at(-60))],
        "SELECT at FROM device_events": [(at(-60),)],
        "SELECT minute FROM node_minutes": [(at(-120),)],
    }
    assert {statement: query(agent.database, statement) for statement in told} == told


def test_a_time_from_the_future_is_taken_as_now_where_the_clock_is_not_told(
    agent: IngestClient,
) -> None:
    year = 365 * 86_400
    message = batch(
        missing=[wire.Missing(0, "fp64_active", "absent", NOW_SECONDS + year)],
        evidence=[wire.Evidence("cgroup", 7, NOW_SECONDS - 10, NOW_SECONDS + year, 0, None, 1, 1)],
        gaps=[wire.Gap(NOW_SECONDS - 50, NOW_SECONDS + year, "spool full"),
              wire.Gap(NOW_SECONDS + year, NOW_SECONDS + 2 * year, "spool full")],
    )  # fmt: skip
    assert agent.post(message).is_success
    assert query(agent.database, "SELECT valid_from FROM metric_states") == [(NOW,)]
    seen = query(agent.database, "SELECT first_seen_at, last_seen_at FROM evidence")
    assert seen == [(at(-10), NOW)]
    assert query(agent.database, "SELECT valid_from, valid_to FROM gaps") == [(at(-50), NOW)]


def test_a_clock_at_the_end_of_time_brings_nothing_before_1970(agent: IngestClient) -> None:
    """It jumped thousands of years ahead after it had told the times of this batch."""
    tomorrow = NOW_SECONDS + 86_400.0
    message = batch(
        events=[wire.Event(0, tomorrow, "xid", 79)],
        gaps=[wire.Gap(tomorrow, tomorrow + 10, "spool full"),
              wire.Gap(tomorrow, 253_402_300_799, "spool full")],
    )  # fmt: skip
    answer = agent.post(message, None, **{wire.SENT_AT_HEADER: "253402300799"})
    assert answer.is_success
    began = datetime(1970, 1, 1, tzinfo=UTC)
    assert query(agent.database, "SELECT at FROM device_events") == [(began,)]
    assert query(agent.database, "SELECT valid_from, valid_to FROM gaps") == [(began, NOW)]


def test_a_time_within_5_minutes_ahead_is_left_as_it_is(agent: IngestClient) -> None:
    agent.post(batch(missing=[wire.Missing(0, "fp64_active", "absent", NOW_SECONDS + 300)]))
    assert query(agent.database, "SELECT valid_from FROM metric_states") == [(at(300),)]


def test_what_waits_to_be_written_is_written_when_the_server_stops(still_house: House) -> None:
    with ingest_client(still_house) as client:
        for last_seen in (20.0, 30.0, 40.0):
            sign = wire.Evidence("cgroup", 7, 10.0, last_seen, 0, None, 1, 1)
            client.post(batch(evidence=[sign]), None, **sent(last_seen))
    seen = query(still_house.database, "SELECT extract(epoch FROM last_seen_at) FROM evidence")
    assert seen == [(40,)]
    assert query(still_house.database, "SELECT clock_skew_seconds FROM agent_epochs") == [(40.0,)]
