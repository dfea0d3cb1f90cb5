"""Whose job a report is, where no cgroup tells: claimed by the process, confirmed by root."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from flopwatch_agent.ownership.claims import Claims
from flopwatch_agent.reports import ReportBook, ReportSocket
from tests.lab.processes import wait_for
from tests.lab.slurm import lab_folder

PROLOG = Path(__file__).parents[2] / "deploy/slurm/prolog.sh"
EPILOG = PROLOG.with_name("epilog.sh")
ALICE, BOB = 61001, 61002  # uids that need no names
STEP = "0::/system.slice/slurmstepd.scope/"
BOOTED_AT = 1000.0


class Node:
    """A node's /proc and drop files; process 7 claims job 18, which is Alice's."""

    def __init__(self, folder: Path) -> None:
        self.proc = folder / "proc"
        self.jobs = folder / "jobs"
        self.claims = Claims(self.proc, self.jobs, BOOTED_AT, None)
        self.process(7, "0::/")
        self.prolog(18, ALICE)

    def process(self, pid: int, cgroup: str, environ: bytes = b"SLURM_JOB_ID=18\0") -> None:
        (self.proc / str(pid)).mkdir(parents=True)
        (self.proc / str(pid) / "cgroup").write_text(cgroup)
        (self.proc / str(pid) / "environ").write_bytes(environ)

    def prolog(self, job_id: int, uid: int, gpus: str = "") -> None:
        told = {"SLURM_JOB_ID": job_id, "SLURM_JOB_UID": uid, "SLURM_JOB_GPUS": gpus}
        environment = {"FLOPWATCH_PROLOG_DIR": str(self.jobs)}
        environment |= {name: str(value) for name, value in told.items()}
        subprocess.run([PROLOG], env=environment, check=True)

    @property
    def file(self) -> Path:
        return self.jobs / "18"


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_a_claim_of_the_jobs_own_user_is_believed_and_nobody_elses(node: Node) -> None:
    assert node.claims.job_of(7, ALICE) == 18
    assert node.claims.job_of(7, BOB) is None
    assert node.claims.job_of(7, 0) is None


def test_a_claim_without_a_drop_file_of_that_very_job_is_not_believed(node: Node) -> None:
    node.process(8, "0::/", b"SLURM_JOB_ID=19\0")
    assert node.claims.job_of(8, ALICE) is None
    subprocess.run(
        [EPILOG], env={"FLOPWATCH_PROLOG_DIR": str(node.jobs), "SLURM_JOB_ID": "18"}, check=True
    )
    assert node.claims.job_of(7, ALICE) is None


def test_a_cgroup_always_wins(node: Node) -> None:
    node.process(8, f"{STEP}job_77/step_0/user/task_0")
    assert node.claims.job_of(8, ALICE) == 77
    node.process(9, "6:freezer:/slurm_node1/uid_1/job_77/step_0")
    of_node2 = Claims(node.proc, node.jobs, BOOTED_AT, "node2")
    assert of_node2.job_of(9, ALICE) is None  # a job of another slurmd on this host
    assert of_node2.job_of(7, ALICE) == 18


def test_a_cgroup_that_is_named_by_a_sluid_lets_root_decide(node: Node) -> None:
    node.process(8, f"{STEP}sEKNKTV3WPV500/step_0/user/task_0")
    assert (node.claims.job_of(8, ALICE), node.claims.job_of(8, BOB)) == (18, None)


@pytest.mark.parametrize("claim", [b"0", b"11111111111111111118", b"18\xff", b"../18", b"018", b""])
def test_a_claim_of_no_job_id_finds_no_file(node: Node, claim: bytes) -> None:
    node.process(8, "0::/", b"SLURM_JOB_ID=" + claim + b"\0")
    assert node.claims.job_of(8, ALICE) is None


def _of_a_user(node: Node) -> None:
    os.chown(node.file, ALICE, ALICE)


def _writable_for_others(node: Node) -> None:
    node.file.chmod(0o666)


def _writable_for_a_group(node: Node) -> None:
    node.file.chmod(0o664)


def _folder_of_a_user(node: Node) -> None:
    os.chown(node.jobs, ALICE, ALICE)


def _folder_open_to_all(node: Node) -> None:
    node.jobs.chmod(0o1777)


def _symlink(node: Node) -> None:
    node.file.rename(node.jobs.parent / "18")
    node.file.symlink_to(node.jobs.parent / "18")


def _another_jobs_content(node: Node) -> None:
    node.prolog(19, ALICE)
    (node.jobs / "19").rename(node.file)


def _from_before_the_nodes_start(node: Node) -> None:
    os.utime(node.file, (BOOTED_AT - 1, BOOTED_AT - 1))


def _a_folder(node: Node) -> None:
    node.file.unlink()
    node.file.mkdir()


def _a_pipe_that_nobody_writes_to(node: Node) -> None:
    node.file.unlink()
    os.mkfifo(node.file)


def _without_a_user(node: Node) -> None:
    node.file.write_text("SLURM_JOB_ID=18\nSLURM_JOB_GPUS=0\nSLURM_JOB_UID=\n")


def _spoilt(node: Node) -> None:
    node.file.write_bytes(b"\xff\0SLURM_JOB_ID=0\nSLURM_JOB_UID=61001\n")


@pytest.mark.parametrize(
    "spoil",
    [
        _of_a_user, _writable_for_others, _writable_for_a_group, _folder_of_a_user,
        _folder_open_to_all, _symlink, _another_jobs_content, _from_before_the_nodes_start,
        _a_folder, _a_pipe_that_nobody_writes_to, _without_a_user, _spoilt,
    ],
)  # fmt: skip
def test_a_drop_file_that_root_may_not_have_left_confirms_nothing(
    node: Node, spoil: Callable[[Node], None]
) -> None:
    assert node.claims.job_of(7, ALICE) == 18
    spoil(node)
    assert node.claims.job_of(7, ALICE) is None


JOB_ID = PROLOG.parents[1] / "feeds/job_id.sh"


# By the rules in docs/schedulers.md: 1234 + 8 * 2^40, and 3 * 2^32 + 5001.
@pytest.mark.parametrize(
    ("environment", "raw_job_id"),
    [
        ({"PBS_JOBID": "1234.server"}, 1234),
        ({"PBS_JOBID": "1234[7].server"}, 8796093023442),
        ({"LSB_JOBID": "5001", "LSB_JOBINDEX": "0"}, 5001),
        ({"LSB_JOBID": "5001", "LSB_JOBINDEX": "3"}, 12884906889),
    ],
    ids=str,
)
def test_a_node_makes_the_same_id_as_the_feed(environment: dict[str, str], raw_job_id: int) -> None:
    assert subprocess.check_output([JOB_ID], env=environment, text=True) == f"{raw_job_id}\n"


PROCESS = """
import os, socket, sys
from flopwatch.wire import Report, encode_report
os.setuid(int(sys.argv[2]))
for sequence, _ in enumerate(sys.stdin):
    report = Report("b", sequence, 0, 1, "CPU", None, {"float32": 1e9}, {}, 1.0, 2.0, 1)
    socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(encode_report(report), sys.argv[1])
"""


def test_a_job_of_pbs_has_its_reports_to_its_last_and_nobody_else_has() -> None:
    stack = ExitStack()
    folder = stack.enter_context(lab_folder())
    book = ReportBook(Claims(Path("/proc"), folder / "jobs", 0.0, None).job_of, lambda: 1000.0)
    socket = folder / "hook.sock"
    ReportSocket(socket, book).start()
    job = {"PBS_JOBID": "1234[7].server"}
    raw_job_id = subprocess.check_output([JOB_ID], env=job, text=True).strip()
    told = {"SLURM_JOB_ID": raw_job_id, "FLOPWATCH_PROLOG_DIR": str(folder / "jobs")}
    subprocess.run([PROLOG], env=told | {"SLURM_JOB_UID": str(ALICE)}, check=True)
    with stack:
        alice, bob = (
            stack.enter_context(reporter(socket, uid, job | {"FLOPWATCH_JOB_ID": raw_job_id}))
            for uid in (ALICE, BOB)
        )
        let_report(alice)
        assert [each.job_id for each in wait_for(book.take, "Alice's", 10)] == [8796093023442]
        let_report(bob)
        assert [each.job_id for each in wait_for(book.take, "Bob's", 10)] == [None]
        subprocess.run([EPILOG], env=told, check=True)
        let_report(alice)
        assert [each.job_id for each in wait_for(book.take, "her last", 10)] == [8796093023442]


@contextmanager
def reporter(
    socket: Path, uid: int, environment: Mapping[str, str]
) -> Iterator[subprocess.Popen[str]]:
    """A process of a user that reports with each line that it is told."""
    command = [sys.executable, "-c", PROCESS, str(socket), str(uid)]
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, text=True) as process:
        yield process


def let_report(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()
