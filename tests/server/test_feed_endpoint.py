"""POST /feed against the real database: all or nothing, and account is kept of either."""

import json
import math
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from fastapi import FastAPI
from sqlalchemy import select
from starlette.testclient import TestClient

from flopwatch_server.access import tokens
from flopwatch_server.access.guard import Guard
from flopwatch_server.fleet.models import Device, Node, Placement
from flopwatch_server.fleet.repository.clusters import ensure_cluster
from flopwatch_server.house import House
from flopwatch_server.jobs import feed_endpoints
from flopwatch_server.jobs.models import Allocation, Run
from flopwatch_server.people.models import Account, Association, Share
from flopwatch_server.scheduler.models import Reservation, SchedulerSource

NOW = datetime(2026, 3, 12, 9, 0, tzinfo=UTC)
SNAPSHOT = {"kind": "snapshot", "time": NOW.timestamp(), "complete": True}
RUN: dict[str, Any] = {
    "kind": "run", "raw_job_id": 7_000_000_001, "submitted_at": "2026-03-12T08:00:00Z",
    "state": "RUNNING", "name": "nul\0 half \ud800", "user": "mchen", "account": "nlp",
    "started_at": "2026-03-12T08:01:00Z",
    "gpus": [{"node": "g1", "count": 2, "ordinals": [0, 1], "type": "h100"}],
}  # fmt: skip
NODE = {"kind": "node", "name": "g1", "state": "MIXED", "gpu_count": 8}
SHARE = {"kind": "share", "account": "nlp", "user": "mchen", "raw_shares": 10, "raw_usage": 500,
         "level_fs": "Infinity"}  # fmt: skip


class Sender:
    """Posts to a server as a scheduler's script does."""

    def __init__(self, http: TestClient, house: House) -> None:
        self._http = http
        self._house = house
        with house.database.session() as session:
            cluster_id = ensure_cluster(session, "granite", NOW)
            self.feed_token = tokens.create(session, "feed", cluster_id, None, NOW)
            self.node_token = tokens.create(session, "node", cluster_id, None, NOW)

    def post(
        self,
        *lines: dict[str, Any],
        token: str | None = None,
        content_type: str = "application/x-ndjson",
    ) -> tuple[int, Any]:
        """Status and JSON of the answer to these lines."""
        answer = self._http.post(
            "/api/v1/feed",
            content="\n".join(json.dumps(line) for line in lines),
            headers={
                "content-type": content_type,
                "authorization": f"Bearer {token or self.feed_token}",
            },
        )
        return answer.status_code, answer.json()

    def rows(self, *columns: Any) -> list[tuple[Any, ...]]:
        """These columns as they stand in the database."""
        with self._house.database.session() as session:
            return [tuple(row) for row in session.execute(select(*columns))]

    def source(self) -> SchedulerSource:
        """What is kept of the conversation."""
        with self._house.database.session() as session:
            return session.scalars(select(SchedulerSource)).one()


@pytest.fixture
def sender(house: House) -> Iterator[Sender]:
    """The feed's endpoint behind the real guard, at NOW."""
    house.clock = lambda: NOW
    app = FastAPI()
    app.state.house = house
    app.include_router(feed_endpoints.router, prefix="/api/v1")
    app.add_middleware(Guard, database=house.database, settings=house.settings, clock=house.clock)
    with TestClient(app, base_url="http://localhost") as http:
        yield Sender(http, house)


def test_a_body_brings_runs_gpus_and_nodes(sender: Sender) -> None:
    assert sender.post(SNAPSHOT, RUN, NODE) == (
        200, {"runs": 1, "nodes": 1, "shares": 0},
    )  # fmt: skip
    assert sender.rows(Run.raw_job_id, Run.state, Run.gpu_count) == [(7_000_000_001, "RUNNING", 2)]
    assert sender.rows(Allocation.gres_ordinal, Allocation.source) == [(0, "feed"), (1, "feed")]
    assert sender.rows(Node.name, Node.scheduler_state) == [("g1", "MIXED")]
    source = sender.source()
    assert (source.kind, source.last_success_at, source.error) == ("feed", NOW, None)


def test_one_bad_line_refuses_the_whole_body_and_is_kept_as_the_error(sender: Sender) -> None:
    status, answer = sender.post(SNAPSHOT, RUN, {**RUN, "raw_job_id": 8, "started_at": "soon"})
    assert status == 422
    assert answer == {
        "detail": [
            {"line": 3, "field": "$.started_at", "problem": "Invalid RFC3339 encoded datetime"}
        ]
    }
    assert sender.rows(Run.id) == []
    source = sender.source()
    assert source.last_success_at is None
    assert source.error == "line 3, $.started_at: Invalid RFC3339 encoded datetime"
    assert source.error_since == NOW


def test_a_run_that_a_complete_snapshot_leaves_out_has_left_the_queue(sender: Sender) -> None:
    sender.post(SNAPSHOT, RUN)
    sender.post({**RUN, "raw_job_id": 9})
    assert sender.rows(Run.vanished_at) == [(None,), (None,)]
    sender.post(SNAPSHOT, {**RUN, "raw_job_id": 9})
    assert set(sender.rows(Run.raw_job_id, Run.vanished_at)) == {(7_000_000_001, NOW), (9, None)}


def test_a_run_ends_with_the_state_and_time_that_are_told(sender: Sender) -> None:
    sender.post(RUN)
    end = NOW - timedelta(minutes=5)
    sender.post({**RUN, "state": "TIMEOUT", "ended_at": end.isoformat(), "exit_code": "0:15"})
    assert sender.rows(Run.state, Run.ended_at, Run.exit_code) == [("TIMEOUT", end, "0:15")]
    assert sender.rows(Allocation.valid_to) == [(end,), (end,)]


@pytest.mark.parametrize(
    ("source", "confidence"), [("minor order", "assumed"), ("gres.conf", "likely")]
)
def test_a_run_told_after_its_end_is_thought_to_have_held_the_device_at_its_ordinal(
    sender: Sender, house: House, source: str, confidence: str
) -> None:
    sender.post({**NODE, "gpu_count": 1})
    with house.database.session() as session:
        node_id = session.scalars(select(Node.id)).one()
        device = Device(
            uuid="GPU-1", instance="", profile="", valid_from=NOW, model="NVIDIA H100 80GB HBM3"
        )
        session.add(device)
        session.flush()
        session.add(
            Placement(
                device_id=device.id, valid_from=NOW, node_id=node_id, minor=0, gres_ordinal=0,
                ordinal_source=source,
            )
        )  # fmt: skip
        device_id = device.id
    sender.post({**RUN, "state": "COMPLETED", "ended_at": "2026-03-12T08:30:00Z"})
    held = sender.rows(Allocation.gres_ordinal, Allocation.device_id, Allocation.confidence)
    assert set(held) == {(0, device_id, confidence), (1, None, "unknown")}


def test_hostile_text_in_every_free_field_is_stored(sender: Sender) -> None:
    text = "nul\0 half \ud800 <b>|\n"
    told = {**RUN, "user": text, "account": text, "partition": text, "qos": text, "reason": text}
    share = {**SHARE, "account": text, "user": text, "partition": text}
    assert sender.post(told, {**NODE, "reason": text}, share)[0] == 200


def test_a_body_brings_shares(sender: Sender) -> None:
    assert sender.post(SHARE, {**SHARE, "user": None})[1] == {"runs": 0, "nodes": 0, "shares": 2}
    told = sender.rows(Association.account, Association.user_name, Association.raw_shares)
    assert told == [("nlp", "mchen", 10), ("nlp", None, 10)]
    assert sender.rows(Account.name) == [("nlp",)]
    assert sender.rows(Share.at, Share.raw_usage, Share.level_fs) == [(NOW, 500, math.inf)] * 2
    # Shares alone do not tell who holds GPUs.
    kinds = sender.rows(SchedulerSource.kind, SchedulerSource.last_success_at)
    assert kinds == [("feed shares", NOW)]


def test_after_a_body_of_shares_that_was_refused_another_one_mends_it(sender: Sender) -> None:
    sender.post({**SHARE, "raw_shares": -1})
    columns = SchedulerSource.kind, SchedulerSource.error.is_(None), SchedulerSource.last_success_at
    assert sender.rows(*columns) == [("feed", False, None)]
    sender.post(SHARE)
    assert sorted(sender.rows(*columns)) == [("feed", True, None), ("feed shares", True, NOW)]


def test_a_complete_snapshot_tells_all_reservations(sender: Sender) -> None:
    told = {"kind": "reservation", "name": "course", "starts_at": NOW.timestamp() - 60,
            "ends_at": NOW.timestamp() + 60, "nodes": ["g1"]}  # fmt: skip
    columns = Reservation.name, Reservation.valid_to
    sender.post(SNAPSHOT, RUN, told)
    sender.post({**SNAPSHOT, "complete": False})
    assert sender.rows(*columns) == [("course", NOW + timedelta(seconds=60))]
    sender.post(SNAPSHOT, RUN)
    assert sender.rows(*columns) == [("course", NOW)]


def gone(sender: Sender) -> dict[Any, Any]:
    return dict(sender.rows(Association.user_name, Association.gone_at))


def test_shares_that_a_complete_snapshot_leaves_out_are_gone_if_it_has_any(sender: Sender) -> None:
    sender.post(SHARE, {**SHARE, "user": "bob"})
    sender.post({**SHARE, "user": "anna"})
    sender.post(SNAPSHOT, RUN)
    assert gone(sender) == {"mchen": None, "bob": None, "anna": None}
    sender.post(SNAPSHOT, {**SHARE, "user": "bob"})
    assert gone(sender) == {"mchen": NOW, "bob": None, "anna": NOW}
    sender.post(SHARE)
    assert gone(sender) == {"mchen": None, "bob": None, "anna": NOW}


def test_a_bad_line_keeps_shares_out_too(sender: Sender) -> None:
    assert sender.post(SHARE, {**SHARE, "user": "bob", "fair_share": 2})[0] == 422
    assert sender.rows(Association.id) == []
    assert sender.source().error == "line 2, $.fair_share: Expected `float` <= 1.0"


def test_a_body_without_shares_says_nothing_of_them(sender: Sender) -> None:
    sender.post(SNAPSHOT, RUN)
    assert sender.rows(SchedulerSource.kind) == [("feed",)]


def test_a_node_token_does_not_open_the_feed(sender: Sender) -> None:
    status, _ = sender.post(SNAPSHOT, token=sender.node_token)
    assert status == 403


def test_an_unknown_token_is_refused(sender: Sender) -> None:
    assert sender.post(SNAPSHOT, token="fpf_made-up")[0] == 401


def test_a_body_of_another_type_is_refused(sender: Sender) -> None:
    assert sender.post(SNAPSHOT, content_type="application/json")[0] == 415


@pytest.mark.parametrize("text", ["nul\0", "half \ud800"])
def test_a_refusal_that_quotes_hostile_text_is_still_a_refusal(sender: Sender, text: str) -> None:
    for told in ({**RUN, text: 1}, {**RUN, "submitted_at": text}, {**RUN, "kind": text}):
        status, answer = sender.post(told)
        assert status == 422
        assert sender.source().error == "line 1, {field}: {problem}".format(**answer["detail"][0])
