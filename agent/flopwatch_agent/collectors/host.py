"""CPU and memory of the node and of every job's cgroup, once a minute."""

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from flopwatch.wire import HostUsage

PERIOD_SECONDS = 60
_JOB_FOLDER = re.compile(r"job_(\d{1,10})")
# A v1 cgroup without a limit says a number near 2^63 (kernel: memory.limit_in_bytes).
_UNLIMITED_BYTES = 1 << 60


@dataclass(frozen=True)
class Reading:
    """CPU seconds since the beginning (of the boot, or of the cgroup), and memory now."""

    cpu_seconds: float | None
    cpu_count: int | None
    memory_used_mib: float | None
    memory_total_mib: float | None


class HostCollector:
    """Turns readings a minute apart into usage of that minute."""

    def __init__(self, proc: Path, cgroup: Path, slurmd_name: str | None) -> None:
        self._proc = proc
        self._cgroup = cgroup
        self._slurmd_name = slurmd_name
        self._before: dict[int | None, Reading] = {}
        self._before_time: int | None = None

    def collect(self, time: int) -> list[HostUsage]:
        """Usage over (time − 60 s, time]; the first call only remembers, and so does a late one."""
        now = {None: read_node(self._proc), **self._read_jobs()}
        before, self._before = self._before, now
        whole = self._before_time == time - PERIOD_SECONDS
        self._before_time = time
        if not whole:
            return []
        return [_usage(time, job, reading, before) for job, reading in now.items()]

    def _read_jobs(self) -> dict[int | None, Reading]:
        """Jobs by cgroup v2 if it is mounted there, else by the v1 controllers."""
        if (self._cgroup / "cgroup.controllers").exists():
            scope = f"{self._slurmd_name}_slurmstepd" if self._slurmd_name else "*slurmstepd"
            return _by_job(self._cgroup, f"system.slice/{scope}.scope/job_*", read_job_v2)
        slurm = f"slurm_{self._slurmd_name}" if self._slurmd_name else "slurm*"
        jobs = _by_job(self._cgroup / "memory", f"{slurm}/uid_*/job_*", read_job_v1)
        others = _by_job(self._cgroup / "cpuacct", f"{slurm}/uid_*/job_*", read_job_v1)
        return others | jobs


def boot_time(proc: Path) -> float:
    """When the node was started, in seconds since 1970 (btime of /proc/stat)."""
    lines = (proc / "stat").read_text().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith("btime "))


def read_node(proc: Path) -> Reading:
    """The whole node, from /proc/stat and /proc/meminfo."""
    lines = (proc / "stat").read_text().splitlines()
    total = next(line for line in lines if line.startswith("cpu "))
    # user nice system idle iowait irq softirq steal; guest time is in user already (proc(5)).
    user, nice, system, _idle, _iowait, irq, softirq, *_ = map(int, total.split()[1:])
    busy = (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")
    count = sum(re.match(r"cpu\d", line) is not None for line in lines)
    memory = dict(
        line.split(":", 1) for line in (proc / "meminfo").read_text().splitlines() if ":" in line
    )
    total_kib, available_kib = (
        int(memory[name].split()[0]) for name in ("MemTotal", "MemAvailable")
    )
    return Reading(busy, count, (total_kib - available_kib) / 1024, total_kib / 1024)


def read_job_v2(root: Path, job: Path) -> Reading:
    """A job's cgroup v2. Memory is what the kernel can't take back at once, as `kubectl top`."""
    microseconds = _keyed(root / job / "cpu.stat").get("usage_usec")
    used = _number(root / job / "memory.current")
    inactive = _keyed(root / job / "memory.stat").get("inactive_file", 0)
    return Reading(
        None if microseconds is None else microseconds / 1e6,
        _cpu_count(root / job / "cpuset.cpus.effective"),
        None if used is None else max(0, used - inactive) / 2**20,
        _limit_mib(root / job / "memory.max"),
    )


def read_job_v1(root: Path, job: Path) -> Reading:
    """A job's v1 cgroups: each controller has its own tree, and a site may lack some."""
    trees = root.parent
    nanoseconds = _number(trees / "cpuacct" / job / "cpuacct.usage")
    memory = trees / "memory" / job
    used = _number(memory / "memory.usage_in_bytes")
    inactive = _keyed(memory / "memory.stat").get("total_inactive_file", 0)
    return Reading(
        None if nanoseconds is None else nanoseconds / 1e9,
        _cpu_count(trees / "cpuset" / job / "cpuset.cpus"),
        None if used is None else max(0, used - inactive) / 2**20,
        _limit_mib(memory / "memory.limit_in_bytes"),
    )


def _by_job(
    root: Path, pattern: str, read: Callable[[Path, Path], Reading]
) -> dict[int | None, Reading]:
    jobs: dict[int | None, Reading] = {}
    for folder in root.glob(pattern):
        match = _JOB_FOLDER.fullmatch(folder.name)
        if match is not None:
            jobs[int(match[1])] = read(root, folder.relative_to(root))
    return jobs


def _usage(
    time: int, job: int | None, now: Reading, all_before: dict[int | None, Reading]
) -> HostUsage:
    """A job that was not there a minute ago began at zero."""
    before = all_before.get(job)
    used = now.cpu_seconds
    if used is not None and before is not None:
        used = None if before.cpu_seconds is None else used - before.cpu_seconds
    return HostUsage(
        time,
        job,
        None if used is None or used < 0 else used,
        now.cpu_count,
        now.memory_used_mib,
        now.memory_total_mib,
    )


def _text(path: Path) -> str | None:
    """A file of a cgroup, which may end at any moment or lack that controller."""
    try:
        return path.read_text().strip()
    except OSError:
        return None


def _number(path: Path) -> int | None:
    text = _text(path)
    return int(text) if text is not None and text.isdigit() else None


def _keyed(path: Path) -> dict[str, int]:
    entries = (line.split() for line in (_text(path) or "").splitlines())
    return {entry[0]: int(entry[1]) for entry in entries if len(entry) == 2}


def _limit_mib(path: Path) -> float | None:
    limit = _number(path)
    return None if limit is None or limit >= _UNLIMITED_BYTES else limit / 2**20


def _cpu_count(path: Path) -> int | None:
    """How many CPUs a list such as "0-3,8" names."""
    text = _text(path)
    if not text:
        return None
    spans = (part.split("-") for part in text.split(","))
    return sum(int(span[-1]) - int(span[0]) + 1 for span in spans)
