"""A real server, told by the simulation through its doors alone, shows what the ledger knows."""

import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest

from flopwatch_simulation.cluster import Cluster
from flopwatch_simulation.truth import Truth
from tests.lab.postgres import public_folder
from tests.lab.processes import Process, ProcessError, Server, running, wait_for

CLUSTER = "granite"
SEED = 11
GPUS = 64
UNJUDGED_SECONDS = 300
"""How far behind a busy server may be with judging minutes."""
ROUNDING_HOURS = 0.05

pytestmark = pytest.mark.timeout(400)  # the history takes its time where others compute too


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A server that has got the whole history."""
    with ExitStack() as stack:
        folder = stack.enter_context(public_folder())
        server = stack.enter_context(Server(folder))
        stack.enter_context(running(_simulation(server, folder)))
        wait_for(lambda: _history_is_in(server), "two hours of history", 240)
        yield server


@pytest.fixture
def ledger() -> list[Truth]:
    """What is so now."""
    return Cluster(SEED).truth(time.time())


def test_the_overview_counts_the_gpus_of_the_ledger(server: Server, ledger: list[Truth]) -> None:
    held = [truth for truth in ledger if truth.state == "RUNNING"]
    allocated = sum(truth.gpus for truth in held)

    expected = {
        "gpus": GPUS,
        "allocated": allocated,
        "free": GPUS - allocated,
        "pending_jobs": len(ledger) - len(held),
        "idle": sum(truth.idle_gpus for truth in held),
    }

    def agrees() -> bool:
        overview = server.get("overview", cluster=CLUSTER)
        return {**overview, **overview["gpus_now"]}.items() >= expected.items()

    wait_for(agrees, "counts as in the ledger", 180)


def test_every_running_job_shows_the_activity_and_mfu_of_the_ledger(
    server: Server, ledger: list[Truth]
) -> None:
    mature = [truth for truth in ledger if _age(truth) > 1800]
    assert len(mature) >= 4
    differences: list[str] = []

    def agrees() -> bool:
        rows = {row["job_id"]: row for row in server.get("jobs", cluster=CLUSTER)["rows"]}
        differences[:] = [
            f"{truth.job.key}: {name} is {rows[truth.job.display_id][name]}"
            for truth in mature
            for name in _unlike(rows[truth.job.display_id], truth)
        ]
        return not differences

    with suppress(ProcessError):  # the list lags behind samples; what still differs is told below
        wait_for(agrees, "figures as in the ledger", 180)
    assert differences == []


def test_a_running_job_is_covered_from_its_first_minute(
    server: Server, ledger: list[Truth]
) -> None:
    for truth in ledger:
        if _age(truth) > 1800:
            found = server.get(f"jobs/{CLUSTER}/{truth.job.display_id}")
            assert found["efficiency"]["coverage"] >= 0.98
            assert len(found["devices"]) == truth.gpus
            assert {device["confidence"] for device in found["devices"]} <= {"certain", "likely"}


def test_a_job_that_was_over_before_the_server_knew_it_shows_what_it_got(server: Server) -> None:
    now = time.time()
    cluster = Cluster(SEED)
    over = [
        job
        for job in cluster.jobs(now - 4500, now - 600)
        if job.key == "short sweep" and job.state(now - 600) == job.end_state
    ]
    assert over
    for job in over:
        found: dict[str, Any] = server.get(f"jobs/{CLUSTER}/{job.display_id}")
        assert found["run"]["state"] == job.end_state
        assert found["efficiency"]["means"]["tensor_active"] == pytest.approx(0.12, abs=0.01)


def _unlike(row: dict[str, Any], truth: Truth) -> list[str]:
    """Figures of a job's row that are not as in the ledger."""
    # The last of its interludes may not be over.
    slack = 0.02 if truth.job.character.interlude else 0.01
    # Minutes that have not been judged yet are missing from it, and the ledger grows meanwhile.
    idle_hours = truth.idle_gpus * _age(truth) / 3600
    unjudged_hours = truth.idle_gpus * UNJUDGED_SECONDS / 3600
    least = idle_hours - unjudged_hours - ROUNDING_HOURS
    expected = {
        "gpus": row["gpus"] == truth.gpus,
        "tensor_active": row["tensor_active"] == pytest.approx(truth.tensor_active, abs=slack),
        "sm_active": row["sm_active"] == pytest.approx(truth.sm_active, abs=1.5 * slack),
        "mfu": row["mfu"] == (truth.mfu and pytest.approx(truth.mfu, rel=0.01)),
        "idle_gpu_hours": row["idle_gpu_hours"] is not None
        and least <= row["idle_gpu_hours"] <= idle_hours + ROUNDING_HOURS,
    }
    return [name for name, holds in expected.items() if not holds]


def _simulation(server: Server, folder: Path) -> Process:
    return Process(
        "simulate", "--server", server.url, "--seed", str(SEED),
        "--node-token-file", server.token("node", CLUSTER),
        "--feed-token-file", server.token("feed", CLUSTER),
        log=folder / "simulation.log", environment={},
    )  # fmt: skip


def _history_is_in(server: Server) -> bool:
    """Whether every whole minute of the two hours is there for every GPU."""
    with psycopg.connect(server.database_url()) as connection:
        found = connection.execute(
            "SELECT count(*) FROM device_minutes WHERE samples_received = samples_expected"
        ).fetchone()
    return found is not None and found[0] >= GPUS * 119


def _age(truth: Truth) -> float:
    started_at = truth.job.started_at
    return 0.0 if truth.state != "RUNNING" or started_at is None else time.time() - started_at
