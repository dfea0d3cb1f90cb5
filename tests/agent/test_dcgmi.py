"""Activity from `dcgmi dmon`: forms of several versions, and a child process that misbehaves."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flopwatch_agent.collectors.dcgmi import (
    DmonSource,
    Row,
    parse_gpus,
    parse_instances,
    parse_row,
)
from flopwatch_agent.sampler import Interval
from tests.agent.conftest import Bench
from tests.lab.fake_dcgmi import FakeDcgmi
from tests.lab.fake_nvml import FakeDriver
from tests.lab.processes import wait_for

# DCGM 3.3.9 on an H100 NVL, dmon -e 1001,1002,1005, as its user posted it.
DMON_3 = "\n".join(
    line.ljust(49)
    for line in (
        "#Entity   GRACT        SMACT        DRAMA",
        "ID",
        "GPU 0     N/A          N/A          N/A",
        "GPU 0     0.000        0.000        0.000",
    )
)
# DCGM 2, dmon -e 1001,1004 on an A100 in two instances, from NVIDIA's user guide.
DMON_2_MIG = """\
    # Entity  GRACT  TENSO
          Id
        GPU 0  0.845  0.816
      GPU-I 0  0.986  0.952
      GPU-I 1  0.985  0.952
"""
# DCGM 3.3.9 on eight A100s, dmon -e 203,204,1001,1002,150, of which GPU 7 is in MIG mode.
DMON_3_MIXED = """\
#Entity   GRACT      MCUTL      SMACT       DRAMA       TMPTR
ID                                    (us)        (us)        (C)
GPU 7     N/A        N/A        0.000       0.000       26
GPU 6     0          0          0.000       0.000       26
"""
# `discovery -l` of two H800s, shortened, and of one with the list of CPUs behind.
LISTING = """\
2 GPUs found.
+--------+----------------------------------------------------------------------+
| GPU ID | Device Information                                                   |
+--------+----------------------------------------------------------------------+
| 0      | Name: NVIDIA H800                                                    |
|        | PCI Bus ID: 00000000:18:00.0                                         |
|        | Device UUID: GPU-34bf77d1-c686-6821-79a8-32d326c5039c                |
+--------+----------------------------------------------------------------------+
| 3      | Name: NVIDIA H800                                                    |
|        | PCI Bus ID: 00000000:2A:00.0                                         |
|        | Device UUID: GPU-9d3de631-3422-9bc2-c43e-5e9106c621f4                |
+--------+----------------------------------------------------------------------+
0 NvSwitches found.
+-----------+
| Switch ID |
+-----------+
1 CPUs found.
+--------+----------------------------------------------------------------------+
| CPU ID | Device Information                                                   |
+--------+----------------------------------------------------------------------+
| 0      | Name: Grace TH500                                                    |
+--------+----------------------------------------------------------------------+
"""
# `discovery -c` of an A100 split into 4g.20gb and 3g.20gb: its numbers are not the driver's.
TREE = """\
+-------------------+--------------------------------------------------------------------+
| Instance Hierarchy                                                                     |
+===================+====================================================================+
| GPU 0             | GPU GPU-f04cff15-f427-9612-3f5e-60a6e0cd2018 (EntityID: 0)         |
| -> I 0/1          | GPU Instance (EntityID: 1)                                         |
|    -> CI 0/1/0    | Compute Instance (EntityID: 1)                                     |
| -> I 0/2          | GPU Instance (EntityID: 0)                                         |
|    -> CI 0/2/0    | Compute Instance (EntityID: 0)                                     |
+-------------------+--------------------------------------------------------------------+
"""


@pytest.fixture
def dcgmi(tmp_path: Path, driver: FakeDriver) -> FakeDcgmi:
    """A dcgmi that numbers the two GPUs the other way round."""
    made = FakeDcgmi(tmp_path)
    for number, gpu in ((0, 1), (1, 0)):
        made.gpu(number, driver.uuid(gpu))
        made.row(f"GPU {number}", f1001=0.9, f1002=0.25 * (1 + gpu), f1010=3_000_000_000)
        driver.set(gpu, gpm="0", power_watts=300)
    driver.write()
    return made


@pytest.fixture
def bench(driver: FakeDriver, dcgmi: FakeDcgmi) -> Iterator[Bench]:
    made = Bench(driver, {"dcgmi": str(dcgmi.path)})
    yield made
    made.inventory.close()
    wait_for(lambda: not source_of(made)._lane.busy, "its life is over", 20, 0.02)
    assert not any(alive(pid) for pid in dcgmi.pids)


def source_of(bench: Bench) -> DmonSource:
    return next(each.source for each in bench.active if isinstance(each.source, DmonSource))


def alive(pid: int) -> bool:
    """Whether a process still runs (a zombie does not; proc(5), stat)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def live(bench: Bench, first: int, last: int) -> list[Interval]:
    """Intervals of GPU 0, each second of them as long as dcgmi needs for a row, or to end."""
    source = source_of(bench)

    def wait_for_a_row(_: int) -> None:
        seen = dict(source._points)
        wait_for(
            lambda: not source._lane.busy or any(source._points[each] is not seen.get(each)
                                                 for each in list(source._points)),
            "a row comes", 20, 0.005,
        )  # fmt: skip

    closed = bench.seconds(first, last, wait_for_a_row)
    return [each for key, each in closed if key[0] == bench.driver.uuid(0)]


def pass_time(bench: Bench, first: int, last: int, until: Callable[[], bool], what: str) -> None:
    """Let seconds pass that are no seconds at all, then wait for what must come of it."""
    bench.seconds(first, last)
    wait_for(until, what, 20, 0.02)


@pytest.mark.parametrize(
    ("text", "count", "rows"),
    [
        (DMON_3, 3, [Row("GPU", 0, ["N/A"] * 3), Row("GPU", 0, ["0.000"] * 3)]),
        (DMON_2_MIG, 2, [Row("GPU", 0, ["0.845", "0.816"]), Row("GPU-I", 0, ["0.986", "0.952"]),
                         Row("GPU-I", 1, ["0.985", "0.952"])]),
        (DMON_3_MIXED, 5, [Row("GPU", 7, ["N/A", "N/A", "0.000", "0.000", "26"]),
                           Row("GPU", 6, ["0", "0", "0.000", "0.000", "26"])]),
    ],
)  # fmt: skip
def test_rows_of_several_versions_are_read(text: str, count: int, rows: list[Row]) -> None:
    read = [parse_row(line, count) for line in text.splitlines()]
    assert [row for row in read if row] == rows


@pytest.mark.parametrize(
    "line",
    ["Error setting watches. Result: -6: Feature not supported", "GPU 0  0.5", "GPU x  1  2",
     "dmon was stopped do to receiving a signal", "GPU", "\x00\x00"],
)  # fmt: skip
def test_what_is_no_row_is_what_dcgmi_complains_of(line: str) -> None:
    with pytest.raises(ValueError, match=r".*"):
        parse_row(line, 2)


@given(st.text())
def test_any_other_line_is_a_complaint_and_nothing_worse(line: str) -> None:
    try:
        parse_row(line, 9)
    except ValueError:
        return


def test_gpus_are_known_by_uuid() -> None:
    assert parse_gpus(LISTING) == {
        0: "GPU-34bf77d1-c686-6821-79a8-32d326c5039c",
        3: "GPU-9d3de631-3422-9bc2-c43e-5e9106c621f4",
    }
    assert parse_gpus("no GPUs found.") == {}


def test_instances_are_known_by_the_drivers_number() -> None:
    uuid = "GPU-f04cff15-f427-9612-3f5e-60a6e0cd2018"
    assert parse_instances(TREE) == {1: (uuid, 1), 0: (uuid, 2)}
    assert parse_instances("Error") == {}


def test_activity_comes_from_the_row_of_the_same_gpu(bench: Bench) -> None:
    live(bench, 0, 10)
    (found,) = live(bench, 11, 20)
    assert found.source.name == "dcgmi"
    assert found.source.passed_over == {"gpm": "unsupported"}
    assert found.values["sm_active"] == pytest.approx(0.25)
    assert found.values["pcie_rx"] == pytest.approx(3e9)
    assert found.values["tensor_active"] == "absent"
    assert (found.values["sm_min"], found.values["source_period"]) == (pytest.approx(0.25), 1)
    assert found.values["power_watts"] == pytest.approx(300)


def test_a_value_that_is_cut_costs_only_itself(bench: Bench, dcgmi: FakeDcgmi) -> None:
    dcgmi.row("GPU 1", f1011="123456...", f1012=5)
    live(bench, 0, 10)
    (found,) = live(bench, 11, 20)
    assert found.values["nvlink_tx"] == "absent"
    assert found.values["nvlink_rx"] == 5
    assert found.values["sm_active"] == pytest.approx(0.25)


def test_instances_have_their_own_rows(bench: Bench, dcgmi: FakeDcgmi) -> None:
    bench.driver.split(0, ["3g.40gb", "3g.40gb"])
    bench.driver.write()
    bench.inventory.discover()
    for number, gpu_instance in ((7, 1), (5, 2)):
        dcgmi.instance(number, gpu=1, gpu_instance=gpu_instance)
        dcgmi.row(f"GPU-I {number}", f1002=0.125 * gpu_instance)
    live(bench, 0, 10)
    told = {}
    for each in live(bench, 11, 20):
        told[each.values["sm_active"]] = each.source.name
    assert told == {0.125: "dcgmi", 0.25: "dcgmi"}


def test_a_row_of_a_compute_instance_is_no_devices_row(bench: Bench, dcgmi: FakeDcgmi) -> None:
    dcgmi.mode("compute instances")
    live(bench, 0, 10)
    (found,) = live(bench, 11, 20)
    assert found.values["sm_active"] == pytest.approx(0.25)


def test_garbage_among_the_rows_costs_no_row(bench: Bench, dcgmi: FakeDcgmi) -> None:
    dcgmi.mode("garbage")
    live(bench, 0, 10)
    (found,) = live(bench, 11, 20)
    assert found.values["sm_active"] == pytest.approx(0.25)


def test_a_dcgmi_that_babbles_is_killed_and_logged_once(
    bench: Bench, dcgmi: FakeDcgmi, caplog: pytest.LogCaptureFixture
) -> None:
    dcgmi.mode("babbles")
    wait_for(lambda: bool(bench.seconds(0, 1) or dcgmi.pids), "dcgmi was started", 20, 0.02)
    (first,) = dcgmi.pids
    seconds = count(2)

    def killed() -> bool:
        second = min(next(seconds), 14)  # it is not silence that kills it
        bench.seconds(second, second)
        return not alive(first)

    wait_for(killed, "it is killed", 20, 0.05)
    wait_for(lambda: not source_of(bench)._lane.busy, "its end is noticed", 20, 0.02)
    assert "lines that are no rows" in source_of(bench)._trouble
    records = [record for record in caplog.records if record.name.endswith("dcgmi")]
    assert len(records) == 1


def test_a_dcgmi_that_hangs_is_killed_and_started_again(bench: Bench, dcgmi: FakeDcgmi) -> None:
    dcgmi.mode("hangs")
    wait_for(lambda: bool(bench.seconds(0, 1) or dcgmi.pids), "dcgmi was started", 20, 0.02)
    (first,) = dcgmi.pids
    pass_time(bench, 2, 30, lambda: not alive(first), "the one that hangs is killed")
    words = [each.source.passed_over["dcgmi"] for _, each in bench.seconds(31, 40)]
    assert all("printed nothing for" in each for each in words)
    dcgmi.mode("")
    source, seconds = source_of(bench), count(41)

    def one_more_second() -> bool:
        second = next(seconds)
        bench.seconds(second, second)
        return bool(source._points)

    wait_for(one_more_second, "another one prints", 60, 0.1)
    again = 10 * (next(seconds) // 10 + 1)
    live(bench, again, again + 10)
    (found,) = live(bench, again + 11, again + 20)
    assert found.values["sm_active"] == pytest.approx(0.25)


def test_a_dcgmi_that_falls_silent_leaves_no_old_values(bench: Bench, dcgmi: FakeDcgmi) -> None:
    live(bench, 0, 20)
    (first,) = dcgmi.pids
    os.kill(first, signal.SIGSTOP)
    pass_time(bench, 21, 40, lambda: not alive(first), "it is killed")
    found = dict(bench.seconds(41, 50))
    assert {each.source.name for each in found.values()} == {None}


def test_a_dcgmi_that_dies_is_started_again_with_patience(bench: Bench, dcgmi: FakeDcgmi) -> None:
    dcgmi.mode("dies")
    source = source_of(bench)
    for second in range(40):
        bench.seconds(second, second)
        wait_for(lambda: not source._lane.busy, "it has died", 20, 0.01)
    # After 2, 4, 8, 16 and 32 seconds.
    assert 3 <= len(dcgmi.pids) <= 5
    assert source._trouble == "dcgmi ended with 139"


@pytest.mark.parametrize(
    ("mode", "words"),
    [("no permission", "requires the host engine to be running as root"),
     ("no host engine", "Unable to connect to host engine")],
)  # fmt: skip
def test_what_dcgmi_complains_of_is_told(
    bench: Bench, dcgmi: FakeDcgmi, mode: str, words: str,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    dcgmi.mode(mode)
    live(bench, 0, 10)
    (found,) = live(bench, 11, 20)
    assert words in found.source.passed_over["dcgmi"]
    assert sum(words in record.message for record in caplog.records) == 1


def test_a_dcgmi_that_is_not_there_is_told(driver: FakeDriver) -> None:
    driver.set(0, gpm="0")
    bench = Bench(driver, {"dcgmi": "/nowhere/dcgmi"})
    live(bench, 0, 10)
    (found,) = live(bench, 11, 20)
    assert found.source.passed_over["dcgmi"] == "/nowhere/dcgmi is not installed"
    bench.inventory.close()


def test_no_dcgmi_runs_where_no_gpu_needs_it(bench: Bench, dcgmi: FakeDcgmi) -> None:
    live(bench, 0, 20)
    (first,) = dcgmi.pids
    for gpu in range(2):
        bench.driver.set(gpu, gpm="1")
    pass_time(bench, 21, 120, lambda: not alive(first), "it is ended")
    bench.seconds(121, 150)
    assert dcgmi.pids == [first]


def test_a_dcgmi_that_is_just_being_started_is_ended_too(bench: Bench, dcgmi: FakeDcgmi) -> None:
    bench.seconds(0, 1)
    assert source_of(bench)._lane.busy
    bench.inventory.close()
    wait_for(lambda: not source_of(bench)._lane.busy, "its life is over", 20, 0.02)
    assert not any(alive(pid) for pid in dcgmi.pids)


def test_dcgmi_does_not_outlive_an_agent_that_is_killed(tmp_path: Path, dcgmi: FakeDcgmi) -> None:
    dcgmi.mode("hangs")
    script = (
        "import sys, time\n"
        "from flopwatch_agent import children\n"
        "child = children.start([sys.argv[1], 'dmon', '-e', '1001', '-d', '1000'])\n"
        "time.sleep(600)\n"
    )
    agent = subprocess.Popen([sys.executable, "-c", script, str(dcgmi.path)])
    try:
        wait_for(lambda: dcgmi.pids, "dcgmi was started", 20, 0.02)
        agent.kill()
    finally:
        agent.kill()
        agent.wait()
    wait_for(lambda: not alive(dcgmi.pids[0]), "dcgmi ended with the agent", 20, 0.02)
