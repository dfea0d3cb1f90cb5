"""The main job, end to end: real Slurm, real torch, real PostgreSQL, real Chromium.

The GPU driver alone is a fake library, one for each node.
"""

import json
import re
import shutil
import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import psycopg
import pytest
from playwright.sync_api import Browser, Page

from tests.lab.browser import chromium, complaints
from tests.lab.processes import free_port, wait_for
from tests.system.site import CLUSTER, CPU_PEAK_TFLOPS, Site, site

# By hand, for gpt_job.py: N = 4 x 64 tokens, d = 128, T = 64, V = 512, 2 layers. Forward per layer
# 24 N d^2 (qkv 6, out 2, MLP 16) + 4 B T^2 d (scores and values, the full square); head 2 N d V.
# Every matmul needs both gradients, so a step is three times the forward.
FLOPS_PER_STEP = 3 * (2 * (24 * 256 * 128**2 + 4 * 4 * 64**2 * 128) + 2 * 256 * 128 * 512)
assert FLOPS_PER_STEP == 754_974_720

TENSOR_ACTIVE = 0.42
OUTAGE_SECONDS = 30


@pytest.fixture(scope="module")
def centre() -> Iterator[Site]:
    with site(nodes=3) as found:
        yield found


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.mark.timeout(600)
def test_a_job_is_seen_from_its_first_counters_to_its_final_mfu(
    centre: Site, browser: Browser
) -> None:
    job, stop_file, logs = _submit_training(centre)
    idle_job = centre.slurm.submit(
        "sleep 1000", "--nodes=1", "--gpus-per-node=4", "--job-name=forgotten", user="fwbob"
    )
    nodes = _nodes_of(centre, job)
    for node in nodes:
        centre.set_activity(node, TENSOR_ACTIVE, sm_active=0.80)

    _until_all_ranks_report(centre, job)
    for node in nodes:
        centre.set_processes(node, _ranks_on(centre, job, node))
    page = browser.new_page()
    errors = complaints(page)
    page.goto(f"{centre.server.url}/jobs/{CLUSTER}/{job}")
    _until_page_shows(page, "16 × H100")
    _until_page_shows(page, "42 %", inside=_tile(page, "Tensor active"))

    assert errors == []
    centre.server.process.kill()
    # The outage is what is measured here, so it takes its time.
    time.sleep(OUTAGE_SECONDS)
    page.locator("#age[data-level='late']").wait_for()  # the open page says how old it is
    centre.server.start()
    page.locator("#age[data-level='fresh']").wait_for(timeout=120_000)  # and goes on by itself
    errors.clear()

    _until_idle_allocations_show(centre, idle_job, gpus=4)
    page.goto(f"{centre.server.url}/jobs/{CLUSTER}/{idle_job}")
    _until_page_shows(page, "All 4 GPUs")
    _assert_the_outage_left_no_hole(centre)

    stop_file.touch()
    wait_for(lambda: _api_job(centre, job)["run"]["state"] == "COMPLETED", "accounting closes", 120)
    expected = _mfu_of_logs(logs)
    reported = _api_job(centre, job)["mfu"]
    assert reported["ranks"] == 16
    assert reported["train_mfu"] == pytest.approx(expected, rel=0.01)
    page.goto(f"{centre.server.url}/jobs/{CLUSTER}/{job}")
    _until_page_shows(page, "MFU while training")
    assert _percent(page.get_by_test_id("train-mfu").inner_text()) == pytest.approx(
        100 * expected, rel=0.01
    )
    assert _attribution(centre, job) == {("certain", False): 16}
    assert errors == []


def _submit_training(centre: Site) -> tuple[int, Path, Path]:
    alice = centre.slurm.users["fwalice"]
    logs = alice.home / "logs"
    logs.mkdir()
    shutil.chown(logs, alice.uid, alice.gid)
    script = alice.home / "gpt_job.py"
    shutil.copy(Path(__file__).parent / "gpt_job.py", script)
    script.chmod(0o644)
    stop_file = centre.folder / "stop"
    port = free_port()
    job = centre.slurm.submit(
        f"export OMP_NUM_THREADS=1\n"
        f"srun --ntasks-per-node=1 --gpus-per-node=8 {centre.python} -m torch.distributed.run "
        f"--nnodes=2 --nproc-per-node=8 --rdzv-backend=c10d --rdzv-id=$SLURM_JOB_ID "
        f"--rdzv-endpoint=127.0.0.1:{port} {script} {logs} {stop_file}",
        "--nodes=2", "--gpus-per-node=8", "--job-name=small-gpt", "--time=30",
    )  # fmt: skip
    centre.slurm.wait_state(job, "RUNNING")
    return job, stop_file, logs


def _nodes_of(centre: Site, job: int) -> list[str]:
    names = centre.slurm.run("squeue", "-h", "-j", str(job), "-o", "%N")
    return centre.slurm.run("scontrol", "show", "hostnames", names.strip()).split()


def _ranks_on(centre: Site, job: int, node: str) -> list[int]:
    """Processes of the training script on a node: those that torchrun gave a rank."""
    pids = centre.slurm.node_pids(job, node)
    return [pid for pid in pids if b"\0LOCAL_RANK=" in _environ(pid)]


def _environ(pid: int) -> bytes:
    return b"\0" + Path(f"/proc/{pid}/environ").read_bytes()


def _api_job(centre: Site, job: int) -> dict[str, Any]:
    found: dict[str, Any] = centre.server.get(f"jobs/{CLUSTER}/{job}")
    return found


def _until_all_ranks_report(centre: Site, job: int) -> None:
    def all_report() -> bool:
        mfu = _api_job(centre, job)["mfu"] if _known(centre, job) else None
        return bool(mfu and mfu["ranks"] == 16 and mfu["steps"] > 0)

    try:
        wait_for(all_report, "16 ranks report", 180)
    except AssertionError as error:
        output = centre.slurm.users["fwalice"].home / f"slurm-{job}.out"
        raise AssertionError(f"{error}\n{output.read_text()[-3000:]}") from error


def _known(centre: Site, job: int) -> bool:
    rows = centre.server.get("jobs", cluster=CLUSTER)["rows"]
    return any(row["job_id"] == str(job) for row in rows)


def _until_idle_allocations_show(centre: Site, job: int, gpus: int) -> None:
    def idle() -> bool:
        rows = centre.server.get("allocations", cluster=CLUSTER, state="idle")
        return [row["job_id"] for row in rows] == [str(job)] * gpus

    wait_for(idle, f"{gpus} idle GPUs of job {job} and no others", 150)


def _assert_the_outage_left_no_hole(centre: Site) -> None:
    """Every interval of every GPU is there once, from its first sample to its newest."""
    restarted = datetime.now().astimezone()

    def without_hole() -> bool:
        every = _sample_times(centre).values()
        newest = min(times[-1] for times in every)
        steps = {b - a for times in every for a, b in pairwise(times)}
        return newest > restarted and steps == {timedelta(seconds=10)}

    wait_for(without_hole, "what the agents took in the outage comes after what is live", 120)
    times = _sample_times(centre)
    assert len(times) == 24
    assert all((ticks[-1] - ticks[0]).total_seconds() > OUTAGE_SECONDS for ticks in times.values())


def _sample_times(centre: Site) -> dict[str, list[datetime]]:
    """Times of all samples by device, straight from the table; a duplicate would show twice."""
    with psycopg.connect(centre.server.database_url()) as connection:
        rows = connection.execute(
            "SELECT uuid, array_agg(ts ORDER BY ts) FROM samples JOIN devices ON id = device_id "
            "GROUP BY uuid"
        ).fetchall()
    return dict(rows)


def _attribution(centre: Site, job: int) -> dict[tuple[str, bool], int]:
    with psycopg.connect(centre.server.database_url()) as connection:
        rows = connection.execute(
            "SELECT confidence, allocations.device_id IS NULL, count(*) FROM allocations "
            "JOIN runs ON runs.id = run_id WHERE raw_job_id = %s GROUP BY 1, 2", (job,)
        ).fetchall()  # fmt: skip
    return {(confidence, unknown): count for confidence, unknown, count in rows}


def _mfu_of_logs(logs: Path) -> float:
    """MFU from the step times that the script itself logged, and nothing of Flopwatch's."""
    flops = 0.0
    seconds = 0.0
    for rank in range(16):
        ends = json.loads((logs / f"rank{rank}.json").read_text())
        flops += FLOPS_PER_STEP * (len(ends) - 1)
        seconds += ends[-1] - ends[0]
    return flops / seconds / (CPU_PEAK_TFLOPS * 1e12)


def _tile(page: Page, label: str) -> str:
    return f"[data-testid='tile']:has-text('{label}')"


def _until_page_shows(page: Page, text: str, inside: str = "body") -> None:
    page.locator(inside).filter(has_text=text).first.wait_for(timeout=90_000)


def _percent(text: str) -> float:
    found = re.fullmatch(r"([\d.]+) %", text.replace("\u202f", " ").replace("\xa0", " ").strip())
    assert found, text
    return float(found[1])
