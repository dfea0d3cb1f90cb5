"""What the agent does with every answer, and with none."""

import gzip
import json
import time
from array import array
from collections.abc import Iterator
from email.utils import formatdate
from pathlib import Path

import pytest

from flopwatch.wire import Gap, split_batch
from flopwatch_agent.backfill import joined
from flopwatch_agent.shipper import Shipper
from flopwatch_agent.spool import Spool, SpooledBatch
from flopwatch_agent.transport import Answer, Connection
from tests.agent.test_spool import batch, put
from tests.lab.answering import Server
from tests.lab.processes import wait_for


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.close()


@pytest.fixture
def token(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text("fpn_secret\n")
    path.chmod(0o600)
    return path


@pytest.fixture
def spool(tmp_path: Path) -> Spool:
    return Spool(tmp_path / "spool")


class Elapsed:
    """A clock that moves when the test says so."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds

    def add(self, seconds: float) -> None:
        self.seconds += seconds


@pytest.fixture
def elapsed() -> Elapsed:
    return Elapsed()


def shipper(spool: Spool, url: str, token: Path, elapsed: Elapsed | None = None) -> Shipper:
    """Without jitter: every draw is its upper bound. Time stands still, or is the test's."""
    return Shipper(spool, Connection(url, token), lambda low, high: high, elapsed or Elapsed())


def _times(body: bytes) -> list[int]:
    times: list[int] = json.loads(split_batch(body)[0])["samples"]["time"]
    return times


def drain(ship: Shipper, elapsed: Elapsed) -> list[float]:
    """Let it send all it has; the waits it asked for."""
    waits = []
    while (wait := ship.step()) is not None:
        waits.append(wait)
        elapsed.seconds += wait
    return waits


def test_a_batch_is_deleted_only_when_the_server_has_it(
    server: Server, spool: Spool, token: Path
) -> None:
    put(spool, 10)
    server.answers = [(0, {}), (500, {}), (200, {})]
    ship = shipper(spool, server.url + "/flopwatch/", token)
    waits = []
    for expected in (1, 1, 0):
        waits.append(ship.step())
        assert len(spool.oldest(10)) == expected
    assert waits == [1.0, 2.0, 0.0]
    # The server that hung up may have kept it: sent again, byte for byte, for it to see through.
    assert server.bodies == [batch()] * 3
    assert set(server.paths) == {"/flopwatch/api/v1/ingest"}
    assert set(server.tokens) == {"Bearer fpn_secret"}
    assert ship.step() is None


def test_the_newest_goes_first_and_then_the_back_fill_from_its_oldest(
    server: Server, spool: Spool, token: Path, elapsed: Elapsed
) -> None:
    for end, epoch in ((10, 1), (20, 2), (30, 3)):
        put(spool, end, epoch=epoch)
    ship = shipper(spool, server.url, token, elapsed)
    ship.step()
    ship.step()
    put(spool, 40, epoch=4)
    drain(ship, elapsed)
    assert server.bodies == [batch(epoch=epoch) for epoch in (3, 1, 4, 2)]


def test_back_fill_of_one_epoch_goes_out_together(
    server: Server, spool: Spool, token: Path, elapsed: Elapsed
) -> None:
    for end in range(10, 710, 10):
        put(spool, end, gaps=[Gap(end - 10.0, float(end), "only 2 readings", 0)], rows=[(0, end)])
    ship = shipper(spool, server.url, token, elapsed)
    drain(ship, elapsed)
    assert [len(_times(body)) for body in server.bodies] == [1, 30, 30, 9]
    head, block = split_batch(server.bodies[1])
    header = json.loads(head)
    assert header["samples"]["time"] == list(range(10, 310, 10))
    assert header["samples"]["device"] == [0] * 30
    assert [gap["end"] for gap in header["gaps"]] == list(range(10, 310, 10))
    assert array("f", bytes(block)).tolist() == [float(end) for end in range(10, 310, 10)]
    assert spool.oldest() == []


def test_batches_that_an_older_agent_left_are_joined_as_well() -> None:
    head, block = split_batch(batch(rows=[(0, 10)]))
    known = json.loads(head)
    del known["local_runs"]
    older = gzip.compress(json.dumps(known).encode() + b"\n" + bytes(block))
    count, whole = joined([older, older])
    assert count == 2
    assert _times(gzip.decompress(whole)) == [10, 10]


def test_large_batches_are_not_joined_into_one_that_is_too_large(
    server: Server, spool: Spool, token: Path, elapsed: Elapsed
) -> None:
    for end in range(10, 80, 10):
        put(spool, end, filler=100_000)  # 400 kB each
    drain(shipper(spool, server.url, token, elapsed), elapsed)
    assert [len(body) // 400_000 for body in server.bodies] == [1, 2, 2, 2]


def test_one_bad_batch_in_a_joined_post_costs_only_itself(
    server: Server, spool: Spool, token: Path, elapsed: Elapsed
) -> None:
    for end in (10, 20, 30, 40):
        put(spool, end, rows=[(0, end)])
    put(spool, 50, epoch=2)
    #                 live       joined     10         20         30         40
    server.answers = [(200, {}), (422, {}), (200, {}), (422, {}), (200, {}), (200, {})]
    drain(shipper(spool, server.url, token, elapsed), elapsed)
    assert [_times(body) for body in server.bodies[1:]] == [
        [10, 20, 30, 40],
        [10],
        [20],
        [30],
        [40],
    ]
    (gap,) = spool.take_gaps()
    assert (gap.start, gap.end) == (10.0, 20.0)
    assert spool.oldest() == []


def test_back_fill_pauses_for_longer_where_the_server_answers_late(
    server: Server, spool: Spool, token: Path, elapsed: Elapsed
) -> None:
    for end, epoch in ((10, 1), (20, 2), (30, 3)):
        put(spool, end, epoch=epoch)
    ship = shipper(spool, server.url, token, elapsed)
    server.took = lambda: elapsed.add(0.4)
    assert [ship.step(), ship.step()] == [0.0, 0.0]  # live, and the first of the back-fill
    # A twentieth of the time: 0.4 s of 8 s. The upper bound of the jitter is half as much again.
    assert ship.step() == pytest.approx(12.0)
    assert len(server.bodies) == 2
    put(spool, 40, epoch=4)
    ship.step()  # does not wait for that
    assert server.bodies[-1] == batch(epoch=4)
    assert ship.step() == pytest.approx(11.6)


def test_a_quick_server_gets_the_back_fill_of_an_hour_within_a_minute(
    server: Server, spool: Spool, token: Path, elapsed: Elapsed
) -> None:
    spool.put([SpooledBatch(batch(), (end - 10, end)) for end in range(10, 3610, 10)])
    drain(shipper(spool, server.url, token, elapsed), elapsed)
    assert len(server.bodies) == 13
    assert elapsed.seconds < 60


def test_what_is_too_old_by_the_servers_clock_is_a_gap_and_not_sent(
    server: Server, spool: Spool, token: Path, elapsed: Elapsed
) -> None:
    noon = 1_700_000_000
    for end in (noon - 48 * 3600, noon - 47 * 3600 - 10, noon - 47 * 3600 + 10, noon):
        put(spool, end, rows=[(0, end)])
    server.answers = [(200, {"Date": formatdate(noon, usegmt=True)})]
    drain(shipper(spool, server.url, token, elapsed), elapsed)
    assert [_times(body) for body in server.bodies] == [[noon], [noon - 47 * 3600 + 10]]
    assert [(gap.end, gap.cause) for gap in spool.take_gaps()] == [
        (noon - 48 * 3600, "older than the server takes"),
        (noon - 47 * 3600 - 10, "older than the server takes"),
    ]


def test_one_connection_serves_many_posts(
    server: Server, spool: Spool, token: Path, elapsed: Elapsed
) -> None:
    for end, epoch in ((10, 1), (20, 2), (30, 3)):
        put(spool, end, epoch=epoch)
    drain(shipper(spool, server.url, token, elapsed), elapsed)
    assert len(server.bodies) == 3
    assert len(server.clients) == 1


def test_a_connection_that_was_closed_while_idle_costs_nothing(
    server: Server, spool: Spool, token: Path, elapsed: Elapsed
) -> None:
    for end in (10, 20):
        put(spool, end, filler=end)
    server.answers = [(200, {"X-Hang-Up": ""})]
    assert drain(shipper(spool, server.url, token, elapsed), elapsed) == [0.0, 0.0]
    assert server.bodies == [batch(filler=20), batch(filler=10)]
    assert len(server.clients) == 2


def test_delays_double_up_to_half_a_minute_and_start_over_after_success(
    server: Server, spool: Spool, token: Path
) -> None:
    put(spool, 10)
    server.answers = [(503, {})] * 7
    ship = shipper(spool, server.url, token)
    assert [ship.step() for _ in range(7)] == [1, 2, 4, 8, 16, 30, 30]
    assert ship.step() == 0
    put(spool, 20)
    server.answers = [(503, {})]
    assert ship.step() == 1


def test_delays_are_drawn_from_their_upper_half(server: Server, spool: Spool, token: Path) -> None:
    put(spool, 10)
    server.answers = [(503, {})] * 3
    hasty = Shipper(spool, Connection(server.url, token), lambda low, high: low)
    assert [hasty.step() for _ in range(3)] == [0.5, 1, 2]


@pytest.mark.parametrize("status", [400, 404, 408, 500, 502, 503])
def test_an_answer_that_is_no_verdict_on_the_batch_keeps_it(
    server: Server, spool: Spool, token: Path, status: int
) -> None:
    put(spool, 10)
    server.answers = [(status, {})]
    assert shipper(spool, server.url, token).step() == 1
    assert len(spool.oldest(10)) == 1


@pytest.mark.parametrize(
    ("wish", "wait"), [("20", 21), ("100000", 301), ("Fri, 31 Dec 1999 23:59:59 GMT", 1)]
)
def test_the_servers_wish_for_a_pause_is_heeded_within_reason_and_not_by_all_at_once(
    server: Server, spool: Spool, token: Path, wish: str, wait: float
) -> None:
    put(spool, 10)
    server.answers = [(429, {"Retry-After": wish})]
    assert shipper(spool, server.url, token).step() == wait
    assert len(spool.oldest(10)) == 1


@pytest.mark.parametrize("status", [401, 403])
def test_a_refused_token_keeps_the_spool_and_is_said_once(
    server: Server, spool: Spool, token: Path, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    put(spool, 10)
    server.answers = [(status, {})] * 2
    ship = shipper(spool, server.url, token)
    assert [ship.step(), ship.step()] == [31, 32]
    assert len(spool.oldest(10)) == 1
    (record,) = caplog.records
    assert f"refuses our token ({status})" in record.getMessage()


def test_a_token_changed_under_the_agent_is_used_at_once(
    server: Server, spool: Spool, token: Path
) -> None:
    put(spool, 10)
    server.answers = [(401, {})]
    ship = shipper(spool, server.url, token)
    ship.step()
    token.write_text("fpn_new")
    ship.step()
    assert server.tokens == ["Bearer fpn_secret", "Bearer fpn_new"]
    assert spool.oldest() == []


@pytest.mark.parametrize("status", [413, 422])
def test_a_batch_refused_for_good_is_set_aside_and_the_next_goes_on(
    server: Server, spool: Spool, token: Path, elapsed: Elapsed, tmp_path: Path, status: int
) -> None:
    put(spool, 10, filler=1)
    put(spool, 20, filler=2)
    server.answers = [(status, {"X-Text": "odd"})]
    drain(shipper(spool, server.url, token, elapsed), elapsed)
    assert server.bodies == [batch(filler=2), batch(filler=1)]
    assert len(list((tmp_path / "spool/refused").iterdir())) == 1
    assert spool.take_gaps() == [Gap(10.0, 20.0, f"refused by server: {status} odd")]


def test_redirects_are_not_followed(server: Server, spool: Spool, token: Path) -> None:
    put(spool, 10)
    server.answers = [(307, {"Location": f"{server.url}/elsewhere"})]
    assert shipper(spool, server.url, token).step() == 1
    assert server.paths == ["/api/v1/ingest"]
    assert len(spool.oldest(10)) == 1


def test_an_endless_answer_is_not_read(server: Server, spool: Spool, token: Path) -> None:
    put(spool, 10)
    server.answers = [(422, {"X-Text": "x" * 60_000})]
    ship = shipper(spool, server.url, token)
    ship.step()
    (gap,) = spool.take_gaps()
    assert len(gap.cause) < 300


def test_no_server_is_no_reason_to_stop(spool: Spool, token: Path, server: Server) -> None:
    server.close()
    put(spool, 10)
    assert shipper(spool, server.url, token).step() == 1
    assert len(spool.oldest(10)) == 1


def test_the_end_of_the_agent_waits_for_a_last_send(
    server: Server, spool: Spool, token: Path
) -> None:
    ship = shipper(spool, server.url, token)
    ship.start()
    for end in (10, 20, 30):
        put(spool, end)
    ship.finish(10.0)
    assert spool.oldest() == []


def test_the_end_of_the_agent_does_not_wait_for_a_dead_server(
    server: Server, spool: Spool, token: Path
) -> None:
    server.close()
    put(spool, 10)
    ship = shipper(spool, server.url, token)
    ship.start()
    started = time.monotonic()
    ship.finish(60.0)
    assert time.monotonic() - started < 60.0
    assert len(spool.oldest(10)) == 1


def test_a_defect_in_sending_is_logged_and_ends_nothing(
    spool: Spool, caplog: pytest.LogCaptureFixture
) -> None:
    class Defective:
        """A connection whose first post meets what nobody foresaw."""

        posts = 0

        def post(self, body: bytes) -> Answer:
            self.posts += 1
            if self.posts == 1:
                raise RuntimeError("a defect")
            return Answer(200, None, "")

    put(spool, 10)
    ship = Shipper(spool, Defective(), lambda low, high: 0.0)
    ship.start()
    wait_for(lambda: not spool.oldest(), "the batch is sent after all", 20, 0.01)
    ship.finish(10.0)
    assert [record.getMessage() for record in caplog.records if record.exc_info] == [
        "sending is broken"
    ]
