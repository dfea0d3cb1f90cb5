"""A GPU driver for tests: builds the fake libnvidia-ml and moves its figures.

driver = FakeDriver(tmp_path)
driver.set(0, tensor_active=0.42, power_watts=500)
driver.processes(0, [pid])
driver.write()
Popen([...], env=os.environ | driver.environment())
"""

import atexit
import ctypes
import os
import subprocess
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp

import pynvml
import pytest

SOURCE = Path(__file__).parent / "nvml/fake_nvml.c"

# What a test says -> the driver's own key and how many of its units make one of ours.
# GPM speaks percent and MiB/s and numbers NVLink receive before transmit (NVML's header).
_PERCENT = 100.0
_PER_MIB = 1 / 1048576
_KEYS: dict[str, tuple[str, float]] = {
    "engine_active": ("gpm.1", _PERCENT),
    "sm_active": ("gpm.2", _PERCENT),
    "sm_occupancy": ("gpm.3", _PERCENT),
    "tensor_active": ("gpm.5", _PERCENT),
    "dram_active": ("gpm.10", _PERCENT),
    "fp64_active": ("gpm.11", _PERCENT),
    "fp32_active": ("gpm.12", _PERCENT),
    "fp16_active": ("gpm.13", _PERCENT),
    "pcie_tx": ("gpm.20", _PER_MIB),
    "pcie_rx": ("gpm.21", _PER_MIB),
    "nvlink_rx": ("gpm.60", _PER_MIB),
    "nvlink_tx": ("gpm.61", _PER_MIB),
    "gpu_utilization": ("utilization", _PERCENT),
    "power_watts": ("power_mw", 1000.0),
    "power_limit_watts": ("power_limit_mw", 1000.0),
    "energy_joules": ("energy_mj", 1000.0),
    "sm_clock_mhz": ("clock", 1.0),
    "temperature_c": ("temperature", 1.0),
}
_GPM_NAMES = tuple(name for name, (key, _) in _KEYS.items() if key.startswith("gpm."))

Value = float | str


class FakeDriver:
    """The state of one node's fake driver; several may live at once, each with its own folder.

    GPU n sits at /dev/nvidia of the minor (n + 4) % 8: no index equals its minor. Without `clock`
    time passes as in the world; with it only when a test sets `driver.clock` and calls `write`.
    """

    def __init__(
        self,
        folder: Path,
        gpus: int = 8,
        *,
        model: str = "NVIDIA H100 80GB HBM3",
        node: int = 0,
        without: Sequence[str] = (),
        clock: float | None = None,
    ) -> None:
        """Build the library if need be. `without` names symbols that this driver lacks."""
        self.library = _built(tuple(without))
        self.state = folder / "fake-nvml.state"
        self.gpus = gpus
        self.clock = clock
        self.init_error = 0
        self._xids = 0
        self._lines: dict[str, str] = {}
        for gpu in range(gpus):
            self._describe(gpu, model, node)
        self.write()

    def environment(self) -> dict[str, str]:
        """The variables that make a child process load this driver."""
        return {"LD_LIBRARY_PATH": str(self.library.parent), "FAKE_NVML_STATE": str(self.state)}

    def load(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let `pynvml` in this very process use this driver until the test ends."""
        library = ctypes.CDLL(str(self.library))
        library.fakeNvmlUse(os.fsencode(self.state))
        monkeypatch.setattr(pynvml, "nvmlLib", library)
        monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})

    def uuid(self, gpu: int | str) -> str:
        """The UUID of a GPU (3) or of a MIG instance ("3/1")."""
        return self._lines[f"gpu.{gpu}.uuid"]

    def set(self, gpu: int | str, **values: Value) -> None:
        """Set readings: ratios as fractions, rates in B/s, others in the unit of their name.

        A text goes to the driver as it is: "error:3" (not supported), "blank" (GPM's NaN). Other
        names are the driver's own: error, handle_error, delay_ms, reasons, gpm, memory_used_mib,
        ecc_corrected, ecc_uncorrected, pcie_width, pcie_max_width, and remapped_rows as
        "corrected uncorrected pending failed".
        """
        for name, value in values.items():
            key, units = _KEYS.get(name, (name, 1.0))
            text = value if isinstance(value, str) else f"{value * units:.9g}"
            self._lines[f"gpu.{gpu}.{key}"] = text

    def processes(self, gpu: int | str, pids: Sequence[int]) -> None:
        """Let these processes compute on the GPU."""
        self._lines[f"gpu.{gpu}.processes"] = " ".join(str(pid) for pid in pids)

    def xid(self, gpu: int, code: int, gpu_instance: int | None = None) -> None:
        """Let an Xid happen, to one instance of the GPU if given."""
        self._xids += 1
        whose = "" if gpu_instance is None else f" {gpu_instance}"
        self._lines[f"gpu.{gpu}.xid"] = f"{self._xids} {code}{whose}"

    def split(self, gpu: int, profiles: Sequence[str]) -> None:
        """Switch MIG on and make one instance of each profile, such as "3g.40gb"."""
        self.set(gpu, mig="1")
        for place, profile in enumerate(profiles):
            instance = f"{gpu}/{place}"
            self.set(
                instance,
                uuid=f"MIG-{gpu:04d}{place:04d}-0000-0000-0000-000000000000",
                name=f"{self._lines[f'gpu.{gpu}.name']} MIG {profile}",
                gpu_instance=str(place + 1),
                compute_instance="0",
            )
            self._set_idle(instance, memory_mib=20480)

    def write(self) -> None:
        """Hand the state over at once; the driver reads it at its next call."""
        head = [] if self.clock is None else [f"clock {self.clock:.6f}"]
        head += [f"gpus {self.gpus}", f"init_error {self.init_error}"]
        lines = [f"{key} {value}" for key, value in self._lines.items()]
        fresh = self.state.with_suffix(".new")
        fresh.write_text("\n".join([*head, *lines]) + "\n")
        # The kernel's own times are coarse: two writes of a quick test would look like one.
        os.utime(fresh, ns=(time.time_ns(), time.time_ns()))
        fresh.replace(self.state)

    def _describe(self, gpu: int, model: str, node: int) -> None:
        self.set(
            gpu,
            name=model,
            uuid=f"GPU-{node:04d}{gpu:04d}-1111-2222-3333-444444444444",
            minor=str((gpu + 4) % 8),
            bus_id=f"00000000:{0x10 + gpu:02X}:00.0",
            mig="0",
            power_limit_watts=700,
            ecc_corrected=0,
            ecc_uncorrected=0,
            remapped_rows="0 0 0 0",
            pcie_width=16,
            pcie_max_width=16,
        )
        self._set_idle(gpu, memory_mib=81559)

    def _set_idle(self, gpu: int | str, memory_mib: int) -> None:
        """What an idle H100 shows: no activity, some tens of watts, a few MiB."""
        self.set(gpu, **dict.fromkeys(_GPM_NAMES, 0.0))
        self.set(
            gpu,
            gpm="1",
            memory_total_mib=memory_mib,
            memory_used_mib=4,
            memory_reserved_mib=600,
            gpu_utilization=0.0,
            power_watts=70,
            energy_joules=1000.0,
            temperature_c=30,
            sm_clock_mhz=345,
            reasons="1",
            processes="",
        )


@cache
def _built(without: tuple[str, ...]) -> Path:
    """The library that lacks these symbols, compiled once a process and removed with it."""
    folder = Path(mkdtemp(prefix="flopwatch-fake-nvml-"))
    atexit.register(rmtree, folder)
    library = folder / "libnvidia-ml.so.1"
    command = ["gcc", "-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    command += [f"-D{name}=left_out_{name}" for name in without]
    subprocess.run([*command, SOURCE, "-o", library, "-lpthread", "-lm"], check=True)
    return library
