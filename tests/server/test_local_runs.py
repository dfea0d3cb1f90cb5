"""Runs of machines without a scheduler: from what agents see to what pages show."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from flopwatch import wire
from flopwatch_server.database.engine import Database
from flopwatch_server.house import House
from flopwatch_server.jobs.service import apply_records
from flopwatch_server.work.schedule import close_silent_runs
from tests.lab.ingest import NOW, NOW_SECONDS, IngestClient, batch, cluster, device, query
from tests.server.world import World

STARTED = NOW_SECONDS - 1000.25
PID = 4242
JOB_ID = wire.local_job_id(PID, STARTED)


def sighting(seconds: float = 0, **changes: Any) -> wire.LocalRun:
    """alice's train.py on the first GPU, seen so many seconds after NOW."""
    fields: dict[str, Any] = {
        "pid": PID, "started_at": STARTED, "uid": 1000, "user": "alice", "name": "train.py",
        "devices": [0], "last_seen": NOW_SECONDS + float(seconds),
    }  # fmt: skip
    return wire.LocalRun(**fields | changes)


def tell(agent: IngestClient, *runs: wire.LocalRun, **changes: Any) -> None:
    answer = agent.post(batch(local_runs=list(runs), devices=[device(0), device(1)], **changes))
    assert answer.status_code == 200, answer.text


def runs(agent: IngestClient) -> list[tuple[Any, ...]]:
    """(pid, state, ended, left) of each run, in seconds after NOW."""
    rows = query(
        agent.database,
        "SELECT display_id, state, ended_at, vanished_at FROM runs ORDER BY raw_job_id",
    )
    return [(pid, state, _offset(ended), _offset(gone)) for pid, state, ended, gone in rows]


def held(agent: IngestClient) -> list[tuple[Any, ...]]:
    """(pid, ordinal, from, to, shared) of each allocation, in seconds after NOW."""
    rows = query(
        agent.database,
        "SELECT display_id, gres_ordinal, valid_from, valid_to, shared FROM allocations"
        " JOIN runs ON runs.id = run_id ORDER BY valid_from, display_id, gres_ordinal",
    )
    return [
        (pid, ordinal, _offset(start), _offset(end), shared)
        for pid, ordinal, start, end, shared in rows
    ]


def _offset(time: datetime | None) -> float | None:
    return None if time is None else (time - NOW).total_seconds()


def test_a_sighting_makes_a_run_that_holds_its_devices(agent: IngestClient) -> None:
    tell(agent, sighting(devices=[0, 1]))
    (run,) = query(
        agent.database,
        "SELECT raw_job_id, display_id, name, user_name, account, partition, state, started_at,"
        " submitted_at, gpu_count, node_count, exit_code, time_limit_seconds, local FROM runs",
    )
    started = datetime.fromtimestamp(STARTED, UTC)
    assert run == (
        JOB_ID, "4242", "train.py", "alice", "", "", "RUNNING", started, started, 2, 1, None, None,
        True,
    )  # fmt: skip
    assert held(agent) == [("4242", 0, 0, None, False), ("4242", 1, 0, None, False)]
    allocated = query(agent.database, "SELECT DISTINCT source, confidence FROM allocations")
    assert allocated == [("local", "certain")]


def test_instances_of_one_gpu_are_held_each_for_itself(agent: IngestClient) -> None:
    instances = [device(0, instance=f"{number}/0", profile="3g.40gb") for number in (1, 2)]
    answer = agent.post(batch(devices=instances, local_runs=[sighting(devices=[0, 1])]))
    assert answer.status_code == 200
    assert len(held(agent)) == 2
    devices = query(agent.database, "SELECT count(DISTINCT device_id) FROM allocations")
    assert devices == [(2,)]


def test_a_device_without_a_minor_is_held_all_the_same(agent: IngestClient) -> None:
    unknown = [device(number, minor=None) for number in (0, 1)]
    answer = agent.post(batch(devices=unknown, local_runs=[sighting(devices=[0, 1])]))
    assert answer.status_code == 200
    assert len(held(agent)) == 2


def test_told_again_it_stays_one_run(agent: IngestClient) -> None:
    for seconds in (0, 10, 20, 20):
        tell(agent, sighting(seconds))
    assert runs(agent) == [("4242", "RUNNING", None, None)]
    assert held(agent) == [("4242", 0, 0, None, False)]


def test_it_ends_when_its_root_has_gone_and_nobody_says_that_it_failed(
    agent: IngestClient,
) -> None:
    tell(agent, sighting())
    tell(agent, sighting(10, ended_at=NOW_SECONDS + 20.0))
    assert runs(agent) == [("4242", "COMPLETED", 20, None)]
    assert held(agent) == [("4242", 0, 0, 10, False)]
    tell(agent, sighting(5))  # late news
    assert runs(agent) == [("4242", "COMPLETED", 20, None)]
    assert query(agent.database, "SELECT exit_code FROM runs") == [(None,)]


def test_a_device_is_held_from_its_first_process_to_its_last(agent: IngestClient) -> None:
    tell(agent, sighting(0, devices=[0]))
    tell(agent, sighting(100, devices=[0, 1]))
    tell(agent, sighting(200, devices=[1]))
    tell(agent, sighting(300, devices=[0, 1]))
    assert held(agent) == [
        ("4242", 0, 0, 200, False),
        ("4242", 1, 100, None, False),
        ("4242", 0, 300, None, False),
    ]
    assert query(agent.database, "SELECT gpu_count FROM runs") == [(2,)]


def test_a_gpu_on_which_two_runs_compute_is_shared_for_so_long(agent: IngestClient) -> None:
    other = {"pid": 5555, "user": "bob"}
    tell(agent, sighting(0))
    tell(agent, sighting(100), sighting(100, **other))
    tell(agent, sighting(200), sighting(200, **other))
    tell(agent, sighting(300), sighting(300, ended_at=NOW_SECONDS + 300.0, **other))
    assert held(agent) == [
        ("4242", 0, 0, 100, False),
        ("4242", 0, 100, 300, True),
        ("5555", 0, 100, 300, True),
        ("4242", 0, 300, None, False),
    ]


def test_a_run_of_which_nobody_tells_any_more_ends_when_last_seen(
    agent: IngestClient, still_house: House
) -> None:
    tell(agent, sighting(-10))
    still_house.clock = lambda: NOW + timedelta(minutes=4, seconds=59)
    close_silent_runs(still_house)
    assert runs(agent) == [("4242", "RUNNING", None, None)]
    still_house.clock = lambda: NOW + timedelta(minutes=5, seconds=1)
    close_silent_runs(still_house)
    assert runs(agent) == [("4242", "UNKNOWN", None, -10)]
    assert held(agent) == [("4242", 0, -10, -10, False)]

    tell(agent, sighting(400))  # the network was down
    assert runs(agent) == [("4242", "RUNNING", None, None)]
    assert held(agent) == [("4242", 0, -10, None, False)]
    close_silent_runs(still_house)
    assert runs(agent) == [("4242", "RUNNING", None, None)]


def test_a_clock_turned_back_costs_no_batch_and_no_run_lasts_less_than_nothing(
    agent: IngestClient,
) -> None:
    ahead = {"started_at": NOW_SECONDS + 50.0}
    tell(agent, sighting(20, **ahead))
    tell(agent, sighting(20, ended_at=NOW_SECONDS + 10.0, **ahead))
    assert runs(agent) == [("4242", "COMPLETED", 20, None)]
    started = query(agent.database, "SELECT started_at FROM runs")
    assert started == [(NOW + timedelta(seconds=20),)]


def test_a_run_of_a_node_that_was_renamed_is_the_same_run(agent: IngestClient) -> None:
    tell(agent, sighting(0))
    tell(agent, sighting(10), node="gpu02")
    tell(agent, sighting(-10, devices=[0, 1]))  # from the spool, which has the name of its time
    tell(agent, sighting(20), node="gpu02")
    assert runs(agent) == [("4242", "RUNNING", None, None)]
    assert held(agent) == [("4242", 0, -10, None, False), ("4242", 1, -10, -10, False)]
    nodes = query(
        agent.database, "SELECT DISTINCT name FROM allocations JOIN nodes ON nodes.id = node_id"
    )
    assert nodes == [("gpu02",)]


def test_a_queue_without_it_is_none_of_a_local_runs_business(agent: IngestClient) -> None:
    tell(agent, sighting())
    with agent.database.session() as session:
        apply_records(
            session, cluster(agent.database), [], [], NOW, complete=True, source="slurm"
        )  # fmt: skip
    assert runs(agent) == [("4242", "RUNNING", None, None)]
    assert held(agent) == [("4242", 0, 0, None, False)]


def test_what_comes_late_from_a_spool_moves_the_beginning_back(agent: IngestClient) -> None:
    tell(agent, sighting(0))
    for seconds in range(-600, 0, 10):
        tell(agent, sighting(seconds))
    assert held(agent) == [("4242", 0, -600, None, False)]


def test_a_run_that_came_and_went_during_an_outage_is_whole(agent: IngestClient) -> None:
    gone = {"pid": 5555, "devices": [1]}
    tell(agent, sighting(0))
    for seconds in (-600, -590, -580):
        tell(agent, sighting(seconds), sighting(seconds, **gone))
    tell(agent, sighting(-580, ended_at=NOW_SECONDS - 570.0, **gone))
    assert ("5555", "COMPLETED", -570, None) in runs(agent)
    assert held(agent) == [("4242", 0, -600, None, False), ("5555", 1, -600, -580, False)]


def test_a_device_that_was_given_back_during_an_outage_is_not_held_on(agent: IngestClient) -> None:
    tell(agent, sighting(0, devices=[0]))
    for seconds in (-600, -590, -580):
        tell(agent, sighting(seconds, devices=[0, 1]))
    for seconds in (-570, -300):
        tell(agent, sighting(seconds, devices=[0]))
    assert held(agent) == [("4242", 0, -600, None, False), ("4242", 1, -600, -580, False)]


def test_an_end_that_is_told_before_its_beginning_stands(agent: IngestClient) -> None:
    tell(agent, sighting(0, ended_at=float(NOW_SECONDS)))
    tell(agent, sighting(-50))
    tell(agent, sighting(-40))
    assert runs(agent) == [("4242", "COMPLETED", 0, None)]
    assert held(agent) == [("4242", 0, -50, 0, False)]


def test_the_same_pid_later_is_another_run(agent: IngestClient) -> None:
    tell(agent, sighting(0, ended_at=float(NOW_SECONDS)))
    tell(agent, sighting(60, started_at=NOW_SECONDS + 30.0))
    assert [state for _, state, _, _ in runs(agent)] == ["COMPLETED", "RUNNING"]


def test_two_machines_may_have_the_same_pid_and_start(agent: IngestClient) -> None:
    tell(agent, sighting(0))
    answer = agent.post(
        batch(
            node="gpu02",
            devices=[device(7)],
            local_runs=[sighting(0, user="bob", started_at=STARTED + 0.5)],
        )
    )
    assert answer.status_code == 200
    found = query(agent.database, "SELECT user_name FROM runs ORDER BY user_name")
    assert found == [("alice",), ("bob",)]


@pytest.mark.parametrize("name", ["<script>alert(1)</script>", "=cmd|' /C calc'!A0", "ü" * 400])
def test_hostile_names_are_only_text(agent: IngestClient, name: str) -> None:
    tell(agent, sighting(name=name))
    ((stored,),) = query(agent.database, "SELECT name FROM runs")
    assert stored == name[:300]


def test_a_schedulers_run_is_not_local(database: Database) -> None:
    with database.session() as session:
        run = World(session).run()
        session.refresh(run)
        assert run.local is False
