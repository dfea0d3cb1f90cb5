"""One device's trouble stays its own."""

import threading

import pytest

from flopwatch.metrics import COLUMNS
from flopwatch_agent.inventory import Inventory
from flopwatch_agent.lanes import Lane
from flopwatch_agent.sampler import Interval
from flopwatch_agent.states import MetricStates
from tests.agent.conftest import START, Bench


def test_a_lost_gpu_is_absent_and_the_other_goes_on(bench: Bench) -> None:
    bench.driver.set(1, sm_active=0.5)
    bench.seconds(0, 10)
    bench.driver.set(0, error="15")
    closed = {key[0]: interval for key, interval in bench.seconds(11, 20)}
    lost, fine = closed[bench.driver.uuid(0)], closed[bench.driver.uuid(1)]
    assert not lost.covered
    assert lost.values["power_watts"] == lost.values["sm_active"] == "absent"
    assert fine.values["sm_active"] == pytest.approx(0.5)


def test_a_lost_gpu_that_comes_back_is_read_again(bench: Bench) -> None:
    bench.driver.set(0, sm_active=0.25)
    bench.seconds(0, 10)
    bench.driver.set(0, error="15", handle_error="15")
    bench.seconds(11, 20)
    bench.inventory.discover()
    assert len(bench.inventory.devices) == 2
    bench.driver.set(0, error="0", handle_error="0")
    bench.driver.write()
    bench.inventory.discover()
    bench.seconds(21, 30)
    assert bench.values(0, bench.seconds(31, 40))["sm_active"] == pytest.approx(0.25)


def test_a_gpu_that_refuses_its_handle_hides_no_other(bench: Bench) -> None:
    bench.driver.set(0, handle_error="4")
    bench.driver.write()
    fresh = Bench(bench.driver)
    assert [key[0] for key in fresh.inventory.devices] == [bench.driver.uuid(1)]


def test_a_wedged_driver_call_costs_one_device_and_the_tick_no_time(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gate stands in for a call that never returns; real delays would only make it slow."""
    gate = threading.Event()
    bench.driver.set(1, sm_active=0.5)
    bench.seconds(0, 10)
    monkeypatch.setattr(bench.inventory, "_deadline_seconds", 0.05)
    wedged = _lane_of(bench.inventory, bench.driver.uuid(0))
    wedged.start(gate.wait)
    closed = bench.seconds(11, 20)
    assert [key[0] for key, _ in closed] == [bench.driver.uuid(1)]
    assert closed[0][1].values["sm_active"] == pytest.approx(0.5)
    gate.set()


def test_a_slow_call_is_stuck_until_it_returns(bench: Bench) -> None:
    fast = Inventory(bench.inventory._driver, bench.active, deadline_seconds=0.1)
    fast.discover()
    bench.driver.set(0, delay_ms="60")  # of each of some thirty calls
    bench.driver.write()
    fast.tick(START + 1)
    assert {key[0] for key in fast.stuck} == {bench.driver.uuid(0)}
    bench.driver.set(0, delay_ms="0")
    bench.driver.write()
    answered = threading.Event()
    for second in range(2, 100):
        fast.tick(START + second)
        if not fast.stuck:
            answered.set()
            break
        answered.wait(0.1)
    assert answered.is_set()


def test_few_readings_make_no_row_but_are_known(bench: Bench) -> None:
    bench.seconds(0, 10)
    bench.seconds(11, 14)
    closed = bench.seconds(21, 21)  # the agent stood still for six seconds
    assert {(interval.end, interval.readings, interval.covered) for _, interval in closed} == {
        (START + 20, 4, False)
    }


def test_half_of_the_readings_speak_for_the_interval(bench: Bench) -> None:
    bench.seconds(0, 15)
    closed = bench.seconds(21, 21)
    assert {(interval.end, interval.readings, interval.covered) for _, interval in closed} == {
        (START + 20, 5, True)
    }


def test_a_clock_turned_back_begins_the_interval_anew(bench: Bench) -> None:
    bench.seconds(0, 18)
    assert bench.seconds(5, 10) == []
    closed = bench.seconds(11, 20)
    assert {(interval.end, interval.readings) for _, interval in closed} == {(START + 20, 10)}


def test_reasons_are_told_in_full_once_and_then_when_they_change() -> None:
    states = MetricStates()
    key, index = ("GPU-1", "", ""), {("GPU-1", "", ""): 3}
    good = Interval(START, 10, dict.fromkeys(COLUMNS, 1.0), [])
    bad = Interval(START + 10, 10, good.values | {"sm_active": "no permission"}, [])
    assert {each.metric for each in states.of_interval(key, index, good, 1.0)} == set(COLUMNS)
    assert states.of_interval(key, index, good, 2.0) == []
    (change,) = states.of_interval(key, index, bad, 3.0)
    assert (change.device, change.metric, change.reason, change.since) == (
        3, "sm_active", "no permission", 3.0,
    )  # fmt: skip
    (back,) = states.of_interval(key, index, good, 4.0)
    assert (back.metric, back.reason) == ("sm_active", None)
    assert {each.reason for each in states.of_stuck(key, index, 5.0)} == {"stale"}


def test_everything_is_told_again_after_a_batch_was_lost() -> None:
    states = MetricStates()
    key = ("GPU-1", "", "")
    interval = Interval(START, 10, dict.fromkeys(COLUMNS, 1.0), [])
    states.of_interval(key, {key: 0}, interval, 1.0)
    states.forget()
    assert len(states.of_interval(key, {key: 0}, interval, 2.0)) == len(COLUMNS)


def _lane_of(inventory: Inventory, uuid: str) -> Lane:
    return next(member.lane for key, member in inventory._members.items() if key[0] == uuid)
