"""The fake driver speaks the vendor's own layout, so that what passes here says something."""

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pynvml
import pytest

from tests.lab.fake_nvml import FakeDriver


@pytest.mark.parametrize(
    ("struct", "size"),
    [
        (pynvml.c_nvmlGpmMetric_t, 40),
        (pynvml.c_nvmlProcessInfo_v3_t, 24),
        (pynvml.nvmlPciInfo_t, 68),
        (pynvml.c_nvmlMemory_v2_t, 40),
    ],
)
def test_structs_of_the_binding_have_the_sizes_that_the_fake_asserts(
    struct: type[ctypes.Structure], size: int
) -> None:
    assert ctypes.sizeof(struct) == size


def test_index_and_minor_never_agree(driver: FakeDriver) -> None:
    pynvml.nvmlInit()
    handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(2)]
    assert [pynvml.nvmlDeviceGetMinorNumber(handle) for handle in handles] == [4, 5]
    assert [pynvml.nvmlDeviceGetUUID(handle) for handle in handles] == [
        driver.uuid(0),
        driver.uuid(1),
    ]


@pytest.mark.parametrize(
    ("code", "error"),
    [(15, pynvml.NVMLError_GpuIsLost), (4, pynvml.NVMLError_NoPermission)],
)
def test_an_error_of_one_gpu_comes_as_its_own_class(
    driver: FakeDriver, code: int, error: type[Exception]
) -> None:
    driver.set(0, error=str(code))
    driver.write()
    lost, fine = (pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(2))
    with pytest.raises(error):
        pynvml.nvmlDeviceGetPowerUsage(lost)
    assert pynvml.nvmlDeviceGetPowerUsage(fine) == 70_000


def test_values_change_under_a_running_reader(driver: FakeDriver) -> None:
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    for watts in (100, 650):
        driver.set(0, power_watts=watts)
        driver.write()
        assert pynvml.nvmlDeviceGetPowerUsage(handle) == watts * 1000


def test_unset_struct_version_is_refused(driver: FakeDriver) -> None:
    with pytest.raises(pynvml.NVMLError_ArgumentVersionMismatch):
        pynvml.nvmlGpmMetricsGet(pynvml.c_nvmlGpmMetricsGet_t())


def test_a_driver_may_lack_a_symbol(tmp_path: Path) -> None:
    driver = FakeDriver(tmp_path, without=["nvmlDeviceGetTotalEnergyConsumption"])
    script = (
        "import pynvml as n; n.nvmlInit(); h = n.nvmlDeviceGetHandleByIndex(0)\n"
        "try: n.nvmlDeviceGetTotalEnergyConsumption(h)\n"
        "except n.NVMLError_FunctionNotFound: print('not there', n.nvmlDeviceGetPowerUsage(h))"
    )
    result = subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | driver.environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout == "not there 70000\n"
