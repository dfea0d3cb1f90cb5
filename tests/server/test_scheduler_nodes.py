"""What the scheduler says of nodes is kept with them, and over time; so are its outages."""

from datetime import UTC, datetime, timedelta

from sqlalchemy import select

from flopwatch_server.database.engine import Database
from flopwatch_server.fleet.models import Node
from flopwatch_server.fleet.repository.clusters import ensure_cluster
from flopwatch_server.jobs import service
from flopwatch_server.scheduler.models import NodeState, SchedulerOutage
from flopwatch_server.scheduler.records import NodeRecord
from flopwatch_server.scheduler.repository import sources

T0 = datetime(2026, 3, 12, 9, 0, tzinfo=UTC)


def test_nodes_carry_the_schedulers_word(database: Database) -> None:
    record = NodeRecord("g1", "IDLE+DRAIN", "fan", 8, "h100", ("h100", "debug"))
    with database.session() as session:
        cluster_id = ensure_cluster(session, "granite", T0)
        service.apply_records(session, cluster_id, (), (record,), T0, complete=True, source="slurm")
        node = session.scalars(select(Node)).one()
        assert (node.scheduler_state, node.scheduler_reason) == ("IDLE+DRAIN", "fan")
        assert (node.gpu_count, node.partitions) == (8, ["h100", "debug"])


def test_what_nodes_did_for_the_queue_is_kept_over_time(database: Database) -> None:
    told = ("IDLE", "MIXED", "MIXED+DRAIN", "IDLE+DRAIN", "DOWN+DRAIN", "IDLE", "ALLOCATED")
    with database.session() as session:
        cluster_id = ensure_cluster(session, "granite", T0)
        for minute, state in enumerate(told):
            records = (NodeRecord("g1", state), NodeRecord("g2", "IDLE"))
            now = T0 + timedelta(minutes=minute)
            service.apply_records(
                session, cluster_id, (), records, now, complete=True, source="slurm"
            )
        rows = session.execute(
            select(Node.name, NodeState.service, NodeState.valid_from, NodeState.valid_to)
            .join(Node, Node.id == NodeState.node_id)
            .order_by(Node.name, NodeState.valid_from)
        )
        at = [T0 + timedelta(minutes=minute) for minute in range(6)]
        assert [tuple(row) for row in rows] == [
            ("g1", "serving", at[0], at[2]),
            ("g1", "drained", at[2], at[4]),
            ("g1", "down", at[4], at[5]),
            ("g1", "serving", at[5], None),
            ("g2", "serving", at[0], None),
        ]


def told(database: Database, *polls: tuple[int, dict[str, str]]) -> list[tuple[object, ...]]:
    """What is kept of nodes that are told at these minutes, each time all of them."""
    with database.session() as session:
        cluster_id = ensure_cluster(session, "granite", T0)
        for minute, states in polls:
            records = [NodeRecord(name, state) for name, state in states.items()]
            now = T0 + timedelta(minutes=minute)
            service.apply_records(
                session, cluster_id, (), records, now, complete=True, source="slurm",
                all_nodes=True,
            )  # fmt: skip
        rows = session.execute(
            select(Node.name, NodeState.service, NodeState.valid_from, NodeState.valid_to)
            .join(Node, Node.id == NodeState.node_id)
            .order_by(Node.name, NodeState.valid_from)
        )
        return [
            (name, state, (start - T0).total_seconds() / 60,
             end and (end - T0).total_seconds() / 60)
            for name, state, start, end in rows
        ]  # fmt: skip


def test_a_clock_that_steps_back_takes_back_what_was_noted_for_later(database: Database) -> None:
    polls = [(0, {"g1": "IDLE"}), (60, {"g1": "DOWN"}), (70, {"g1": "IDLE"}), (5, {"g1": "DRAIN"})]
    assert told(database, *polls) == [
        ("g1", "serving", 0, 5),
        ("g1", "drained", 5, None),
    ]


def test_a_node_that_is_told_no_more_is_there_for_nobody_knows_what(database: Database) -> None:
    polls = [(0, {"g1": "IDLE", "g2": "IDLE"}), (1, {"g1": "IDLE"}), (2, {}), (3, {"g1": "IDLE"})]
    assert told(database, *polls) == [
        ("g1", "serving", 0, None),
        ("g2", "serving", 0, 1),
        ("g2", "unknown", 1, None),
    ]
    with database.session() as session:
        states = session.execute(select(Node.name, Node.scheduler_state).order_by(Node.name))
        assert [tuple(row) for row in states] == [("g1", "IDLE"), ("g2", None)]


def outages(database: Database, *events: tuple[int, str]) -> list[tuple[float, float]]:
    """What is kept of calls that succeeded or failed at these seconds."""
    with database.session() as session:
        cluster_id = ensure_cluster(session, "granite", T0)
        for second, outcome in events:
            now = T0 + timedelta(seconds=second)
            if outcome == "ok":
                sources.succeeded(session, cluster_id, "slurm", now)
            else:
                sources.failed(session, cluster_id, "slurm", outcome, now)
        rows = session.execute(select(SchedulerOutage.valid_from, SchedulerOutage.valid_to))
        return [((start - T0).total_seconds(), (end - T0).total_seconds()) for start, end in rows]


def test_a_source_that_failed_had_an_outage_from_its_last_success_to_the_next(
    database: Database,
) -> None:
    events = [(0, "ok"), (30, "ok"), (60, "late"), (90, "late"), (150, "ok"), (180, "ok")]
    assert outages(database, *events) == [(30, 150)]


def test_a_source_that_was_not_asked_for_long_had_an_outage(database: Database) -> None:
    """Five minutes are the longest rest that it may have without any."""
    assert outages(database, (0, "ok"), (300, "ok"), (700, "ok")) == [(300, 700)]


def test_before_its_first_success_a_source_has_no_outage(database: Database) -> None:
    assert outages(database, (0, "late"), (30, "late"), (60, "ok")) == []
