"""Clocks that jump, and what keeps two samples from becoming one."""

from pathlib import Path

import pytest

from flopwatch_agent.epoch import EpochCounter
from flopwatch_agent.ticker import Tick, Ticker, interval_end


class Clock:
    """A wall clock that moves by waiting, and jumps as told after so many waits."""

    def __init__(self, now: float, jumps: dict[int, float] | None = None) -> None:
        self.now = now
        self.jumps = jumps or {}
        self.waits = 0

    def __call__(self) -> float:
        return self.now

    def wait(self, seconds: float) -> bool:
        self.waits += 1
        self.now += seconds + self.jumps.get(self.waits, 0.0)
        return False


def ticks(clock: Clock, count: int) -> list[Tick]:
    ticker = Ticker(clock, clock.wait)
    return [tick for _ in range(count) if (tick := ticker.next()) is not None]


@pytest.mark.parametrize(("second", "end"), [(1, 10), (10, 10), (11, 20), (20, 20)])
def test_an_interval_ends_with_its_last_second(second: int, end: int) -> None:
    assert interval_end(second) == end


def test_every_second_has_one_tick() -> None:
    assert [tick.second for tick in ticks(Clock(99.4), 4)] == [100, 101, 102, 103]


def test_a_wait_that_ends_a_little_early_makes_no_second_tick() -> None:
    clock = Clock(99.4, jumps={number: -0.01 for number in range(1, 9)})
    assert [tick.second for tick in ticks(clock, 4)] == [100, 101, 102, 103]


def test_a_stall_leaves_seconds_out_and_never_makes_them_up() -> None:
    clock = Clock(99.4, jumps={2: 7.3})
    assert ticks(clock, 3) == [Tick(100, False), Tick(109, False), Tick(110, False)]


def test_a_clock_put_forward_is_no_step_back() -> None:
    assert not any(tick.stepped_back for tick in ticks(Clock(0.5, jumps={3: 3600.0}), 5))


def test_a_clock_turned_back_says_so_once() -> None:
    clock = Clock(1000.5, jumps={3: -300.0})
    seen = ticks(clock, 5)
    assert [tick.second for tick in seen] == [1001, 1002, 704, 705, 706]
    assert [tick.stepped_back for tick in seen] == [False, False, True, False, False]


def test_a_stop_ends_the_ticks() -> None:
    assert Ticker(lambda: 5.5, lambda _: True).next() is None


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    file = tmp_path / "proc/sys/kernel/random/boot_id"
    file.parent.mkdir(parents=True)
    file.write_text("1b4e28ba-2fa1-11d2-883f-0016d3cca427\n")
    return tmp_path / "proc"


def test_the_number_grows_with_every_start_and_step_back(tmp_path: Path, proc: Path) -> None:
    clock = Clock(1_700_000_000.5)
    counter = EpochCounter(tmp_path, proc, clock)
    numbers = [counter.current.number, counter.advance().number]
    clock.now -= 86400
    numbers.append(counter.advance().number)
    again = EpochCounter(tmp_path, proc, clock).current
    numbers.append(again.number)
    assert numbers == sorted(set(numbers))
    assert again.boot_id == "1b4e28ba-2fa1-11d2-883f-0016d3cca427"
    assert again.started_at == clock.now


def test_the_number_grows_even_when_the_spool_was_lost(tmp_path: Path, proc: Path) -> None:
    clock = Clock(1_700_000_000.5)
    first = EpochCounter(tmp_path, proc, clock).current.number
    (tmp_path / "epoch").unlink()
    clock.now += 5
    assert EpochCounter(tmp_path, proc, clock).current.number > first


@pytest.mark.parametrize("text", ["", "garbage", "\x00\x00"])
def test_a_spoilt_epoch_file_is_no_reason_not_to_start(
    tmp_path: Path, proc: Path, text: str
) -> None:
    (tmp_path / "epoch").write_text(text)
    counter = EpochCounter(tmp_path, proc, Clock(1_700_000_000.5))
    assert counter.current.number == 1_700_000_000
    assert (tmp_path / "epoch").read_text() == "1700000000\n"


def test_a_folder_that_takes_no_file_is_no_reason_not_to_start(tmp_path: Path, proc: Path) -> None:
    counter = EpochCounter(tmp_path / "missing", proc, Clock(1_700_000_000.5))
    assert counter.current.number == 1_700_000_000
