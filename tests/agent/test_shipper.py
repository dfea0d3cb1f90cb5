"""What the agent does with every answer, and with none."""

import gzip
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from flopwatch.wire import Gap
from flopwatch_agent.shipper import Shipper
from flopwatch_agent.spool import Spool
from flopwatch_agent.transport import Connection, TokenError, read_token
from tests.agent.test_spool import batch, put


class Server:
    """A real HTTP server that answers as told: (status, headers), or hangs up for status 0."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, dict[str, str]]] = []
        self.bodies: list[bytes] = []
        self.paths: list[str] = []
        self.tokens: list[str] = []
        self.clients: set[tuple[str, int]] = set()
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                status, headers = server.answers.pop(0) if server.answers else (200, {})
                server.paths.append(self.path)
                server.clients.add(self.client_address)
                server.tokens.append(self.headers["Authorization"])
                if self.headers["Content-Encoding"] == "gzip":
                    server.bodies.append(gzip.decompress(body))
                if status == 0:
                    self.close_connection = True
                    return
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                text = headers.get("X-Text", "").encode()
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)
                # Without a word in the header, as a server that is tired of an idle connection.
                self.close_connection = "X-Hang-Up" in headers

            def log_message(self, format: str, *args: object) -> None:
                """Keep the test's output clean."""

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_port}"
        threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()


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


def shipper(spool: Spool, url: str, token: Path) -> Shipper:
    """Without jitter: every draw is its upper bound."""
    return Shipper(spool, Connection(url, token), lambda low, high: high)


def test_a_batch_is_deleted_only_when_the_server_has_it(
    server: Server, spool: Spool, token: Path
) -> None:
    put(spool, 10)
    server.answers = [(0, {}), (500, {}), (200, {})]
    ship = shipper(spool, server.url + "/flopwatch/", token)
    waits = []
    for expected in (1, 1, 0):
        waits.append(ship.step())
        assert len(spool) == expected
    assert waits == [1.0, 2.0, 0.1]
    # The server that hung up may have kept it: sent again, byte for byte, for it to see through.
    assert server.bodies == [batch()] * 3
    assert set(server.paths) == {"/flopwatch/api/v1/ingest"}
    assert set(server.tokens) == {"Bearer fpn_secret"}
    assert ship.step() is None


def test_the_newest_goes_first_and_then_the_back_fill_from_its_oldest(
    server: Server, spool: Spool, token: Path
) -> None:
    for end in (10, 20, 30):
        put(spool, end, filler=end)
    ship = shipper(spool, server.url, token)
    ship.step()
    ship.step()
    put(spool, 40, filler=40)
    while ship.step() is not None:
        pass
    assert server.bodies == [batch(filler=end) for end in (30, 10, 40, 20)]


def test_one_connection_serves_many_posts(server: Server, spool: Spool, token: Path) -> None:
    for end in (10, 20, 30):
        put(spool, end)
    ship = shipper(spool, server.url, token)
    while ship.step() is not None:
        pass
    assert len(server.bodies) == 3
    assert len(server.clients) == 1


def test_a_connection_that_was_closed_while_idle_costs_nothing(
    server: Server, spool: Spool, token: Path
) -> None:
    for end in (10, 20):
        put(spool, end, filler=end)
    server.answers = [(200, {"X-Hang-Up": ""})]
    ship = shipper(spool, server.url, token)
    assert [ship.step(), ship.step(), ship.step()] == [0.1, 0.1, None]
    assert server.bodies == [batch(filler=20), batch(filler=10)]
    assert len(server.clients) == 2


def test_delays_double_up_to_half_a_minute_and_start_over_after_success(
    server: Server, spool: Spool, token: Path
) -> None:
    put(spool, 10)
    server.answers = [(503, {})] * 7
    ship = shipper(spool, server.url, token)
    assert [ship.step() for _ in range(7)] == [1, 2, 4, 8, 16, 30, 30]
    assert ship.step() == 0.1
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
    assert len(spool) == 1


@pytest.mark.parametrize(
    ("wish", "wait"), [("20", 20), ("100000", 300), ("Fri, 31 Dec 1999 23:59:59 GMT", 1)]
)
def test_the_servers_wish_for_a_pause_is_heeded_within_reason(
    server: Server, spool: Spool, token: Path, wish: str, wait: float
) -> None:
    put(spool, 10)
    server.answers = [(429, {"Retry-After": wish})]
    assert shipper(spool, server.url, token).step() == wait
    assert len(spool) == 1


@pytest.mark.parametrize("status", [401, 403])
def test_a_refused_token_keeps_the_spool_and_is_said_once(
    server: Server, spool: Spool, token: Path, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    put(spool, 10)
    server.answers = [(status, {})] * 2
    ship = shipper(spool, server.url, token)
    assert [ship.step(), ship.step()] == [30, 30]
    assert len(spool) == 1
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
    assert len(spool) == 0


@pytest.mark.parametrize("status", [413, 422])
def test_a_batch_refused_for_good_is_set_aside_and_the_next_goes_on(
    server: Server, spool: Spool, token: Path, tmp_path: Path, status: int
) -> None:
    put(spool, 10, filler=1)
    put(spool, 20, filler=2)
    server.answers = [(status, {"X-Text": "odd"})]
    ship = shipper(spool, server.url, token)
    while ship.step() is not None:
        pass
    assert server.bodies == [batch(filler=2), batch(filler=1)]
    assert len(list((tmp_path / "spool/refused").iterdir())) == 1
    assert spool.take_gaps() == [Gap(10.0, 20.0, f"refused by server: {status} odd")]


def test_redirects_are_not_followed(server: Server, spool: Spool, token: Path) -> None:
    put(spool, 10)
    server.answers = [(307, {"Location": f"{server.url}/elsewhere"})]
    assert shipper(spool, server.url, token).step() == 1
    assert server.paths == ["/api/v1/ingest"]
    assert len(spool) == 1


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
    assert len(spool) == 1


def test_the_end_of_the_agent_waits_for_a_last_send(
    server: Server, spool: Spool, token: Path
) -> None:
    ship = shipper(spool, server.url, token)
    ship.start()
    for end in (10, 20, 30):
        put(spool, end)
    ship.finish(10.0)
    assert len(server.bodies) == 3
    assert len(spool) == 0


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
    assert len(spool) == 1


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o622])
def test_a_token_that_others_may_read_is_refused(token: Path, mode: int) -> None:
    token.chmod(mode)
    with pytest.raises(TokenError, match="chmod 600"):
        read_token(token)


@pytest.mark.parametrize("text", ["", "a\nb", "a\x00b", "ä"])
def test_a_file_that_holds_no_token_is_refused(token: Path, text: str) -> None:
    token.write_text(text)
    with pytest.raises(TokenError, match="holds no token"):
        read_token(token)


@pytest.mark.parametrize("url", ["server:8080", "ftp://server", "http://", ""])
def test_what_is_no_url_is_refused(url: str, token: Path) -> None:
    with pytest.raises(ValueError, match="no http or https URL"):
        Connection(url, token)
