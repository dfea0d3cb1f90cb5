"""Rare things: each is told once, the first look is where counting begins, and no flood comes."""

from collections.abc import Callable
from itertools import count

import pynvml
import pytest

from flopwatch_agent.collectors import Happening, health
from flopwatch_agent.happenings import Gate
from tests.agent.conftest import START, Bench
from tests.lab.fake_nvml import FakeDriver
from tests.lab.processes import wait_for

Told = tuple[int, str, int]


def told(
    bench: Bench, gpu: int, first: int, last: int, after: Callable[[int], None] = lambda _: None
) -> list[Told]:
    """(second, kind, value) of what happened to a GPU in these seconds."""
    return [
        (each.second - START, each.kind, each.value)
        for key, interval in bench.seconds(first, last, after)
        if key[0] == bench.driver.uuid(gpu)
        for each in interval.happenings
    ]


def test_what_a_gpu_has_when_the_agent_comes_is_no_event(bench: Bench) -> None:
    bench.driver.set(0, ecc_corrected=7, ecc_uncorrected=2, remapped_rows="1 1 1 1", reasons="4",
                     pcie_width=8)  # fmt: skip
    assert told(bench, 0, 0, 60) == []


@pytest.mark.parametrize(
    ("change", "events"),
    [
        ({"ecc_corrected": 3}, [("ecc_corrected", 3)]),
        ({"ecc_uncorrected": 1}, [("ecc_uncorrected", 1)]),
        ({"remapped_rows": "1 2 0 0"}, [("rows_remapped", 3)]),
        ({"remapped_rows": "0 0 1 0"}, [("rows_remapped", 0)]),
        ({"remapped_rows": "0 1 0 1"}, [("rows_remapped", 1), ("row_remap_failed", 1)]),
        ({"pcie_width": 8}, [("pcie_width", 8)]),
        ({"reasons": "64"}, [("clock_reasons", 64)]),
        # 4: at its power cap, where a GPU that works hard is.
        ({"reasons": "4"}, []),
        ({"reasons": "36"}, [("clock_reasons", 32)]),
        # 1 idle, 2 clocks setting: nothing holds the clocks down.
        ({"reasons": "3"}, []),
    ],
)
def test_a_change_is_one_event(
    bench: Bench, change: dict[str, float | str], events: list[tuple[str, int]]
) -> None:
    bench.seconds(0, 25)
    bench.driver.set(0, **change)
    assert [event[1:] for event in told(bench, 0, 26, 70)] == events
    assert told(bench, 0, 71, 90) == []


def test_a_counter_that_was_set_back_is_no_event_and_counts_on(bench: Bench) -> None:
    bench.driver.set(0, ecc_corrected=500, remapped_rows="4 0 1 1")
    bench.seconds(0, 20)
    bench.driver.set(0, ecc_corrected=0, remapped_rows="0 0 0 0")
    assert told(bench, 0, 21, 40) == []
    bench.driver.set(0, ecc_corrected=2)
    assert told(bench, 0, 41, 60) == [(50, "ecc_corrected", 2)]


def test_the_end_of_a_cause_is_told_too(bench: Bench) -> None:
    bench.seconds(0, 20)
    bench.driver.set(0, reasons=str(0x40 | 0x1), pcie_width=4)
    bench.seconds(21, 50)
    bench.driver.set(0, reasons="1", pcie_width=16)
    assert told(bench, 0, 51, 80) == [(55, "clock_reasons", 0), (70, "pcie_width", 16)]


def test_a_gpu_at_the_edge_of_its_heat_makes_no_flood(bench: Bench) -> None:
    def flap(offset: int) -> None:
        bench.driver.set(0, reasons="32" if offset % 2 else "1")

    bench.seconds(0, 20)
    assert told(bench, 0, 21, 80, flap) == []


def test_slow_flapping_is_bounded_and_says_what_was_left_out() -> None:
    gate = Gate()
    changes = [Happening(START + 5 * place, "clock_reasons", 4) for place in range(12)]
    passed = list(gate.let_pass("health", changes))
    assert [each.second - START for each in passed] == [0, 5, 10, 15, 20, 25]
    (later,) = gate.let_pass("health", [Happening(START + 60, "clock_reasons", 0, "free")])
    assert later.detail == "free; 6 more before were not told"


def test_one_kind_takes_no_room_from_another() -> None:
    gate = Gate()
    list(gate.let_pass("health", [Happening(START, "clock_reasons", 4)] * 9))
    assert len(list(gate.let_pass("health", [Happening(START, "xid", 79)]))) == 1


def test_an_xid_that_the_driver_and_dcgm_tell_of_is_one() -> None:
    gate = Gate()
    first = list(gate.let_pass("health", [Happening(START, "xid", 31)]))
    echo = list(gate.let_pass("dcgm_exporter", [Happening(START + 31, "xid", 31)]))
    other = list(gate.let_pass("dcgm_exporter", [Happening(START + 32, "xid", 48)]))
    again = list(gate.let_pass("health", [Happening(START + 300, "xid", 31)]))
    assert (len(first), len(echo), len(other), len(again)) == (1, 0, 1, 1)


def test_an_xid_is_told_of_its_gpu_and_of_no_other(bench: Bench) -> None:
    wait_for_listeners(0)
    bench.driver.xid(0, 79)
    assert hear(bench) == [(bench.driver.uuid(0), "", "xid", 79)]


def test_an_xid_of_an_instance_is_not_its_neighbours(bench: Bench) -> None:
    bench.driver.split(0, ["3g.40gb", "3g.40gb"])
    bench.driver.write()
    bench.inventory.discover()
    wait_for_listeners(0)
    bench.driver.xid(0, 43, gpu_instance=2)
    assert hear(bench) == [(bench.driver.uuid(0), "2/0", "xid", 43)]


def test_an_xid_of_a_split_gpu_concerns_all_of_its_instances(bench: Bench) -> None:
    bench.driver.split(0, ["3g.40gb", "3g.40gb"])
    bench.driver.write()
    bench.inventory.discover()
    wait_for_listeners(0)
    bench.driver.xid(0, 79)
    assert [each[1] for each in hear(bench)] == ["1/0", "2/0"]


def test_what_happens_to_a_split_gpu_is_told_by_one_of_its_instances(bench: Bench) -> None:
    bench.driver.split(0, ["3g.40gb", "3g.40gb"])
    bench.driver.write()
    bench.inventory.discover()
    bench.seconds(0, 25)
    bench.driver.set(0, ecc_uncorrected=1)
    assert [key[1] for key, interval in bench.seconds(26, 70) if interval.happenings] == ["1/0"]
    bench.driver.set("0/0", uuid="")  # that instance is no more
    bench.driver.write()
    bench.inventory.discover()
    errors = count(2)

    def one_more(_: int) -> None:
        bench.driver.set(0, ecc_uncorrected=next(errors))

    assert [event[1:3] for event in hear(bench, one_more)] == [("2/0", "ecc_uncorrected")]


def test_the_xid_of_a_gpu_that_is_lost_by_it_is_told(bench: Bench) -> None:
    wait_for_listeners(0)
    bench.driver.set(0, error="15", handle_error="15")
    bench.driver.xid(0, 79)
    assert hear(bench) == [(bench.driver.uuid(0), "", "xid", 79)]


def test_a_gpu_that_comes_back_is_listened_to(
    driver: FakeDriver, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(health, "XID_PAUSE_SECONDS", 0.0)
    driver.set(0, xid="error:15")
    driver.write()
    bench = Bench(driver)
    wait_for_listeners(1)
    complaint = f"no Xids of {driver.uuid(0)} from the driver: GPU is lost"
    assert [each.getMessage() for each in caplog.records if each.threadName == "xid"] == [complaint]
    driver.set(0, xid="")
    driver.write()
    wait_for_listeners(0)
    driver.xid(0, 31)
    assert hear(bench) == [(driver.uuid(0), "", "xid", 31)]
    bench.inventory.close()


@pytest.mark.parametrize("code", [3, 15])  # not supported; lost
def test_a_gpu_without_xids_hides_no_others(bench: Bench, code: int) -> None:
    bench.driver.set(0, xid=f"error:{code}", sm_active=0.5)
    bench.driver.write()
    fresh = Bench(bench.driver)
    wait_for_listeners(1, count=2)
    bench.driver.xid(1, 13)
    assert hear(fresh) == [(bench.driver.uuid(1), "", "xid", 13)]
    assert fresh.values(0, fresh.seconds(900, 910))["sm_active"] == pytest.approx(0.5)
    fresh.inventory.close()


def test_a_gpu_that_lacks_a_counter_tells_the_others(bench: Bench) -> None:
    bench.driver.set(0, ecc_corrected="error:3", remapped_rows="", ecc_uncorrected=0)
    bench.seconds(0, 20)
    bench.driver.set(0, ecc_uncorrected=1)
    assert told(bench, 0, 21, 40) == [(30, "ecc_uncorrected", 1)]


def wait_for_listeners(gpu: int, count: int = 1) -> None:
    """Xids come by themselves, to whoever listens by then."""
    wait_for(lambda: pynvml.nvmlLib.fakeNvmlListeners(gpu) >= count, "somebody listens", 20, 0.01)


def hear(
    bench: Bench, after: Callable[[int], None] = lambda _: None
) -> list[tuple[str, str, str, int]]:
    """(UUID, instance, kind, value) of all that is told in the first interval that tells any."""
    intervals = count(1)

    def listen() -> list[tuple[str, str, str, int]]:
        first = 10 * next(intervals)
        return [
            (key[0], key[1], each.kind, each.value)
            for key, interval in bench.seconds(first + 1, first + 10, after)
            for each in interval.happenings
        ]

    return wait_for(listen, "an Xid is told", 20, 0.01)
