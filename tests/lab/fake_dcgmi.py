"""A `dcgmi` for tests: a program that prints what the real one prints, and breaks on request.

Layout, order and blanks are those of dcgmi/DeviceMonitor.cpp and dcgmi/Query.cpp of DCGM 3.3: the
fields in the order asked for, three decimals, N/A for blanks and in the first round after a watch
began, headers again after 14 rounds, complaints as plain lines.
"""

import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_NAMES = {
    1001: "GRACT", 1002: "SMACT", 1003: "SMOCC", 1004: "TENSO", 1005: "DRAMA", 1009: "PCITX",
    1010: "PCIRX", 1011: "NVLTX", 1012: "NVLRX",
}  # fmt: skip
_WIDTH = 12
_ROUNDS_TO_HEADER = 14
_BYTES = range(1009, 1013)
_NO_PERMISSION = (
    "Error setting watches. Result: -29: Unable to watch one or more of the requested fields "
    "because doing so requires the host engine to be running as root."
)


class FakeDcgmi:
    """One node's dcgmi. `pids` are those of every dmon that was started, oldest first."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "dcgmi"
        self._state = folder / "dcgmi.json"
        self._pids = folder / "dcgmi.pids"
        self._told: dict[str, Any] = {"gpus": {}, "instances": [], "rows": {}, "mode": "", "ms": 15}
        self.path.write_text(
            f'#!/bin/sh\nexec {sys.executable} -S {Path(__file__).resolve()} {self._state} "$@"\n'
        )
        self.path.chmod(0o755)
        self._write()

    @property
    def pids(self) -> list[int]:
        """Processes that ran dmon."""
        text = self._pids.read_text() if self._pids.exists() else ""
        return [int(line) for line in text.split()]

    def gpu(self, number: int, uuid: str) -> None:
        """A GPU that dcgmi calls `number`."""
        self._told["gpus"][str(number)] = uuid
        self._write()

    def instance(self, number: int, gpu: int, gpu_instance: int) -> None:
        """Part `gpu_instance` of a GPU, which dcgmi calls `number`."""
        self._told["instances"].append([number, gpu, gpu_instance])
        self._write()

    def row(self, entity: str, **values: float | str) -> None:
        """Values of "GPU 0" or "GPU-I 3", by f and field number: f1002=0.5; others are N/A."""
        numbers = {name.removeprefix("f"): value for name, value in values.items()}
        self._told["rows"].setdefault(entity, {}).update(numbers)
        self._write()

    def mode(self, name: str) -> None:
        """ "" works; "hangs", "dies", "garbage", "babbles", "compute instances",
        "no host engine", "no permission"."""
        self._told["mode"] = name
        self._write()

    def _write(self) -> None:
        fresh = self._state.with_suffix(".new")
        fresh.write_text(json.dumps(self._told))
        fresh.replace(self._state)


def _main(state: Path, arguments: list[str]) -> int:
    told = json.loads(state.read_text())
    if told["mode"] == "no host engine":
        print("Error: unable to establish a connection to the specified host: localhost")
        print(
            "Error: Unable to connect to host engine. Host engine connection invalid/disconnected."
        )
        return 1
    if arguments[:2] == ["discovery", "-l"]:
        print(_listing(told["gpus"]))
        return 0
    if arguments[:2] == ["discovery", "-c"]:
        print(_tree(told["gpus"], told["instances"]))
        return 0
    with state.with_name("dcgmi.pids").open("a") as pids:
        pids.write(f"{os.getpid()}\n")
    fields = [int(each) for each in arguments[arguments.index("-e") + 1].split(",")]
    wanted = arguments[arguments.index("-i") + 1].split(",") if "-i" in arguments else None
    return _monitor(state, fields, wanted)


def _monitor(state: Path, fields: list[int], wanted: list[str] | None) -> int:
    round_number = 0
    while True:
        told = json.loads(state.read_text())
        if round_number % _ROUNDS_TO_HEADER == 0:
            names = "".join(f"{_NAMES[each]:<{_WIDTH}}" for each in fields)
            print(f"{'#Entity':<10}{names}\n{'ID':<10}{' ' * _WIDTH * len(fields)}")
        if told["mode"] == "no permission":
            print(_NO_PERMISSION)
            return 1
        if told["mode"] == "dies" and round_number > 2:
            return 139
        if told["mode"] == "hangs":
            sys.stdout.flush()
            time.sleep(3600)
        if told["mode"] == "garbage":
            print("GPU 0     0.5\n\x00\xff GPU\nSwitch 0  1  2\nGPU zero  N/A\n" + "9" * 70000)
        if told["mode"] == "babbles":
            print("\n".join(f"what is {number}?" for number in range(100 * round_number)))
        if told["mode"] == "compute instances":
            print(_row("GPU-CI 1", {str(field): 1 for field in fields}, fields, False))
        for entity in _entities(told, wanted):
            print(_row(entity, told["rows"].get(entity, {}), fields, round_number == 0))
        sys.stdout.flush()
        time.sleep(told["ms"] / 1000)
        round_number += 1


def _entities(told: Mapping[str, Any], wanted: list[str] | None) -> list[str]:
    """Each GPU and then its parts; without a list only GPUs, as in the default group."""
    if wanted is None:
        return [f"GPU {number}" for number in told["gpus"]]
    names = [f"GPU-I {each[2:]}" if each.startswith("i:") else f"GPU {each}" for each in wanted]
    return sorted(names)


def _row(entity: str, values: Mapping[str, Any], fields: list[int], first: bool) -> str:
    cells = ["N/A" if first else _cell(values.get(str(field)), field) for field in fields]
    return f"{entity:<10}" + "".join(f"{cell:<{_WIDTH}}" for cell in cells)


def _cell(value: Any, field: int) -> str:
    if value is None:
        return "N/A"
    if isinstance(value, str):
        return value
    return str(int(value)) if field in _BYTES else f"{value:.3f}"


def _listing(gpus: Mapping[str, str]) -> str:
    rule = f"+--------+{'-' * 70}+"
    lines = [f"{len(gpus)} GPUs found.", rule, f"| GPU ID | {'Device Information':<69}|", rule]
    for number, uuid in gpus.items():
        for head, text in (
            (number, "Name: NVIDIA A100-SXM4-80GB"),
            ("", f"PCI Bus ID: 00000000:{int(number) + 16:02X}:00.0"),
            ("", f"Device UUID: {uuid}"),
        ):
            lines.append(f"| {head:<7}| {text:<69}|")
        lines.append(rule)
    return "\n".join(
        [*lines, "0 NvSwitches found.", "+-----------+", "| Switch ID |", "+-----------+"]
    )


def _tree(gpus: Mapping[str, str], instances: list[list[int]]) -> str:
    rule = f"+-------------------+{'-' * 68}+"
    lines = [rule, f"| {'Instance Hierarchy':<87}|", rule.replace("-", "=")]
    for number, uuid in gpus.items():
        parts = [each for each in instances if each[1] == int(number)]
        if parts:
            lines.append(f"| GPU {number:<14}| {f'GPU {uuid} (EntityID: {number})':<67}|")
        for entity, gpu, gpu_instance in parts:
            head, text = f"-> I {gpu}/{gpu_instance}", f"GPU Instance (EntityID: {entity})"
            lines.append(f"| {head:<18}| {text:<67}|")
            head, text = (
                f"   -> CI {gpu}/{gpu_instance}/0",
                f"Compute Instance (EntityID: {entity})",
            )
            lines.append(f"| {head:<18}| {text:<67}|")
    return "\n".join([*lines, rule])


if __name__ == "__main__":
    sys.exit(_main(Path(sys.argv[1]), sys.argv[2:]))
