"""Which collector a device's figures come from, and that one more is one file."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flopwatch_agent import collectors
from flopwatch_agent.choice import Choice
from flopwatch_agent.collectors import (
    Active,
    Collector,
    DriverSource,
    Folded,
    Settings,
    Source,
)
from flopwatch_agent.collectors.driver import Driver
from flopwatch_agent.inventory import Inventory
from tests.agent.conftest import START, Bench
from tests.agent.test_daemon import Life
from tests.lab.fake_exporter import FakeExporter
from tests.lab.fake_nvml import FakeDriver

GOOD, BAD = Folded({"sm_active": 0.5}), Folded({"sm_active": "stale"}, "gone")
NAMES = ("gpm", "dcgmi", "dcgm_exporter")


def settle(choice: Choice, **told: Folded) -> str | None:
    """One interval in which the candidates told this."""
    return choice.settle({name: told[name] for name in choice.candidates()})[0].name


@pytest.fixture
def exporter() -> Iterator[FakeExporter]:
    made = FakeExporter()
    yield made
    made.down()


class Probe:
    """A reader that breaks, or takes CPU time."""

    def __init__(self, error: Exception | None = None, seconds: float = 0.0) -> None:
        self._error = error
        self._seconds = seconds

    def read(self, second: int) -> bool:
        if self._error:
            raise self._error
        until = time.thread_time() + self._seconds
        while time.thread_time() < until:
            pass
        return False

    def fold(self, end: int) -> Folded:
        return Folded({"sm_active": 0.125})

    def close(self) -> None:
        """Nothing was lent."""


def probe(reader: Probe, rank: int | None, cost_milliseconds: float = 1000) -> Active:
    def opener(settings: Settings) -> Source:
        return DriverSource(lambda _: reader)

    source = opener({})
    return Active(Collector("probe", cost_milliseconds, opener, rank), source)


def test_the_first_that_works_is_taken_at_once() -> None:
    assert settle(Choice(NAMES), gpm=BAD, dcgmi=GOOD, dcgm_exporter=GOOD) == "dcgmi"


def test_what_comes_after_the_one_in_use_is_not_read() -> None:
    choice = Choice(NAMES)
    settle(choice, gpm=BAD, dcgmi=GOOD, dcgm_exporter=GOOD)
    assert choice.candidates() == ("gpm", "dcgmi")
    settle(choice, gpm=BAD, dcgmi=BAD)
    assert choice.candidates() == NAMES


def test_one_that_fails_is_left_and_the_next_is_taken_for_a_whole_interval() -> None:
    choice = Choice(NAMES)
    assert settle(choice, gpm=GOOD, dcgmi=BAD, dcgm_exporter=BAD) == "gpm"
    assert settle(choice, gpm=BAD) is None
    assert settle(choice, gpm=BAD, dcgmi=BAD, dcgm_exporter=GOOD) == "dcgm_exporter"


def test_a_better_one_that_returns_must_prove_itself() -> None:
    choice = Choice(NAMES[::2])
    settle(choice, gpm=BAD, dcgm_exporter=GOOD)
    told = [GOOD, GOOD, BAD, GOOD, GOOD, GOOD]
    names = [settle(choice, gpm=each, dcgm_exporter=GOOD) for each in told]
    assert names == ["dcgm_exporter"] * 5 + ["gpm"]


def test_a_better_one_that_works_is_taken_when_the_one_in_use_fails() -> None:
    choice = Choice(NAMES[::2])
    settle(choice, gpm=BAD, dcgm_exporter=GOOD)
    assert settle(choice, gpm=GOOD, dcgm_exporter=BAD) == "gpm"


def test_why_the_better_ones_were_not_taken_is_told() -> None:
    choice = Choice(NAMES)
    chosen, _ = choice.settle({"gpm": BAD, "dcgmi": Folded({}, "silent"), "dcgm_exporter": GOOD})
    assert chosen.passed_over == {"gpm": "gone", "dcgmi": "silent"}
    chosen, _ = choice.settle({"gpm": GOOD, "dcgmi": BAD, "dcgm_exporter": GOOD})
    assert chosen.passed_over["gpm"].startswith("tells again for 10 s")


def test_without_any_source_the_reason_is_the_one_that_says_most() -> None:
    told = {
        "gpm": Folded({"sm_active": "unsupported", "dram_active": "unsupported"}, "unsupported"),
        "dcgm_exporter": Folded({"sm_active": "stale"}, "gone"),
    }
    chosen, values = Choice(NAMES[::2]).settle(told)
    assert (chosen.name, chosen.period_seconds) == (None, None)
    assert (values["sm_active"], values["dram_active"]) == ("stale", "absent")
    _, alone = Choice(NAMES[:1]).settle({"gpm": told["gpm"]})
    assert alone["dram_active"] == "unsupported"
    _, nothing = Choice(()).settle({})
    assert nothing["sm_active"] == nothing["sm_max"] == "unsupported"


def test_a_gpu_goes_to_the_page_and_back_and_no_interval_mixes_them(
    driver: FakeDriver, exporter: FakeExporter
) -> None:
    driver.set(0, sm_active=0.4)
    exporter.set(driver.uuid(0), sm_active=0.8)
    bench = Bench(driver, {"dcgm-exporter": exporter.url})

    def lose_and_find(offset: int) -> None:
        if offset == 23:
            driver.set(0, gpm="error:4")
        if offset == 55:
            driver.set(0, gpm="1")

    told = [
        (each.end - START, each.source.name, each.values["sm_active"])
        for key, each in bench.seconds(0, 110, lose_and_find)
        if key[0] == driver.uuid(0)
    ]
    assert told == [
        (10, "gpm", pytest.approx(0.4)),
        (20, "gpm", pytest.approx(0.4)),
        (30, None, "no permission"),
        (40, "dcgm_exporter", pytest.approx(0.8)),
        (50, "dcgm_exporter", pytest.approx(0.8)),
        # GPM is back from second 56 on; its first whole interval ends at 70, and it needs three.
        (60, "dcgm_exporter", pytest.approx(0.8)),
        (70, "dcgm_exporter", pytest.approx(0.8)),
        (80, "dcgm_exporter", pytest.approx(0.8)),
        (90, "gpm", pytest.approx(0.4)),
        (100, "gpm", pytest.approx(0.4)),
        (110, "gpm", pytest.approx(0.4)),
    ]
    bench.inventory.close()


def test_a_collector_that_breaks_costs_its_own_figures_and_is_logged_once(
    driver: FakeDriver, caplog: pytest.LogCaptureFixture
) -> None:
    broken = probe(Probe(ZeroDivisionError("oops")), rank=0)
    inventory = Inventory(Driver(), [broken, *collectors.start()], deadline_seconds=5.0)
    bench = Bench(driver)
    bench.inventory = inventory
    inventory.discover()
    driver.set(0, sm_active=0.5)
    bench.seconds(0, 10)
    closed = bench.seconds(11, 20)
    assert bench.values(0, closed)["sm_active"] == pytest.approx(0.5)
    assert closed[0][1].source.passed_over == {"probe": "broken: ZeroDivisionError: oops"}
    records = [each for each in caplog.records if "probe is broken" in each.message]
    assert len(records) == 2  # one for each GPU
    inventory.close()


def test_a_broken_collector_that_is_always_read_leaves_the_others(driver: FakeDriver) -> None:
    broken = probe(Probe(OSError("no disk")), rank=None)
    bench = Bench(driver)
    bench.inventory = Inventory(Driver(), [broken, *collectors.start()], deadline_seconds=5.0)
    bench.inventory.discover()
    bench.seconds(0, 10)
    assert bench.values(0, bench.seconds(11, 20))["power_watts"] == pytest.approx(70)
    bench.inventory.close()


def test_a_source_that_breaks_as_a_whole_costs_no_other(
    driver: FakeDriver, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(driver, {"dcgm-exporter": "http://127.0.0.1:9/metrics"})

    def defect(_: str) -> None:
        raise ZeroDivisionError("oops")

    monkeypatch.setattr("flopwatch_agent.collectors.dcgm_exporter.parse_page", defect)
    monkeypatch.setattr("flopwatch_agent.collectors.dcgm_exporter.ExporterSource._fetch", str)
    driver.set(0, gpm="0")
    driver.set(1, sm_active=0.5)
    bench.seconds(0, 10)
    assert bench.values(1, bench.seconds(11, 20))["sm_active"] == pytest.approx(0.5)
    records = [each for each in caplog.records if "dcgm_exporter is broken" in each.message]
    assert len(records) == 1
    bench.inventory.close()


def test_a_collector_that_costs_more_than_it_says_is_named_once(
    driver: FakeDriver, caplog: pytest.LogCaptureFixture
) -> None:
    slow = probe(Probe(seconds=0.01), rank=0, cost_milliseconds=5)
    bench = Bench(driver)
    bench.inventory = Inventory(Driver(), [slow], deadline_seconds=5.0)
    bench.inventory.discover()
    bench.seconds(0, 40)
    records = [each for each in caplog.records if "collector probe takes" in each.message]
    assert len(records) == 2  # one for each GPU


def test_every_file_of_the_folder_is_found_without_a_list() -> None:
    names = [each.name for each in collectors.registered()]
    assert names == ["health", "nvml", "gpm", "dcgmi", "dcgm_exporter"]


def test_a_collector_is_one_file_that_nothing_else_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, driver: FakeDriver
) -> None:
    """As docs say: a file with an opener, and its settings are options of the agent."""
    (tmp_path / "invented.py").write_text(
        "from flopwatch_agent.collectors import DriverSource, Folded, Setting, collector\n"
        "class Reader:\n"
        "    def __init__(self, found): pass\n"
        "    def read(self, second): return False\n"
        "    def fold(self, end): return Folded({'sm_active': 0.75})\n"
        "    def close(self): pass\n"
        "@collector('invented', cost_milliseconds=1, rank=0,\n"
        "           settings=(Setting('invented', '', 'switches it on'),))\n"
        "def open_invented(settings):\n"
        "    return DriverSource(Reader) if settings['invented'] else None\n"
    )
    monkeypatch.setattr(collectors, "__path__", [*collectors.__path__, str(tmp_path)])
    monkeypatch.setattr(collectors, "_REGISTRY", dict(collectors._REGISTRY))
    assert "invented" not in [each.collector.name for each in collectors.start()]
    bench = Bench(driver, {"invented": "yes"})
    bench.seconds(0, 10)
    closed = bench.seconds(11, 20)
    assert closed[0][1].source.name == "invented"
    assert bench.values(0, closed)["sm_active"] == 0.75
    bench.inventory.close()


@pytest.fixture
def life(driver: FakeDriver, tmp_path: Path) -> Life:
    return Life(driver, tmp_path)


def sources(batches: list[dict[str, Any]]) -> list[tuple[int, str | None, float]]:
    """(device, name, since) of all that the batches tell."""
    return [
        (each["device"], each["name"], each["since"] - START)
        for batch in batches
        for each in batch["sources"]
    ]


def test_the_source_is_told_once_and_again_when_it_changes(life: Life) -> None:
    life.events = {25: lambda: life.driver.set(0, gpm="0")}
    assert sources(life.run(55)) == [(0, "gpm", 10), (1, "gpm", 10), (0, None, 20)]


def test_a_new_epoch_is_told_the_source_anew(life: Life) -> None:
    life.jumps = {35: -20.0}
    batches = life.run(65)
    first = min(batch["epoch"]["number"] for batch in batches)
    told = sources([batch for batch in batches if batch["epoch"]["number"] > first])
    assert {device for device, _, _ in told} == {0, 1}
    assert {name for _, name, _ in told[-2:]} == {"gpm"}


def test_events_travel_with_the_batch(life: Life) -> None:
    life.events = {25: lambda: life.driver.set(1, ecc_uncorrected=2)}
    events = [each for batch in life.run(45) for each in batch["events"]]
    assert events == [
        {"device": 1, "time": START + 30, "kind": "ecc_uncorrected", "value": 2, "detail": ""}
    ]
