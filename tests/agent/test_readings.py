"""From the driver's counters to figures in our units, and to reasons where there are none."""

import ctypes
import os
from pathlib import Path

import pynvml
import pytest

from flopwatch.metrics import COLUMNS
from flopwatch_agent import collectors
from flopwatch_agent.collectors.driver import Driver
from flopwatch_agent.inventory import Inventory
from tests.agent.conftest import START, Bench
from tests.lab.fake_nvml import FakeDriver


def test_every_column_has_its_value_in_our_units(bench: Bench) -> None:
    bench.driver.set(
        0,
        engine_active=0.97, sm_active=0.85, sm_occupancy=0.4, tensor_active=0.42, dram_active=0.6,
        fp64_active=0.01, fp32_active=0.2, fp16_active=0.05, gpu_utilization=1.0,
        memory_used_mib=40000, power_watts=612, sm_clock_mhz=1755, temperature_c=64,
        pcie_tx=3e9, pcie_rx=1e9, nvlink_tx=2e11, nvlink_rx=1e11, reasons="4",
    )  # fmt: skip
    values = bench.values(0, bench.seconds(0, 10))
    assert values == pytest.approx(
        {
            "engine_active": 0.97, "sm_active": 0.85, "sm_occupancy": 0.4, "tensor_active": 0.42,
            "dram_active": 0.6, "fp64_active": 0.01, "fp32_active": 0.2, "fp16_active": 0.05,
            "gpu_utilization": 1.0, "memory_used_mib": 40000, "power_watts": 612,
            "energy_joules": 6120, "sm_clock_mhz": 1755, "temperature_c": 64,
            "pcie_tx": 3e9, "pcie_rx": 1e9, "nvlink_tx": 2e11, "nvlink_rx": 1e11,
            "throttled_share": 1.0, "engine_low_share": 0.0, "sm_min": 0.85, "sm_max": 0.85,
            "subsample_count": 10, "source_period": 1.0,
        }
    )  # fmt: skip
    assert set(values) == set(COLUMNS)


def test_means_are_of_the_whole_interval_whatever_happens_between_readings(bench: Bench) -> None:
    def work_for_three_seconds(offset: int) -> None:
        if offset == 2:
            bench.driver.set(0, sm_active=1.0, engine_active=0.9, power_watts=670)
        if offset == 5:
            bench.driver.set(0, sm_active=0.0, engine_active=0.05, power_watts=70)

    values = bench.values(0, bench.seconds(0, 10, work_for_three_seconds))
    assert values["sm_active"] == pytest.approx(0.3)
    assert values["energy_joules"] == pytest.approx(3 * 670 + 7 * 70)
    assert (values["sm_min"], values["sm_max"]) == pytest.approx((0.0, 1.0))
    # Under 10 %: two seconds at 0 before, five at 5 % after.
    assert values["engine_low_share"] == pytest.approx(0.7)


def test_the_first_interval_is_told_only_if_it_was_seen_from_its_start(bench: Bench) -> None:
    assert bench.seconds(3, 10) == []
    ends = {interval.end for _, interval in bench.seconds(11, 20)}
    assert ends == {START + 20}


def test_an_unsupported_metric_and_a_blank_cost_only_themselves(bench: Bench) -> None:
    bench.driver.set(0, fp64_active="error:3", dram_active="blank", sm_active=0.5)
    values = bench.values(0, bench.seconds(0, 10))
    assert values["fp64_active"] == "unsupported"
    assert values["dram_active"] == "absent"
    assert values["sm_active"] == pytest.approx(0.5)


def test_a_gpu_without_gpm_has_power_but_no_activity(bench: Bench) -> None:
    bench.driver.set(0, gpm="0", power_watts=300)
    values = bench.values(0, bench.seconds(0, 10))
    activity = ("engine_active", "sm_active", "tensor_active", "sm_min", "engine_low_share")
    assert [values[metric] for metric in activity] == ["unsupported"] * 5
    assert values["power_watts"] == pytest.approx(300)


def test_permission_for_gpm_may_be_lost_and_come_back(bench: Bench) -> None:
    bench.driver.set(0, sm_active=0.5)
    bench.seconds(0, 10)
    bench.driver.set(0, gpm="error:4")
    assert bench.values(0, bench.seconds(11, 20))["sm_active"] == "no permission"
    bench.driver.set(0, gpm="1")
    bench.seconds(21, 30)
    assert bench.values(0, bench.seconds(31, 40))["sm_active"] == pytest.approx(0.5)


def test_garbage_utilization_is_implausible_and_not_a_value(bench: Bench) -> None:
    bench.driver.set(0, utilization="4294967295")
    assert bench.values(0, bench.seconds(0, 10))["gpu_utilization"] == "implausible"


def test_activity_above_one_is_implausible(bench: Bench) -> None:
    bench.driver.set(0, sm_active=1.3)
    values = bench.values(0, bench.seconds(0, 10))
    assert values["sm_active"] == "implausible"
    assert values["sm_max"] == "implausible"


def test_a_driver_reload_makes_no_negative_energy(bench: Bench) -> None:
    bench.driver.set(0, power_watts=500, energy_joules=90_000.0)
    bench.seconds(0, 15)
    bench.driver.set(0, energy_joules=0.0)
    assert bench.values(0, bench.seconds(16, 20))["energy_joules"] == "implausible"
    assert bench.values(0, bench.seconds(21, 30))["energy_joules"] == pytest.approx(5000)


def test_a_driver_reload_whose_counter_overtakes_the_old_one_makes_no_energy(bench: Bench) -> None:
    bench.driver.set(0, power_watts=10, energy_joules=100.0)
    bench.seconds(0, 11)
    bench.driver.set(0, power_watts=700, energy_joules=0.0)
    assert bench.values(0, bench.seconds(12, 20))["energy_joules"] == "implausible"


def test_energy_is_known_only_if_both_ends_of_the_interval_were_read(bench: Bench) -> None:
    bench.driver.set(0, power_watts=500)
    bench.seconds(0, 9)
    bench.driver.set(0, error="15")
    assert bench.values(0, bench.seconds(10, 10))["energy_joules"] == "absent"
    bench.driver.set(0, error="0")
    assert bench.values(0, bench.seconds(11, 20))["energy_joules"] == "stale"
    assert bench.values(0, bench.seconds(21, 30))["energy_joules"] == pytest.approx(5000)


def test_a_figure_read_less_than_half_of_the_time_is_unknown(bench: Bench) -> None:
    def fail(offset: int) -> None:
        if offset in (2, 9):
            bench.driver.set(0, power_mw="error:15", gpm="error:4")
        if offset in (6, 17):
            bench.driver.set(0, power_watts=300, gpm="1")

    bench.driver.set(0, power_watts=300, sm_active=0.5)
    closed = bench.seconds(0, 20, fail)
    first, second = (
        interval.values for key, interval in closed if key[0] == bench.driver.uuid(0)
    )  # fmt: skip
    assert (first["power_watts"], first["sm_active"]) == pytest.approx((300, 0.5))
    assert (second["power_watts"], second["sm_active"]) == ("absent", "no permission")


def test_activity_before_an_interval_does_not_reach_into_its_extremes(bench: Bench) -> None:
    def fail_over_the_border(offset: int) -> None:
        if offset == 7:
            bench.driver.set(0, gpm="error:4")
        if offset == 10:
            bench.driver.set(0, sm_active=0.0)
        if offset == 12:
            bench.driver.set(0, gpm="1")

    bench.driver.set(0, sm_active=1.0)
    values = bench.values(0, bench.seconds(0, 20, fail_over_the_border))
    assert (values["sm_min"], values["sm_max"]) == (0.0, 0.0)


def test_memory_in_use_leaves_out_what_the_driver_reserves(bench: Bench) -> None:
    bench.driver.set(0, memory_used_mib=1000, memory_reserved_mib=640)
    assert bench.values(0, bench.seconds(0, 10))["memory_used_mib"] == pytest.approx(1000)


def test_only_heat_power_and_brakes_count_as_throttled(bench: Bench) -> None:
    # 1 idle, 2 clocks setting, 0x10 sync boost, 0x100 display: nobody holds the clock down.
    bench.driver.set(0, reasons=str(0x1 | 0x2 | 0x10 | 0x100))

    def heat_up(offset: int) -> None:
        if offset == 6:
            bench.driver.set(0, reasons=str(0x40))

    assert bench.values(0, bench.seconds(0, 10, heat_up))["throttled_share"] == pytest.approx(0.4)


def test_a_driver_too_old_for_a_call_lacks_that_figure_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = FakeDriver(
        tmp_path, gpus=1, clock=float(START), without=["nvmlDeviceGetCurrentClocksEventReasons"]
    )
    old.load(monkeypatch)
    bench = Bench(old)
    values = bench.values(0, bench.seconds(0, 10))
    assert values["throttled_share"] == "unsupported"
    assert values["temperature_c"] == pytest.approx(30)


def test_mig_instances_are_devices_of_their_own_without_the_power_of_their_gpu(
    bench: Bench,
) -> None:
    bench.driver.split(0, ["3g.40gb", "4g.40gb"])
    bench.driver.set("0/1", sm_active=0.75)
    bench.driver.write()
    bench.inventory.discover()
    gpu = bench.driver.uuid(0)
    keys = [key for key in bench.inventory.devices if key[0] == gpu]
    assert keys == [(gpu, "1/0", "3g.40gb"), (gpu, "2/0", "4g.40gb")]
    closed = dict(bench.seconds(0, 10))
    assert closed[keys[0]].values["sm_active"] == pytest.approx(0)
    assert closed[keys[1]].values["sm_active"] == pytest.approx(0.75)
    assert closed[keys[1]].values["power_watts"] == "unsupported"
    assert bench.inventory.devices[keys[1]].memory_mib == pytest.approx(20480)


def test_samples_lent_by_the_driver_are_given_back(bench: Bench) -> None:
    library = pynvml.nvmlLib
    before = library.fakeNvmlLiveSamples()
    bench.seconds(0, 30)
    assert library.fakeNvmlLiveSamples() - before == 6  # three for each of two GPUs, for ever
    bench.driver.set(0, error="15")
    bench.seconds(31, 50)
    bench.driver.set(0, error="0")
    bench.driver.write()
    bench.inventory.discover()
    bench.seconds(51, 60)
    assert library.fakeNvmlLiveSamples() - before == 6


def test_processes_are_listed_with_the_interval(bench: Bench) -> None:
    bench.driver.processes(0, [4321, os.getpid()])
    closed = dict(bench.seconds(0, 10))
    pids = {key[0]: interval.pids for key, interval in closed.items()}
    assert pids == {bench.driver.uuid(0): [4321, os.getpid()], bench.driver.uuid(1): []}


def test_without_a_driver_there_are_no_devices_until_it_is_loaded(driver: FakeDriver) -> None:
    driver.init_error = 9  # driver not loaded
    driver.write()
    inventory = Inventory(Driver(), collectors.start())
    inventory.discover()
    assert inventory.devices == {}
    driver.init_error = 0
    driver.write()
    inventory.discover()
    assert len(inventory.devices) == 2


def test_without_the_library_there_are_no_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_library(name: str) -> ctypes.CDLL:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(pynvml, "nvmlLib", None)
    monkeypatch.setattr(pynvml, "CDLL", no_library)
    assert Driver().discover().found == []
