"""The list of periodic work under Celery, with a real Redis, worker and beat: as in process."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from flopwatch.gpus import PeakTable
from flopwatch_server.app import create_app
from flopwatch_server.database.engine import Database
from flopwatch_server.house import House
from flopwatch_server.settings import Settings, SettingsError, load_settings
from flopwatch_server.telemetry.models import STATES
from flopwatch_server.work.celery_app import QUEUE
from flopwatch_server.work.celery_beat import MAX_WAITING, uninterrupted
from flopwatch_server.work.runner import Runner
from tests.lab import turns as lab
from tests.lab.ingest import NOW, NOW_SECONDS, ingest_client, query, sampled
from tests.lab.processes import FLOPWATCH, wait_for
from tests.lab.redis import RedisServer
from tests.lab.turns import hold, recorded_tasks, release, turns

DEADLINE = 90
Way = AbstractContextManager[None]


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    with RedisServer(tmp_path) as server:
        yield server


@pytest.fixture
def recording(database: Database) -> Database:
    """A database in which the recorded tasks find their tables."""
    lab.prepare(database)
    return database


class Part:
    """A worker or a beat with the recorded tasks, in a process group of its own."""

    def __init__(self, role: str, log: Path, environment: dict[str, str], *limit: str) -> None:
        self.log = log
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.lab.turns", role, *limit], stdin=subprocess.DEVNULL,
                stdout=output, stderr=output, start_new_session=True,
                env={**os.environ, **environment},
            )  # fmt: skip

    def kill(self) -> None:
        """kill -9, the main process and all that it has forked."""
        with suppress(ProcessLookupError):  # it has ended
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def stop(self) -> None:
        """End it as a service manager does."""
        self.process.terminate()
        assert self.process.wait(60) == 0

    def says(self, what: str) -> bool:
        """Whether its log holds these words."""
        return what in self.log.read_text()


class Parts:
    """Starts workers and beats for one database and one Redis."""

    def __init__(self, folder: Path, database: Database, redis: RedisServer) -> None:
        self._folder = folder
        self._environment = {
            "FLOPWATCH_DATABASE_URL": database.conninfo,
            "FLOPWATCH_WORK": "celery",
            "FLOPWATCH_REDIS_URL": redis.url,
        }
        self._started: list[Part] = []

    def start(self, role: str, *limit: str) -> Part:
        log = self._folder / f"{role}-{len(self._started)}.log"
        part = Part(role, log, self._environment, *limit)
        self._started.append(part)
        return part

    def kill(self) -> None:
        for part in self._started:
            part.kill()


@pytest.fixture
def parts(tmp_path: Path, recording: Database, redis: RedisServer) -> Iterator[Parts]:
    found = Parts(tmp_path, recording, redis)
    try:
        yield found
    finally:
        found.kill()


def count(database: Database, task: str, step: str = "end") -> int:
    return len(turns(database, task, step))


def wait_turns(database: Database, task: str, number: int, step: str = "end") -> None:
    wait_for(lambda: count(database, task, step) >= number, f"{number} turns of {task}", DEADLINE)


@contextmanager
def in_process(database: Database, folder: Path) -> Iterator[None]:
    runner = Runner(recorded_tasks(), House(database, Settings(), PeakTable.load()))
    runner.start()
    try:
        yield
    finally:
        runner.stop()


@contextmanager
def with_celery(database: Database, folder: Path) -> Iterator[None]:
    with RedisServer(folder) as redis, ExitStack() as stack:
        parts = Parts(folder, database, redis)
        stack.callback(parts.kill)
        parts.start("worker")
        parts.start("beat")
        yield


@pytest.mark.parametrize("way", [in_process, with_celery])
def test_either_runner_brings_the_same_list_to_the_same_end(
    recording: Database, tmp_path: Path, way: Callable[[Database, Path], Way]
) -> None:
    idle, active = {"sm_active": 0.0}, {"sm_active": 0.5}
    rows = [(0, NOW_SECONDS - ago, idle if ago >= 60 else active) for ago in range(0, 120, 10)]
    house = House(recording, Settings(), PeakTable.load(), lambda: NOW)
    with ingest_client(house) as agent:
        assert agent.post(*sampled(rows)).status_code == 200
    statement = "SELECT state, samples_received, sm_active FROM device_minutes ORDER BY minute"
    with way(recording, tmp_path):
        for task in ("works", "fails", "slow"):
            wait_turns(recording, task, 3)
        wait_for(lambda: len(query(recording, statement)) == 2, "the minutes are there", DEADLINE)
    minutes = [(STATES[state], *more) for state, *more in query(recording, statement)]
    assert minutes == [("idle", 6, 0.0), ("active", 6, 0.5)]
    assert count(recording, "seldom") == 1


def test_a_turn_that_is_killed_with_its_worker_is_done_by_the_next_one(
    recording: Database, parts: Parts
) -> None:
    hold(recording)
    parts.start("beat")
    worker = parts.start("worker")
    wait_turns(recording, "slow", 1, "begin")
    worker.kill()
    assert count(recording, "slow") == 0
    parts.start("worker")
    wait_turns(recording, "slow", 2, "begin")
    release(recording)
    wait_turns(recording, "slow", 1)
    assert set(turns(recording, "slow")).isdisjoint(turns(recording, "slow", "begin")[:1])


def test_turns_of_a_task_that_is_held_up_pass_and_hold_up_no_other(
    recording: Database, parts: Parts
) -> None:
    hold(recording)
    parts.start("beat")
    parts.start("worker")
    wait_turns(recording, "slow", 1, "begin")
    before = count(recording, "works")
    wait_turns(recording, "works", before + 6)  # three periods of the slow one
    assert count(recording, "slow", "begin") == 1
    release(recording)
    wait_turns(recording, "slow", 3)


def test_a_worker_that_is_stopped_leaves_the_rest_of_a_backlog_to_the_next_one(
    recording: Database, parts: Parts
) -> None:
    hold(recording, "backlog")
    parts.start("beat")
    worker = parts.start("worker")
    wait_turns(recording, "backlog", 3)
    worker.stop()
    done = count(recording, "backlog")
    parts.start("worker")
    wait_turns(recording, "backlog", done + 3)


def test_a_worker_that_was_away_finds_no_pile_of_turns(
    recording: Database, parts: Parts, redis: RedisServer
) -> None:
    beat = parts.start("beat")
    wait_for(lambda: redis.client.llen(QUEUE) >= MAX_WAITING, "the messages wait", DEADLINE)
    wait_for(lambda: beat.says("is there no 'flopwatch worker'?"), "beat tells", DEADLINE)
    waiting = redis.client.llen(QUEUE)
    assert waiting < MAX_WAITING + 5
    beat.stop()  # so that whatever is done now is what waited
    parts.start("worker")
    wait_for(lambda: redis.client.llen(QUEUE) == 0, "the worker takes them all", DEADLINE)
    wait_turns(recording, "seldom", 1)  # within its period: still good
    done = count(recording, "works") + count(recording, "fails") + count(recording, "slow")
    assert done <= 3 * 3  # at most a period or two's worth of each, of about 90
    assert count(recording, "seldom") == 1


def origins(redis: RedisServer) -> list[str]:
    """Who sent the messages that wait, the oldest first."""
    messages = redis.client.lrange(QUEUE, 0, -1)
    return [json.loads(message)["headers"]["origin"] for message in reversed(messages)]


def test_of_two_beats_one_sends_until_it_dies_and_then_the_other(
    parts: Parts, redis: RedisServer
) -> None:
    first = parts.start("beat")
    wait_for(lambda: first.says("sending the tasks"), "the first sends", DEADLINE)
    second = parts.start("beat")
    wait_for(lambda: second.says("standing by"), "the second stands by", DEADLINE)
    redis.client.delete(QUEUE)
    wait_for(lambda: redis.client.llen(QUEUE) >= 30, "messages come", DEADLINE)
    [origin] = set(origins(redis))
    assert str(first.process.pid) in origin
    first.kill()
    redis.client.delete(QUEUE)
    wait_for(lambda: redis.client.llen(QUEUE) >= 10, "the second takes over", DEADLINE)
    [origin] = set(origins(redis))
    assert str(second.process.pid) in origin


def test_a_beat_that_is_stopped_leaves_the_way_free_at_once(
    parts: Parts, redis: RedisServer
) -> None:
    first = parts.start("beat")
    wait_for(lambda: first.says("sending the tasks"), "it sends", DEADLINE)
    assert redis.client.exists("flopwatch beat")
    first.stop()
    assert not redis.client.exists("flopwatch beat")


def test_a_signal_to_stop_does_not_come_between_beat_and_redis() -> None:
    """Celery's own handler raises SystemExit, which redis-py may turn into an error of its own."""

    def stop(number: int, frame: object) -> None:
        raise SystemExit(number)

    talked: list[bool] = []

    def talk() -> None:
        with uninterrupted():
            os.kill(os.getpid(), signal.SIGTERM)
            talked.append(True)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        with pytest.raises(SystemExit):
            talk()
        assert talked
        assert signal.getsignal(signal.SIGTERM) is stop
    finally:
        signal.signal(signal.SIGTERM, before)


def test_worker_and_beat_say_that_redis_is_away_and_go_on_when_it_comes(
    recording: Database, parts: Parts, redis: RedisServer
) -> None:
    redis.stop()
    worker, beat = parts.start("worker"), parts.start("beat")
    for part in (worker, beat):
        wait_for(
            lambda part=part: part.says(f"127.0.0.1:{redis.port}. Connection refused"),  # type: ignore[misc]
            "it names what is away", DEADLINE,
        )  # fmt: skip
    redis.start()
    wait_turns(recording, "works", 2)
    redis.stop()
    wait_for(lambda: beat.says("Redis does not answer"), "beat tells", DEADLINE)
    redis.start()
    wait_turns(recording, "works", count(recording, "works") + 3)


def test_a_turn_that_hangs_is_ended_and_told_and_the_next_one_comes(
    recording: Database, parts: Parts
) -> None:
    hold(recording)
    parts.start("beat")
    worker = parts.start("worker", "2")
    wait_turns(recording, "slow", 2, "begin")
    assert count(recording, "slow") == 0
    assert worker.says("SoftTimeLimitExceeded")


def test_with_celery_the_server_starts_no_periodic_work(
    house: House, redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[list[str]] = []
    start = Runner.start

    def noted(runner: Runner) -> None:
        started.append([thread.name for thread in runner._threads])
        start(runner)

    monkeypatch.setattr(Runner, "start", noted)
    settings = Settings(
        database_url=house.database.conninfo, work="celery", redis_url=redis.url  # type: ignore[arg-type]
    )  # fmt: skip
    for used in (settings, Settings()):
        with TestClient(create_app(replace(house, settings=used))):
            pass
    assert started[0] == []
    assert "task minutes" in started[1]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"work": "celery", "database_url": "postgresql://d"}, "needs a Redis"),
        ({"work": "celery", "redis_url": "redis://r"}, "needs a PostgreSQL"),
        ({"redis_url": "redis://r"}, "no use for FLOPWATCH_REDIS_URL"),
        ({"redis_url": "http://:secret@r"}, "FLOPWATCH_REDIS_URL: URL scheme"),
        ({"work": "cron"}, "FLOPWATCH_WORK"),
    ],
)
def test_settings_that_contradict_one_another_are_refused_in_words(
    given: dict[str, str], said: str
) -> None:
    with pytest.raises(SettingsError) as refused:
        load_settings(**given)
    assert said in str(refused.value)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("command", ["worker", "beat"])
def test_a_worker_is_of_no_use_where_the_server_works_itself(command: str) -> None:
    made = subprocess.run(
        [str(FLOPWATCH), command], capture_output=True, text=True, check=False, timeout=60
    )
    assert made.returncode == 1
    assert "set FLOPWATCH_WORK=celery" in made.stderr
