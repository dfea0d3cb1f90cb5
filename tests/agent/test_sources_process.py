"""All sources at once in a real agent: one GPU has GPM, dcgmi knows one, the exporter one."""

import signal
from pathlib import Path

import pytest

from tests.agent.test_agent_process import AgentProcess, IngestServer
from tests.agent.test_dcgmi import alive
from tests.lab.fake_dcgmi import FakeDcgmi
from tests.lab.fake_exporter import FakeExporter
from tests.lab.fake_nvml import FakeDriver
from tests.lab.processes import wait_for


def test_each_gpu_has_its_best_source_and_no_child_outlives_a_killed_agent(tmp_path: Path) -> None:
    driver, dcgmi = FakeDriver(tmp_path, gpus=4), FakeDcgmi(tmp_path)
    server, exporter = IngestServer(), FakeExporter()
    driver.set(0, sm_active=0.25)
    for gpu in (1, 2, 3):
        driver.set(gpu, gpm="0")
    driver.write()
    dcgmi.gpu(5, driver.uuid(1))
    dcgmi.row("GPU 5", f1002=0.5)
    exporter.set(driver.uuid(2), sm_active=0.75)
    agent = AgentProcess(tmp_path, server.port, driver.environment())
    agent.arguments += ["--dcgmi", str(dcgmi.path), "--dcgm-exporter", exporter.url]
    agent.start()
    try:
        wait_for(lambda: len(_sources(server)) == 4, "all four have told", 60)
        wait_for(lambda: len(_activity(server)) == 3, "three have activity", 60)
        (child,) = dcgmi.pids
        assert alive(child)
    finally:
        agent.end(signal.SIGKILL)
        server.down()
        exporter.down()
    assert [_sources(server)[driver.uuid(gpu)] for gpu in range(4)] == [
        ("gpm", []),
        ("dcgmi", ["gpm"]),
        ("dcgm_exporter", ["gpm", "dcgmi"]),
        (None, ["gpm", "dcgmi", "dcgm_exporter"]),
    ]
    assert _activity(server) == pytest.approx(
        {driver.uuid(0): 0.25, driver.uuid(1): 0.5, driver.uuid(2): 0.75}
    )
    wait_for(lambda: not alive(child), "dcgmi ended with the agent", 20)


def _sources(server: IngestServer) -> dict[str, tuple[str | None, list[str]]]:
    """The source last told of each GPU, and which were passed over for it."""
    return {
        header["devices"][each["device"]]["uuid"]: (each["name"], list(each["passed_over"]))
        for header, _ in list(server.batches)
        for each in header["sources"]
    }


def _activity(server: IngestServer) -> dict[str, float]:
    """The last SM activity of each GPU that has any."""
    return {
        header["devices"][device]["uuid"]: row[header["samples"]["columns"].index("sm_active")]
        for header, rows in list(server.batches)
        for device, row in zip(header["samples"]["device"], rows, strict=True)
        if row[header["samples"]["columns"].index("sm_active")] >= 0
    }
