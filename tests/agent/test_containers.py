"""A training process in a container reports to the agent outside, by nothing but the folder of its
socket: in mount, PID and user namespaces of its own, as Apptainer, enroot and Docker make them."""

import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import flopwatch
from flopwatch.hook.transport import Transport
from flopwatch.wire import DEFAULT_SOCKET, Report
from flopwatch_agent.reports import ReportBook, ReportSocket

FOLDER = str(Path(DEFAULT_SOCKET).parent)
SHIPPED = Path(__file__).parents[2] / "deploy/containers"
SOURCE = Path(flopwatch.__file__).parents[1]
PYTHON = Path(sys.executable)

# A root of its own with what Python needs to start, and the folder of the socket, read-only.
CONTAINER = f"""
set -e
mount -t tmpfs tmpfs "$ROOT"
for folder in /usr /lib /lib64 /bin {sys.prefix} {sys.base_prefix} {SOURCE} /proc; do
    [ -d "$folder" ] || continue
    mkdir -p "$ROOT$folder"
    mount --rbind "$folder" "$ROOT$folder"
done
mkdir -p "$ROOT{FOLDER}"
mount --bind "$AGENT" "$ROOT{FOLDER}"
mount -o remount,bind,ro "$ROOT{FOLDER}"
exec chroot "$ROOT" {PYTHON} -c "$PROGRAM"
"""

# Prints how it sees itself, then sends a report for every line that it reads.
TRAINING = f"""
import os, sys
sys.path.insert(0, {str(SOURCE)!r})
from flopwatch.hook.transport import Transport
from flopwatch.wire import Report
transport = Transport()
print(os.getpid(), os.getuid(), os.listdir("/run"), flush=True)
for sequence, line in enumerate(sys.stdin):
    transport.send(Report("boot", sequence, 0, 1, "H100", None, {{}}, {{}}, 0.0, 0.0, 0))
    print(transport.dropped, flush=True)
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """The agent's folder; short, as a socket's address may have 107 bytes."""
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


@pytest.fixture
def training(folder: Path, tmp_path: Path) -> Iterator["subprocess.Popen[str]"]:
    process = subprocess.Popen(
        ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child", "--mount",
         "sh", "-c", CONTAINER],
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "ROOT": str(tmp_path), "AGENT": str(folder),
             "PROGRAM": TRAINING},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    yield process
    process.kill()
    process.communicate()


def ask(process: "subprocess.Popen[str]") -> str:
    assert process.stdin
    assert process.stdout
    process.stdin.write("\n")
    process.stdin.flush()
    return process.stdout.readline().strip()


def hello(process: "subprocess.Popen[str]") -> str:
    assert process.stdout
    return process.stdout.readline().strip()


def outside_pid(process: "subprocess.Popen[str]") -> int:
    """The pid here of the only child of `unshare`, which is the container's first process."""
    return int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text())


def test_the_kernel_tells_the_pid_outside_of_a_process_in_a_container(
    folder: Path, training: "subprocess.Popen[str]"
) -> None:
    reports = ReportBook(lambda pid, _uid: 18 if pid == outside_pid(training) else None, time.time)
    ReportSocket(folder / "hook.sock", reports).start()
    assert hello(training) == "1 0 ['flopwatch']"
    assert ask(training) == "0"
    (report,) = wait_for(reports.take)
    assert (report.pid, report.uid) == (outside_pid(training), os.getuid())
    assert (report.pid != 1, report.job_id) == (True, 18)


def test_a_container_outlives_the_agent_and_finds_the_next_one(
    folder: Path, training: "subprocess.Popen[str]"
) -> None:
    """The folder is bound, not the socket: a new agent makes a new one."""
    hello(training)
    assert ask(training) == "1"
    for expected in (1, 2):
        reports = ReportBook(lambda _pid, _uid: None, time.time)
        ReportSocket(folder / "hook.sock", reports).start()
        assert ask(training) == "1"
        (report,) = wait_for(reports.take)
        assert report.report.sequence == expected


# An agent that says for every line that it reads what it complains of.
AGENT = f"""
import logging, sys
sys.path.insert(0, {str(SOURCE)!r})
from pathlib import Path
from flopwatch_agent.reports import ReportBook, ReportSocket
logging.basicConfig(stream=sys.stdout)
reports = ReportBook(lambda _pid, _uid: 18, lambda: 0.0)
ReportSocket(Path(sys.argv[1]), reports).start()
for line in sys.stdin:
    reports.complain()
    print(len(reports.take()), flush=True)
"""


def test_an_agent_in_a_pid_namespace_of_its_own_says_that_it_can_tell_no_sender(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLOPWATCH_SOCKET", str(folder / "hook.sock"))
    agent = subprocess.Popen(
        ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child",
         PYTHON, "-c", AGENT, folder / "hook.sock"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert ask(agent) == "0"
        Transport().send(Report("boot", 0, 0, 1, "H100", None, {}, {}, 0.0, 0.0, 0))
        (said,) = wait_for(lambda: [line for line in [ask(agent)] if line != "0"])
        assert "1 reports refused" in said
        assert "PID namespace" in said
        assert hello(agent) == "0"
    finally:
        agent.kill()
        agent.communicate()


@pytest.mark.parametrize("name", ["apptainer.conf", "50-flopwatch.fstab", "podman.conf"])
def test_what_we_ship_binds_the_folder_and_not_the_socket(name: str) -> None:
    lines = (SHIPPED / name).read_text().splitlines()
    (setting,) = [line for line in lines if FOLDER in line and not line.startswith("#")]
    assert {part for part in re.split(r'[\s:"=]+', setting) if part.startswith("/")} == {FOLDER}


def test_the_compose_file_binds_the_folder_and_makes_none_where_no_agent_is() -> None:
    composed = yaml.safe_load((SHIPPED / "compose.yaml").read_text())
    ((volume,),) = [service["volumes"] for service in composed["services"].values()]
    assert (volume["source"], volume["target"], volume["read_only"]) == (FOLDER, FOLDER, True)
    assert volume["bind"] == {"create_host_path": False}


def wait_for(told: Callable[[], list[Any]]) -> list[Any]:
    deadline, pause = time.monotonic() + 20, threading.Event()
    while not (found := told()) and time.monotonic() < deadline:
        pause.wait(0.01)
    return found
