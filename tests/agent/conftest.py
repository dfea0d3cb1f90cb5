"""A driver with two GPUs in this process, whose clock a test moves second by second."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from flopwatch_agent import collectors
from flopwatch_agent.collectors import Value
from flopwatch_agent.collectors.driver import Driver
from flopwatch_agent.inventory import Inventory, Key
from flopwatch_agent.sampler import Interval
from tests.lab.fake_nvml import FakeDriver

START = 1_700_000_000  # a multiple of ten


class Bench:
    """An inventory over the fake driver, and the one clock of both."""

    def __init__(self, driver: FakeDriver, settings: Mapping[str, str] | None = None) -> None:
        self.driver = driver
        self.active = collectors.start(settings)
        self.inventory = Inventory(Driver(), self.active, deadline_seconds=5.0)
        self.inventory.discover()

    def seconds(
        self, first: int, last: int, after: Callable[[int], None] = lambda _: None
    ) -> list[tuple[Key, Interval]]:
        """Tick from START + first to START + last; `after` runs after each second's reading."""
        closed = []
        for offset in range(first, last + 1):
            self.driver.clock = float(START + offset)
            self.driver.write()
            closed += self.inventory.tick(START + offset)
            after(offset)
        return closed

    def values(self, gpu: int | str, closed: list[tuple[Key, Interval]]) -> dict[str, Value]:
        """The figures of the last interval of one device."""
        uuid = self.driver.uuid(gpu)
        return [interval.values for key, interval in closed if key[0] == uuid][-1]


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    """Two GPUs."""
    made = FakeDriver(tmp_path, gpus=2, clock=float(START))
    made.load(monkeypatch)
    return made


@pytest.fixture
def bench(driver: FakeDriver) -> Iterator[Bench]:
    """The agent's inventory over those GPUs."""
    made = Bench(driver)
    yield made
    made.inventory.close()
