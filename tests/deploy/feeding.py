"""Runs a worked feed on kept answers of its scheduler, and writes what the server reads as rows."""

import json
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from flopwatch_server.scheduler.feed import FeedSnapshot, parse
from flopwatch_server.scheduler.records import JobRecord, NodeGpus, NodeRecord

FEEDS = Path(__file__).parents[2] / "deploy/feeds"
ANSWERS = Path(__file__).parent / "feeds"
ASKED = {
    "pbs": datetime(2023, 4, 26, 8, 12, tzinfo=UTC),
    "lsf": datetime(2026, 4, 12, 18, 30, tzinfo=UTC),
    "flux": datetime(2023, 6, 27, 4, 10, tzinfo=UTC),
    "kubernetes": datetime(2026, 3, 12, 8, 30, tzinfo=UTC),
}


def feed(
    scheduler: str, kept: Path, user_key: str = "annotation:example.org/owner"
) -> tuple[FeedSnapshot, str]:
    """What the server reads in what the feed prints, and what that says on standard error."""
    asked = ASKED[scheduler]
    for file in kept.iterdir():
        os.utime(file, (asked.timestamp(), asked.timestamp()))
    result = subprocess.run(
        [sys.executable, FEEDS / f"{scheduler}.py", kept],
        env={"USER_KEY": user_key, "LC_ALL": "C.UTF-8"},
        capture_output=True, check=True,
    )  # fmt: skip
    return parse(result.stdout, asked), result.stderr.decode()


def jobs_file(kept: Path) -> Path:
    return next(path for path in (kept / "jobs.json", kept / "pods.json") if path.exists())


def change(kept: Path, *place: Any, **value: Any) -> None:
    """Set a value in the answer of the jobs or, without `to`, take it away."""
    change_file(jobs_file(kept), *place, **value)


def change_file(file: Path, *place: Any, **value: Any) -> None:
    """The same in any answer."""
    answer = target = json.loads(file.read_text())
    for step in place[:-1]:
        target = target[step]
    del target[place[-1]]
    if "to" in value:
        target[place[-1]] = value["to"]
    file.write_text(json.dumps(answer))


def row(job: JobRecord, day: str) -> str:
    moments = [job.submitted_at, job.started_at, job.ended_at]
    times = [f"{moment:%Y-%m-%d %H:%M:%S}".removeprefix(f"{day} ") if moment else "-"
            for moment in moments]  # fmt: skip
    figures = [job.exit_code, job.time_limit_seconds, job.gpu_count]
    cells = [job.display_id, job.state, *times, *("-" if f is None else str(f) for f in figures)]
    gpus = "?" if job.gpus is None else " ".join(map(held, job.gpus))
    return " | ".join([*cells, gpus]).rstrip()


def node_row(node: NodeRecord) -> str:
    cells = (node.name, node.state, node.gpu_count, node.gpu_type)
    return " | ".join("-" if cell is None else str(cell) for cell in cells)


def held(gpus: NodeGpus) -> str:
    positions = str(gpus.count) if gpus.ordinals is None else ",".join(map(str, gpus.ordinals))
    kind = f" of {gpus.gres_type}" if gpus.gres_type else ""
    return f"{gpus.node}:{positions}{kind}{' shared' if gpus.shared else ''}"
