"""Runs and allocations follow the scheduler's word, and nothing else."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from flopwatch_server.access.principal import Principal
from flopwatch_server.database.engine import Database
from flopwatch_server.fleet.models import Device, Node, Placement
from flopwatch_server.fleet.repository.clusters import ensure_cluster
from flopwatch_server.house import NotFound
from flopwatch_server.jobs import service
from flopwatch_server.jobs.models import Allocation, Evidence, Run
from flopwatch_server.scheduler.records import JobRecord, NodeGpus

T0 = datetime(2026, 3, 12, 9, 0, tzinfo=UTC)
ADMIN = Principal("ada", "admin")
TWO_NODES = (
    NodeGpus("g1", 2, (0, 1), "h100"),
    NodeGpus("g2", 1, (7,), "h100"),
)
RUNNING = JobRecord(
    raw_job_id=481340, submitted_at=T0, state="RUNNING", name="llama", user="mchen", account="nlp",
    display_id="481340", started_at=T0 + timedelta(minutes=1), gpu_count=3, node_count=2,
    nodes=("g1", "g2"), gpus=TWO_NODES, time_limit_seconds=86400,
)  # fmt: skip


def at(minutes: float) -> datetime:
    return T0 + timedelta(minutes=minutes)


def tell(session: Session, *jobs: JobRecord, minute: float, complete: bool = True) -> None:
    cluster_id = ensure_cluster(session, "granite", T0)
    service.apply_records(
        session, cluster_id, jobs, (), at(minute), complete=complete, source="slurm"
    )


def held(session: Session) -> list[tuple[str, int | None, datetime, datetime | None]]:
    rows = session.execute(
        select(Node.name, Allocation.gres_ordinal, Allocation.valid_from, Allocation.valid_to)
        .join(Node, Node.id == Allocation.node_id)
        .order_by(Node.name, Allocation.gres_ordinal, Allocation.valid_from)
    )
    return [tuple(row) for row in rows]


def one_run(session: Session) -> Run:
    session.expire_all()
    return session.scalars(select(Run)).one()


def test_a_running_job_holds_each_gpu_from_its_start(database: Database) -> None:
    with database.session() as session:
        tell(session, RUNNING, minute=2)
        assert held(session) == [
            ("g1", 0, at(1), None), ("g1", 1, at(1), None), ("g2", 7, at(1), None),
        ]  # fmt: skip


def test_telling_the_same_twice_changes_nothing(database: Database) -> None:
    with database.session() as session:
        tell(session, RUNNING, minute=2)
        before = held(session)
        tell(session, RUNNING, RUNNING, minute=3)
        assert held(session) == before


def test_gpus_once_told_stay_when_the_queue_tells_them_no_more(database: Database) -> None:
    with database.session() as session:
        tell(session, RUNNING, minute=2)
        tell(session, replace(RUNNING, gpus=None, gpu_count=None), minute=3)
        assert len(held(session)) == 3
        assert one_run(session).gpu_count == 3


def test_a_vanished_run_ends_its_allocations_but_is_not_closed_by_a_guess(
    database: Database,
) -> None:
    with database.session() as session:
        tell(session, RUNNING, minute=2)
        tell(session, minute=10)
        run = one_run(session)
        assert (run.state, run.ended_at, run.vanished_at) == ("RUNNING", None, at(10))
        assert {row[3] for row in held(session)} == {at(10)}


def test_the_end_that_a_running_job_is_expected_to_have_does_not_end_it(
    database: Database,
) -> None:
    with database.session() as session:
        tell(session, replace(RUNNING, ended_at=at(1440)), minute=2)
        assert one_run(session).ended_at is None
        assert {row[3] for row in held(session)} == {None}


def test_a_run_that_comes_back_into_the_queue_goes_on(database: Database) -> None:
    with database.session() as session:
        tell(session, RUNNING, minute=2)
        tell(session, minute=3)
        tell(session, RUNNING, minute=4)
        assert one_run(session).vanished_at is None
        assert {row[3] for row in held(session)} == {None}


def test_accounting_closes_with_the_true_end(database: Database) -> None:
    done = replace(
        RUNNING, state="COMPLETED", ended_at=at(9), gpus=None, gpu_count=None, exit_code="0:0"
    )
    with database.session() as session:
        tell(session, RUNNING, minute=2)
        tell(session, minute=10)
        tell(session, done, minute=11, complete=False)
        run = one_run(session)
        assert (run.state, run.ended_at, run.exit_code) == ("COMPLETED", at(9), "0:0")
        assert run.gpu_count == 3
        assert {row[3] for row in held(session)} == {at(9)}


def test_accounting_takes_nothing_away_that_only_the_queue_knows(database: Database) -> None:
    told = replace(RUNNING, name="schöner Lauf", restarts=2)
    done = replace(
        RUNNING, state="COMPLETED", ended_at=at(9), name="sch?ner Lauf", suspended_seconds=30
    )
    with database.session() as session:
        tell(session, told, minute=2)
        tell(session, done, minute=11, complete=False)
        run = one_run(session)
        assert (run.name, run.restarts, run.suspended_seconds) == ("schöner Lauf", 2, 30)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("started_at", at(1)), ("gpu_count", 3), ("node_count", 2), ("exit_code", "9:0"),
        ("time_limit_seconds", 86400), ("suspended_seconds", 30), ("restarts", 2),
    ],
)  # fmt: skip
def test_what_is_told_no_more_stays(database: Database, name: str, value: object) -> None:
    done = replace(RUNNING, state="FAILED", ended_at=at(9), **{name: value})
    with database.session() as session:
        tell(session, done, minute=10, complete=False)
        tell(session, replace(done, **{name: None}), minute=11, complete=False)
        assert getattr(one_run(session), name) == value


def test_a_queue_read_before_the_end_does_not_reopen_a_run(database: Database) -> None:
    with database.session() as session:
        tell(session, replace(RUNNING, state="FAILED", ended_at=at(5)), minute=6, complete=False)
        tell(session, RUNNING, minute=6)
        run = one_run(session)
        assert (run.state, run.ended_at) == ("FAILED", at(5))
        assert {row[3] for row in held(session)} == {at(5)}


def test_a_requeue_is_another_run_of_the_same_job(database: Database) -> None:
    again = replace(
        RUNNING, submitted_at=at(20), started_at=at(21), restarts=1, gpus=(NodeGpus("g1", 1, (5,)),)
    )
    with database.session() as session:
        tell(session, RUNNING, minute=2)
        tell(session, replace(RUNNING, state="NODE_FAIL", ended_at=at(19)), minute=19)
        tell(session, again, minute=22)
        assert held(session) == [
            ("g1", 0, at(1), at(19)), ("g1", 1, at(1), at(19)), ("g1", 5, at(21), None),
            ("g2", 7, at(1), at(19)),
        ]  # fmt: skip
        found = service.find_run(session, ADMIN, "granite", "481340", at(22))
        assert (found.submitted_at, found.restarts) == (at(20), 1)


def test_a_run_that_accounting_calls_requeued_is_over(database: Database) -> None:
    """As Slurm 22.05 and 24.11 tell it: the job waits again under another time of submission."""
    waiting = replace(RUNNING, submitted_at=at(20), state="PENDING", started_at=None, gpus=None)
    over = replace(RUNNING, state="REQUEUED", ended_at=at(19), gpus=None)
    with database.session() as session:
        tell(session, RUNNING, minute=2)
        tell(session, waiting, minute=20)
        for minute in (21, 23):
            tell(session, over, minute=minute, complete=False)
            tell(session, waiting, minute=minute + 1)
        first, second = session.scalars(select(Run).order_by(Run.submitted_at)).all()
        assert (first.state, first.started_at, first.ended_at) == ("REQUEUED", at(1), at(19))
        assert first.vanished_at is None
        assert (second.state, second.ended_at) == ("PENDING", None)
        assert {row[3] for row in held(session)} == {at(19)}


def test_where_only_a_count_is_told_gpus_are_held_without_an_ordinal(database: Database) -> None:
    with database.session() as session:
        tell(session, replace(RUNNING, gpus=(NodeGpus("g1", 2, None),)), minute=2)
        assert held(session) == [("g1", None, at(1), None)] * 2


def test_gpus_are_asked_for_once_for_every_start(database: Database) -> None:
    pending = replace(RUNNING, raw_job_id=7, state="PENDING", started_at=None, gpus=None)
    other = replace(RUNNING, raw_job_id=8, gpus=None)
    without = replace(RUNNING, raw_job_id=9, gpus=None, gpu_count=0)
    with database.session() as session:
        cluster_id = ensure_cluster(session, "granite", T0)
        queue = (RUNNING, pending, other, without)
        assert service.starts_without_gpus(session, cluster_id, queue) == [RUNNING, other]
        tell(session, *queue, minute=2)
        assert service.starts_without_gpus(session, cluster_id, queue) == [other]


def _place(session: Session, node: str, minors: dict[str, int]) -> dict[str, int]:
    """Put devices into a node; the ordinal is the place in the order of minors."""
    cluster_id = ensure_cluster(session, "granite", T0)
    node_id = session.scalar(select(Node.id).where(Node.name == node))
    if node_id is None:
        new = Node(cluster_id=cluster_id, name=node, aliases=[], partitions=[])
        session.add(new)
        session.flush()
        node_id = new.id
    ids = {}
    for ordinal, (uuid, minor) in enumerate(sorted(minors.items(), key=lambda item: item[1])):
        device = Device(uuid=uuid, instance="", profile="", valid_from=T0, model="NVIDIA H200")
        session.add(device)
        session.flush()
        ids[uuid] = device.id
        session.add(
            Placement(device_id=device.id, valid_from=T0, node_id=node_id, minor=minor,
                      gres_ordinal=ordinal, ordinal_source="minor order")
        )  # fmt: skip
    session.flush()
    return ids


def test_an_ordinal_leads_to_the_device_with_that_place_in_the_order_of_minors(
    database: Database,
) -> None:
    with database.session() as session:
        devices = _place(session, "g1", {"GPU-a": 5, "GPU-b": 4})
        tell(session, RUNNING, minute=2)
        found = session.execute(
            select(Allocation.gres_ordinal, Allocation.device_id, Allocation.confidence)
            .join(Node, Node.id == Allocation.node_id)
            .order_by(Node.name, Allocation.gres_ordinal)
        ).all()
        assert [tuple(row) for row in found] == [
            (0, devices["GPU-b"], "likely"), (1, devices["GPU-a"], "likely"), (7, None, "unknown"),
        ]  # fmt: skip


def test_an_allocation_waits_for_an_agent_that_reports_later(database: Database) -> None:
    with database.session() as session:
        tell(session, RUNNING, minute=2)
        devices = _place(session, "g1", {"GPU-a": 0, "GPU-b": 1})
        tell(session, RUNNING, minute=3)
        found = session.scalars(select(Allocation.device_id).order_by(Allocation.id)).all()
        assert set(found) == {*devices.values(), None}


@pytest.mark.parametrize(("raw_job_id", "confidence"), [(481340, "certain"), (999, "disputed")])
def test_a_process_of_the_same_job_makes_the_device_certain_and_a_strangers_disputed(
    database: Database, raw_job_id: int, confidence: str
) -> None:
    with database.session() as session:
        devices = _place(session, "g1", {"GPU-a": 0})
        stranger = replace(RUNNING, raw_job_id=999, gpus=())
        tell(session, RUNNING, stranger, minute=2)
        node_id = session.scalars(select(Node.id).where(Node.name == "g1")).one()
        session.add(
            Evidence(node_id=node_id, kind="cgroup", raw_job_id=raw_job_id, pid=77,
                     device_id=devices["GPU-a"], uid=1000, first_seen_at=at(2), last_seen_at=at(3))
        )  # fmt: skip
        tell(session, RUNNING, stranger, minute=4)
        session.expire_all()
        held_device = select(Allocation).where(Allocation.device_id == devices["GPU-a"])
        assert session.scalars(held_device).one().confidence == confidence


@pytest.mark.parametrize("other", ["node", "device", "time"])
def test_a_process_elsewhere_or_before_the_start_tells_nothing(
    database: Database, other: str
) -> None:
    with database.session() as session:
        device = _place(session, "g1", {"GPU-a": 0})["GPU-a"]
        _place(session, "g2", {"GPU-b": 0})
        tell(session, replace(RUNNING, gpus=(NodeGpus("g1", 1, (0,)),)), minute=2)
        seen_on = "g2" if other == "node" else "g1"
        node_id = session.scalars(select(Node.id).where(Node.name == seen_on)).one()
        seen_at = at(0.5) if other == "time" else at(3)
        session.add(
            Evidence(node_id=node_id, kind="cgroup", raw_job_id=481340,
                     device_id=None if other == "device" else device, pid=77, uid=1000,
                     first_seen_at=seen_at, last_seen_at=seen_at)
        )  # fmt: skip
        tell(session, replace(RUNNING, gpus=None), minute=4)
        session.expire_all()
        assert session.scalars(select(Allocation.confidence)).one() == "likely"


def test_free_text_is_carried_as_it_is_but_for_what_a_database_cannot_hold(
    database: Database,
) -> None:
    name = "a|b\n<script>\x1f\u202e\0\ud800end"
    with database.session() as session:
        tell(session, replace(RUNNING, name=name), minute=2)
        assert one_run(session).name == "a|b\n<script>\x1f\u202e?end"


@pytest.mark.parametrize(
    ("principal", "sees"),
    [
        (Principal("ada", "admin"), True),
        (Principal("sue", "support"), True),
        (Principal("mchen", "researcher"), True),
        (Principal("eve", "researcher"), False),
        (Principal("max", "manager", frozenset({"nlp"})), True),
        (Principal("max", "manager", frozenset({"vision"})), False),
        (Principal("max", "manager"), False),
    ],
)
def test_a_run_that_may_not_be_seen_does_not_exist(
    database: Database, principal: Principal, sees: bool
) -> None:
    with database.session() as session:
        tell(session, RUNNING, minute=2)
        if sees:
            found = service.find_run(session, principal, "granite", "481340", at(3))
            assert (found.user, found.nodes, found.elapsed_seconds) == ("mchen", ["g1", "g2"], 120)
        else:
            with pytest.raises(NotFound):
                service.find_run(session, principal, "granite", "481340", at(3))


def test_a_person_without_a_name_does_not_own_the_runs_without_a_user(database: Database) -> None:
    with database.session() as session:
        tell(session, replace(RUNNING, user=""), minute=2)
        with pytest.raises(NotFound):
            service.find_run(session, Principal("", "researcher"), "granite", "481340", at(3))


@pytest.mark.parametrize("job_id", ["9" * 30, "-1", "1e3", "", "²", "481340 "])
def test_an_id_that_is_none_finds_nothing(database: Database, job_id: str) -> None:
    with database.session() as session:
        tell(session, RUNNING, minute=2)
        with pytest.raises(NotFound):
            service.find_run(session, ADMIN, "granite", job_id, at(3))


def test_a_start_that_is_told_a_little_otherwise_holds_no_gpu_twice(database: Database) -> None:
    with database.session() as session:
        tell(session, RUNNING, minute=2)
        before = held(session)
        tell(session, replace(RUNNING, started_at=at(1.01)), minute=3)
        tell(session, replace(RUNNING, started_at=at(0.99)), minute=4)
        assert held(session) == before
        tell(session, replace(RUNNING, state="COMPLETED", ended_at=at(9)), minute=9)
        tell(session, replace(RUNNING, state="COMPLETED", ended_at=at(8), started_at=T0), minute=10)
        assert held(session) == [(*row[:3], at(8)) for row in before]


def test_a_run_that_gives_gpus_back_and_takes_others_holds_what_is_told(database: Database) -> None:
    with database.session() as session:
        tell(session, RUNNING, minute=2)
        tell(session, replace(RUNNING, gpus=(NodeGpus("g1", 2, (1, 2)),)), minute=5)
        assert held(session) == [
            ("g1", 0, at(1), at(5)), ("g1", 1, at(1), None), ("g1", 2, at(5), None),
            ("g2", 7, at(1), at(5)),
        ]  # fmt: skip
        tell(session, minute=6)
        tell(session, replace(RUNNING, gpus=None), minute=7)
        assert [row[3] for row in held(session)] == [at(5), None, None, at(5)]
        tell(session, replace(RUNNING, gpus=()), minute=8)
        assert [row[3] for row in held(session)] == [at(5), at(8), at(8), at(5)]


def test_a_run_that_waits_again_holds_nothing_until_it_starts_anew(database: Database) -> None:
    one = replace(RUNNING, gpus=(NodeGpus("g1", 1, (0,)),))
    with database.session() as session:
        tell(session, one, minute=2)
        tell(session, replace(one, state="PENDING", started_at=None, gpus=None), minute=5)
        assert held(session) == [("g1", 0, at(1), at(5))]
        assert one_run(session).started_at is None
        tell(session, replace(one, started_at=at(7)), minute=8)
        assert held(session) == [("g1", 0, at(1), at(5)), ("g1", 0, at(7), None)]
        tell(session, replace(one, state="PENDING", started_at=None, gpus=None), minute=9)
        tell(session, replace(one, started_at=at(7)), minute=10)
        assert held(session)[1:] == [("g1", 0, at(7), at(9)), ("g1", 0, at(9), None)]


@pytest.mark.parametrize(("told", "resolved"), [(None, True), (1, True), (2, False), (0, False)])
def test_ordinals_of_a_node_whose_gpus_are_not_as_many_as_told_lead_nowhere(
    database: Database, told: int | None, resolved: bool
) -> None:
    """With File=/dev/nvidia[2-3], or a GPU that is not there, position 0 is any of them."""
    one = replace(RUNNING, gpus=(NodeGpus("g1", 1, (0,)),))
    with database.session() as session:
        devices = _place(session, "g1", {"GPU-a": 0})
        session.scalars(select(Node)).one().gpu_count = told
        tell(session, one, minute=2)
        found = session.scalars(select(Allocation.device_id)).one()
        assert found == (devices["GPU-a"] if resolved else None)
