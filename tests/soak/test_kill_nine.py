"""kill -9 again and again: whatever dies in the middle, in the end every interval is there once."""

import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.lab.fake_nvml import FakeDriver
from tests.lab.postgres import postgres, public_folder
from tests.lab.processes import Process, Server, running, wait_for
from tests.lab.redis import RedisServer
from tests.soak.intervals import Intervals

SEED = 20_261
DEATHS = 24
REST_SECONDS = (2.0, 12.0)
AGENTS = 3
GPUS = 2
SIMULATED_NODES = 60
HISTORY_HOURS = 1.5

pytestmark = pytest.mark.timeout(1500)


class Victims:
    """A server, its PostgreSQL and its worker, each of which can die and come back."""

    def __init__(self, stack: ExitStack, folder: Path) -> None:
        self.postgres = stack.enter_context(postgres(folder))
        redis = stack.enter_context(RedisServer(folder))
        environment = {
            "FLOPWATCH_DATABASE_URL": self.postgres.url,
            "FLOPWATCH_WORK": "celery",
            "FLOPWATCH_REDIS_URL": redis.url,
        }
        self.server = stack.enter_context(Server(folder, **environment))
        self.worker = Process("worker", log=folder / "worker.log", environment=environment)
        beat = Process("beat", log=folder / "beat.log", environment=environment)
        stack.enter_context(running(self.worker, beat))
        self.ways: list[Callable[[], None]] = [
            self._kill_server, self._kill_worker, self._kill_postgres
        ]  # fmt: skip

    def _kill_server(self) -> None:
        self.server.process.kill()
        self.server.start()

    def _kill_worker(self) -> None:
        self.worker.kill()
        self.worker.start()

    def _kill_postgres(self) -> None:
        assert self.postgres.pid is not None
        os.kill(self.postgres.pid, signal.SIGKILL)
        self.postgres.stop()  # takes the dead child off; the folder is free again
        self.postgres.start()


@pytest.fixture
def house() -> Iterator[tuple[Victims, Path]]:
    with ExitStack() as stack:
        folder = stack.enter_context(public_folder())
        yield Victims(stack, folder), folder


def agents(victims: Victims, folder: Path) -> list[Process]:
    """Real agents, each with a driver of its own."""
    found = []
    for number in range(AGENTS):
        name, home = f"real{number}", folder / f"real{number}"
        home.mkdir()
        driver = FakeDriver(home, gpus=GPUS, node=number)
        driver.write()
        found.append(
            Process(
                "agent", "--server", victims.server.url, "--node", name, "--spool", home / "spool",
                "--token-file", victims.server.token("node", "real"),
                "--socket", home / "hook.sock", log=home / "agent.log",
                environment=driver.environment(),
            )
        )  # fmt: skip
    return found


def simulation(victims: Victims, folder: Path) -> Process:
    """Many nodes that are in a hurry: there is always a group half written."""
    server = victims.server
    return Process(
        "simulate", "--server", server.url, "--nodes", str(SIMULATED_NODES), "--seed", str(SEED),
        "--history-hours", str(HISTORY_HOURS),
        "--node-token-file", server.token("node", "simulated"),
        "--feed-token-file", server.token("feed", "simulated"),
        log=folder / "simulation.log", environment={},
    )  # fmt: skip


def test_in_the_end_every_interval_is_there_once_and_in_its_minute(
    house: tuple[Victims, Path],
) -> None:
    victims, folder = house
    real = agents(victims, folder)
    with running(simulation(victims, folder), *real):
        kill(victims, DEATHS)
        intervals = Intervals(victims.postgres.url)
        wait_for(
            lambda: intervals.history_is_in("simulated", HISTORY_HOURS), "the history is in", 300, 2
        )
        wait_for(
            lambda: intervals.newest_age_seconds("real") < 40 and not intervals.lost("real"),
            "agents have sent what is live and what they kept", 420, 2,
        )  # fmt: skip
    for cluster in ("real", "simulated"):
        assert intervals.lost(cluster) == []
        assert intervals.twice(cluster) == []
        wait_for(
            lambda cluster=cluster: not intervals.wrong_minutes(cluster),  # type: ignore[misc]
            f"every minute of {cluster} counts its samples", 120, 1,
        )  # fmt: skip
    assert len(intervals.devices("real")) == AGENTS * GPUS
    assert intervals.lost_by_fault() == []


def kill(victims: Victims, deaths: int) -> None:
    """Kill one after another, each as often as the others; in which order the seed says."""
    dice = random.Random(SEED)
    ways = victims.ways * (deaths // len(victims.ways))
    dice.shuffle(ways)
    for way in ways:
        time.sleep(dice.uniform(*REST_SECONDS))  # when it strikes is the seed's choice too
        way()
