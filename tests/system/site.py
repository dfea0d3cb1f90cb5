"""A small GPU centre on this host: a real Slurm, a server, an agent with its driver per node."""

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.lab.fake_nvml import FakeDriver
from tests.lab.processes import Process, Server, running
from tests.lab.slurm import SlurmLab, lab_folder, python_command

CLUSTER = "granite"
# 10 GFLOP/s, in the order of what one rank of this suite's job reaches on one shared core.
CPU_PEAK_TFLOPS = 0.01


@dataclass
class Site:
    """What a test may look at and lay hands on; `python` is a command for a job's script."""

    folder: Path
    slurm: SlurmLab
    server: Server
    drivers: dict[str, FakeDriver]
    python: str

    def set_activity(self, node: str, tensor_active: float, sm_active: float) -> None:
        """Let all GPUs of a node work like this from now on."""
        driver = self.drivers[node]
        for gpu in range(driver.gpus):
            driver.set(
                gpu, tensor_active=tensor_active, sm_active=sm_active, engine_active=0.98,
                dram_active=0.31, gpu_utilization=1.0, power_watts=450,
            )  # fmt: skip
        driver.write()

    def set_processes(self, node: str, pids: list[int]) -> None:
        """Let the first of these processes compute on GPU 0 of the node, and so on."""
        driver = self.drivers[node]
        for gpu, pid in enumerate(pids[: driver.gpus]):
            driver.processes(gpu, [pid])
        driver.write()


@contextmanager
def site(nodes: int, device_minors: Sequence[int] | None = None) -> Iterator[Site]:
    """Start everything, with a prolog that names the hook's socket of each node.

    `device_minors` are those of the nodes' device files, as `SlurmLab` takes them.
    """
    with ExitStack() as stack:
        folder = stack.enter_context(lab_folder())
        task_prolog = folder / "task_prolog.sh"
        task_prolog.write_text(
            "#!/bin/sh\n"
            f'echo "export FLOPWATCH_SOCKET={folder}/agents/$SLURMD_NODENAME/hook.sock"\n'
        )
        task_prolog.chmod(0o755)
        slurm = stack.enter_context(
            SlurmLab(
                _made(folder / "slurm"),
                nodes=nodes,
                device_minors=device_minors,
                task_prolog=task_prolog,
            )
        )
        server = stack.enter_context(Server(_made(folder / "server"), **_settings(folder, slurm)))
        drivers = {}
        for number, node in enumerate(slurm.nodes):
            home = _made(folder / "agents" / node)
            drivers[node] = FakeDriver(home, node=number)
            environment = drivers[node].environment() | _slurm_conf(slurm)
            stack.enter_context(running(_agent(server, node, home, environment)))
        alice = slurm.users["fwalice"]
        python = " ".join(stack.enter_context(python_command(alice, folder)))
        yield Site(folder, slurm, server, drivers, python)


def _settings(folder: Path, slurm: SlurmLab) -> dict[str, str]:
    peaks = folder / "peaks.csv"
    peaks.write_text(f"name_pattern,tflops_fp32\n^CPU$,{CPU_PEAK_TFLOPS}\n")
    return {
        "FLOPWATCH_SLURM_CLUSTER": CLUSTER,
        "FLOPWATCH_SLURM_POLL_SECONDS": "10",
        "FLOPWATCH_GPU_PEAKS": str(peaks),
        "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin",
        **_slurm_conf(slurm),
    }


def _slurm_conf(slurm: SlurmLab) -> dict[str, str]:
    return {"SLURM_CONF": slurm.environment["SLURM_CONF"]}


def _agent(server: Server, node: str, home: Path, environment: dict[str, str]) -> Process:
    return Process(
        "agent", "--server", server.url, "--node", node, "--slurmd-name", node,
        "--token-file", server.token("node", CLUSTER, node), "--spool", home / "spool",
        "--socket", home / "hook.sock", "--prolog-dir", home / "jobs",
        log=home / "agent.log", environment=environment, nice=-5,  # as the unit has it
    )  # fmt: skip


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder
