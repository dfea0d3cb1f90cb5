"""A workstation, end to end: `flopwatch run`, a real training with the two lines, no scheduler."""

import json
import os
import pwd
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.lab.browser import chromium, complaints
from tests.lab.fake_nvml import FakeDriver
from tests.lab.login import Tree
from tests.lab.postgres import public_folder
from tests.lab.processes import wait_for
from tests.system.site import CPU_PEAK_TFLOPS
from tests.system.test_main_job import FLOPS_PER_STEP
from tests.system.test_run import LocalRun

RANKS = 2


@pytest.fixture
def folder() -> Iterator[Path]:
    with public_folder() as found:
        yield found


@pytest.mark.timeout(600)
def test_a_training_on_a_workstation_is_a_run_of_its_user_until_it_ends(folder: Path) -> None:
    peaks = folder / "peaks.csv"
    peaks.write_text(f"name_pattern,tflops_fp32\n^CPU$,{CPU_PEAK_TFLOPS}\n")
    driver = FakeDriver(folder, gpus=3)
    run = LocalRun(folder, driver, FLOPWATCH_GPU_PEAKS=str(peaks))
    try:
        wait_for(lambda: run.live_overview("workstation"), "live figures", 150)
        training, stop_file, logs = _start_training(folder, run)
        wait_for(lambda: len(list(logs.iterdir())) == RANKS, "both ranks train", 240)
        for gpu, pid in enumerate(_ranks_of(training)):
            driver.processes(gpu, [pid])
            driver.set(gpu, sm_active=0.8, tensor_active=0.42, gpu_utilization=1.0)
        driver.write()

        wait_for(lambda: _reports(run, training.pid), "both ranks report", 120)
        found = _job(run, training.pid)["run"]
        assert found["user"] == pwd.getpwuid(os.getuid()).pw_name
        assert (found["name"], found["state"], found["gpus"]) == ("gpt_job.py", "RUNNING", RANKS)
        assert (found["local"], found["partition"], found["account"]) == (True, "", "")
        wait_for(lambda: _counts(run) == (3, 2, 1), "the overview counts what is held", 60)

        stop_file.touch()
        training.end()
        for gpu in range(RANKS):
            driver.processes(gpu, [])
        driver.write()
        wait_for(lambda: _job(run, training.pid)["run"]["state"] == "COMPLETED", "it ends", 60)
        mfu = _job(run, training.pid)["mfu"]
        assert mfu["ranks"] == RANKS
        assert mfu["train_mfu"] == pytest.approx(_mfu_of_logs(logs), rel=0.01)
        _assert_the_page_speaks_of_no_scheduler(run, training.pid)
    finally:
        run.process.terminate()
        run.process.wait(60)
        print(run.log.read_text())  # which pytest shows of a test that fails


def _start_training(folder: Path, run: LocalRun) -> tuple[Tree, Path, Path]:
    stop_file, logs = folder / "stop", folder / "logs"
    logs.mkdir()
    training = Tree(
        Path(sys.executable).with_name("torchrun"), "--standalone", "--nproc-per-node", str(RANKS),
        Path(__file__).with_name("gpt_job.py"), logs, stop_file,
        FLOPWATCH_SOCKET=str(run.data / "agent/hook.sock"), OMP_NUM_THREADS="1",
    )  # fmt: skip
    return training, stop_file, logs


def _ranks_of(training: Tree) -> list[int]:
    children = Path(f"/proc/{training.pid}/task/{training.pid}/children").read_text().split()
    return [
        int(pid) for pid in children if b"gpt_job.py" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]


def _job(run: LocalRun, pid: int) -> dict[str, Any]:
    answer = httpx.get(
        f"http://127.0.0.1:{run.port}/api/v1/jobs/workstation/{pid}", timeout=20
    )  # fmt: skip
    found: dict[str, Any] = answer.json() if answer.status_code == 200 else {}
    return found


def _counts(run: LocalRun) -> tuple[object, ...]:
    overview = run.live_overview("workstation") or {}
    return tuple(overview.get(name) for name in ("gpus", "allocated", "free"))


def _reports(run: LocalRun, pid: int) -> bool:
    mfu = _job(run, pid).get("mfu")
    return bool(mfu and mfu["ranks"] == RANKS and mfu["steps"] > 0)


def _mfu_of_logs(logs: Path) -> float:
    """MFU from the step times that the script itself logged, and nothing of Flopwatch's."""
    ends = [json.loads((logs / f"rank{rank}.json").read_text()) for rank in range(RANKS)]
    flops = sum(FLOPS_PER_STEP * (len(each) - 1) for each in ends)
    seconds = sum(each[-1] - each[0] for each in ends)
    return float(flops / seconds / (CPU_PEAK_TFLOPS * 1e12))


def _assert_the_page_speaks_of_no_scheduler(run: LocalRun, pid: int) -> None:
    with chromium() as browser:
        page = browser.new_page()
        errors = complaints(page)
        page.goto(f"http://127.0.0.1:{run.port}/jobs/workstation/{pid}")
        head = page.locator("#job-head")
        head.get_by_text(f"pid {pid}").wait_for(timeout=60_000)
        text = head.inner_text()
        assert "Ended" in text
        assert "2 × H100" in text
        assert not any(word in text for word in ("account", "QOS", "queue", "Completed"))
        page.goto(f"http://127.0.0.1:{run.port}/")
        page.get_by_text("of 3 GPUs").first.wait_for(timeout=60_000)
        assert errors == []
