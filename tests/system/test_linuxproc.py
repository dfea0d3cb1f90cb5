"""A real Slurm that tracks processes without cgroups: its prolog's word makes reports a job's."""

import shlex
from pathlib import Path

import pytest

from flopwatch_agent.ownership.claims import Claims
from flopwatch_agent.reports import ReportBook, ReportSocket
from tests.lab.processes import wait_for
from tests.lab.slurm import SlurmLab, lab_folder, python_command, wait_until

SCRIPTS = Path(__file__).parents[2] / "deploy/slurm"

REPORT = """
import socket, sys, time
from flopwatch.wire import Report, encode_report
report = Report("b", 1, 0, 1, "CPU", None, {"float32": 1e9}, {}, 1.0, 2.0, 1)
socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(encode_report(report), sys.argv[1])
time.sleep(300)
"""


def script(path: Path, jobs: Path) -> Path:
    """One of deploy/slurm, told where to leave its files."""
    path.write_text(f"#!/bin/sh\nFLOPWATCH_PROLOG_DIR={jobs} exec {SCRIPTS / path.name}\n")
    path.chmod(0o755)
    return path


@pytest.mark.timeout(120)
def test_a_job_without_a_cgroup_has_its_reports_and_nobody_else_can_have_them() -> None:
    with lab_folder() as folder:
        jobs, socket = folder / "jobs", folder / "hook.sock"
        prolog, epilog = (script(folder / f"{name}.sh", jobs) for name in ("prolog", "epilog"))
        with SlurmLab(
            folder, nodes=1, gpus=2, proctrack="linuxproc", prolog=prolog, epilog=epilog
        ) as lab, python_command(lab.users["fwalice"], folder) as python:  # fmt: skip
            claims = Claims(Path("/proc"), jobs, 0.0, lab.nodes[0])
            book = ReportBook(claims.job_of, lambda: 1000.0)
            ReportSocket(socket, book).start()
            send = shlex.join([*python, "-c", REPORT, str(socket)])
            job = lab.submit(f"exec {send}", "--gpus=1")
            (report,) = wait_for(book.take, "the job's report", 30)
            assert (report.job_id, report.uid) == (job, lab.users["fwalice"].uid)
            assert "job_" not in Path(f"/proc/{report.pid}/cgroup").read_text()
            lab.submit(f"SLURM_JOB_ID={job} exec {send}", "--gpus=1", user="fwbob")
            (forged,) = wait_for(book.take, "Bob's report", 30)
            assert (forged.job_id, forged.uid) == (None, lab.users["fwbob"].uid)
            lab.cancel_jobs()
            wait_until(lambda: not any(jobs.iterdir()), "the epilog took the job's file back", 10.0)
