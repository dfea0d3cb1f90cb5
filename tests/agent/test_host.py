"""CPU and memory of the node and of jobs, by the kernel's own files."""

from pathlib import Path

import pytest

from flopwatch.wire import HostUsage
from flopwatch_agent.collectors.host import HostCollector, boot_time, read_node


class Host:
    """The files that the collector reads, at a moment in time."""

    def __init__(self, root: Path) -> None:
        self.proc, self.cgroup = root / "proc", root / "cgroup"
        self.proc.mkdir()
        self.cgroup.mkdir()
        self.node(busy_ticks=0)

    def node(self, busy_ticks: int) -> None:
        # user nice system idle iowait irq softirq steal guest guest_nice; guest is in user already
        user = busy_ticks - 40 if busy_ticks else 0
        rest = "10 20 900000 8000 4 6 150" if busy_ticks else "0 0 500000 7000 0 0 99"
        (self.proc / "stat").write_text(
            f"cpu  {user} {rest} 50 0\ncpu0 1 1 1 1\ncpu1 1 1 1 1\nintr 5\nbtime 1700000000\n"
        )
        (self.proc / "meminfo").write_text(
            "MemTotal:       16384000 kB\nMemFree: 1024 kB\nMemAvailable:   12288000 kB\n"
        )

    def file(self, path: str, text: str | int) -> None:
        target = self.cgroup / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(f"{text}\n")


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_the_nodes_minute_is_the_difference_of_two_readings(host: Host) -> None:
    collector = HostCollector(host.proc, host.cgroup, None)
    assert collector.collect(60) == []
    host.node(busy_ticks=9000)  # at 100 ticks a second
    (usage,) = collector.collect(120)
    assert usage == HostUsage(120, None, 90.0, 2, 4000.0, 16000.0)


def test_a_minute_that_was_not_seen_whole_is_not_told(host: Host) -> None:
    collector = HostCollector(host.proc, host.cgroup, None)
    collector.collect(60)
    assert collector.collect(240) == []
    assert len(collector.collect(300)) == 1


def test_this_machine_can_be_read() -> None:
    reading = read_node(Path("/proc"))
    assert reading.cpu_seconds is not None
    assert reading.cpu_seconds > 0
    assert reading.memory_used_mib is not None
    assert reading.memory_total_mib is not None
    assert 0 < reading.memory_used_mib < reading.memory_total_mib
    assert boot_time(Path("/proc")) > 1e9


def test_jobs_of_cgroup_v2(host: Host) -> None:
    job = "system.slice/slurmstepd.scope/job_42"
    host.file("cgroup.controllers", "cpu memory")
    host.file(f"{job}/cpu.stat", "usage_usec 5000000\nuser_usec 4000000")
    host.file(f"{job}/memory.current", 3 << 30)
    host.file(f"{job}/memory.stat", f"anon 1\ninactive_file {1 << 30}")
    host.file(f"{job}/memory.max", 8 << 30)
    host.file(f"{job}/cpuset.cpus.effective", "0-3,8")
    host.file("system.slice/slurmstepd.scope/system/cpu.stat", "usage_usec 1")
    collector = HostCollector(host.proc, host.cgroup, None)
    collector.collect(60)
    host.file(f"{job}/cpu.stat", "usage_usec 35000000\nuser_usec 30000000")
    usage = collector.collect(120)[1]
    assert usage == HostUsage(120, 42, 30.0, 5, 2048.0, 8192.0)


def test_a_counter_that_fell_belongs_to_another_cgroup_and_tells_nothing(host: Host) -> None:
    job = "system.slice/slurmstepd.scope/job_42"
    host.file("cgroup.controllers", "cpu memory")
    host.file(f"{job}/cpu.stat", "usage_usec 5000000")
    collector = HostCollector(host.proc, host.cgroup, None)
    collector.collect(60)
    host.file(f"{job}/cpu.stat", "usage_usec 1000000")  # the job was requeued to this node
    usages = {usage.job_id: usage for usage in collector.collect(120)}
    assert usages[42].cpu_seconds is None


def test_jobs_of_cgroup_v1_with_no_limit(host: Host) -> None:
    job = "slurm/uid_1001/job_7"
    host.file(f"cpuacct/{job}/cpuacct.usage", 1_000_000_000)
    host.file(f"memory/{job}/memory.usage_in_bytes", 512 << 20)
    host.file(f"memory/{job}/memory.stat", f"cache 5\ntotal_inactive_file {12 << 20}")
    host.file(f"memory/{job}/memory.limit_in_bytes", 9223372036854771712)
    host.file(f"cpuset/{job}/cpuset.cpus", "4-5")
    collector = HostCollector(host.proc, host.cgroup, None)
    collector.collect(60)
    host.file(f"cpuacct/{job}/cpuacct.usage", 41_000_000_000)
    assert collector.collect(120)[1] == HostUsage(120, 7, 40.0, 2, 500.0, None)


def test_a_controller_that_is_not_there_leaves_its_figure_unknown(host: Host) -> None:
    host.file("memory/slurm/uid_1001/job_7/memory.usage_in_bytes", 1 << 20)
    collector = HostCollector(host.proc, host.cgroup, None)
    collector.collect(60)
    assert collector.collect(120)[1] == HostUsage(120, 7, None, None, 1.0, None)


def test_a_job_that_began_within_the_minute_began_at_zero(host: Host) -> None:
    collector = HostCollector(host.proc, host.cgroup, None)
    collector.collect(60)
    host.file("cpuacct/slurm/uid_1/job_9/cpuacct.usage", 12_000_000_000)
    assert collector.collect(120)[1].cpu_seconds == pytest.approx(12.0)


def test_jobs_of_another_slurmd_on_this_host_are_not_counted(host: Host) -> None:
    host.file("memory/slurm_node1/uid_1/job_1/memory.usage_in_bytes", 1 << 20)
    host.file("memory/slurm_node2/uid_1/job_2/memory.usage_in_bytes", 1 << 20)
    collector = HostCollector(host.proc, host.cgroup, "node2")
    collector.collect(60)
    assert [usage.job_id for usage in collector.collect(120)] == [None, 2]


def test_nor_are_those_of_cgroup_v2(host: Host) -> None:
    host.file("cgroup.controllers", "cpu memory")
    for name, job in (("node1_slurmstepd", 1), ("node2_slurmstepd", 2), ("slurmstepd", 3)):
        host.file(f"system.slice/{name}.scope/job_{job}/memory.current", 1 << 20)
    collector = HostCollector(host.proc, host.cgroup, "node2")
    collector.collect(60)
    assert [usage.job_id for usage in collector.collect(120)] == [None, 2]
