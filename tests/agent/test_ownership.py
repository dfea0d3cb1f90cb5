"""Who holds a GPU: cgroups, environments, and the prolog's files."""

import os
import subprocess
from pathlib import Path

import pytest

from flopwatch_agent.ownership import ProcessEvidence, cgroup, environ, prolog, prolog_evidence
from flopwatch_agent.ownership.process import ProcessOwner, owner_of, proven_job

FIXTURES = Path(__file__).parent / "fixtures"
SCRIPTS = Path(__file__).parents[2] / "deploy/slurm"


@pytest.mark.parametrize(
    ("name", "job"),
    [
        ("cgroup_v1_batch", 18),
        ("cgroup_v1_step0", 18),
        ("cgroup_v1_contain_step_0", 27),
        ("cgroup_v1_contain_step_batch", 27),
        ("cgroup_v1_contain_step_extern", 27),
    ],
)
def test_captured_cgroup_files_name_their_job_and_node(name: str, job: int) -> None:
    text = (FIXTURES / f"{name}.txt").read_text()
    assert cgroup.parse(text) == cgroup.CgroupJob(job, "node1")


# By the layouts in fixtures/node_cgroup_paths.txt: job, and node where the path has one.
PATHS = {
    "/slurm_node1/uid_1001/job_18/step_batch": (18, "node1"),
    "/slurm_node1/uid_1001/job_18/step_batch/task_0": (18, "node1"),
    "/slurm_node1/uid_1001/job_18/step_0/task_0": (18, "node1"),
    "/slurm_node1/uid_1001/job_27/step_extern": (27, "node1"),
    "/slurm/uid_2101171/job_280678/step_interactive/task_0": (280678, None),
    "/system.slice/slurmstepd.scope/job_1392969/step_0/user/task_0": (1392969, None),
    "/system.slice/slurmstepd.scope/job_42/step_extern/user": (42, None),
    "/system.slice/node7_slurmstepd.scope/job_12/step_batch/user/task_0": (12, "node7"),
    "/system.slice/slurmstepd.scope/job_123/step_batch/user/task_special": (123, None),
    "/system.slice/slurmstepd.scope/sEKNKTV3WPV500/step_0/user/task_0": (None, None),
}


def test_every_listed_layout_is_read_and_nothing_else_is_taken_for_a_job() -> None:
    lines = (FIXTURES / "node_cgroup_paths.txt").read_text().splitlines()
    entries = [line.split(None, 1) for line in lines if not line.startswith("#")]
    paths = [(mark, text) for mark, text in entries if text[0].isdigit()]
    assert len(paths) == 13
    for mark, text in paths:
        found = cgroup.parse(text)
        path = text.split(":", 2)[2]
        expected = PATHS.get(path)
        assert (found and (found.job_id, found.node)) == expected, text
        assert mark != "negative" or found is None


@pytest.mark.parametrize(
    "path",
    [
        "/user.slice/user-1000.slice/user@1000.service/slurmstepd.scope/job_5/step_0",
        "/user.slice/slurm/uid_0/job_5",
        "/system.slice/slurmstepd.scope/job_5x/step_0",
        "/slurm/uid_0/job_99999999999999999999/step_0",
    ],
)
def test_a_cgroup_that_a_user_may_make_is_no_job(path: str) -> None:
    assert cgroup.parse(f"0::{path}") is None


class Processes:
    """A proc folder with what the agent reads of a process."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def add(self, pid: int, cgroup_text: str, environment: dict[str, str] | None = None) -> None:
        folder = self.root / str(pid)
        folder.mkdir(parents=True)
        (folder / "cgroup").write_text(cgroup_text)
        if environment is not None:
            entries = (f"{name}={value}".encode() for name, value in environment.items())
            (folder / "environ").write_bytes(b"\0".join(entries) + b"\0")


@pytest.fixture
def proc(tmp_path: Path) -> Processes:
    return Processes(tmp_path / "proc")


def test_the_cgroup_outweighs_what_the_environment_claims(proc: Processes) -> None:
    proc.add(7, "6:freezer:/slurm/uid_1/job_18/step_0", {"SLURM_JOB_ID": "99"})
    assert owner_of(proc.root, 7, None) == ProcessOwner("cgroup", 18, os.getuid())
    assert proven_job(proc.root, 7, None) == 18


def test_without_a_job_cgroup_the_environment_stands_in_as_weaker_evidence(
    proc: Processes,
) -> None:
    captured = (FIXTURES / "step_env_constrained.txt").read_text().splitlines()
    proc.add(7, "0::/", dict(line.split("=", 1) for line in captured))
    assert owner_of(proc.root, 7, None) == ProcessOwner("environ", 18, os.getuid())
    assert proven_job(proc.root, 7, None) is None


def test_a_sluid_is_resolved_by_the_environment_or_not_at_all(proc: Processes) -> None:
    path = "0::/system.slice/slurmstepd.scope/sEKNKTV3WPV500/step_0/user/task_0"
    proc.add(7, path, {"SLURM_JOB_ID": "42"})
    proc.add(8, path)
    assert owner_of(proc.root, 7, None) == ProcessOwner("environ", 42, os.getuid())
    assert owner_of(proc.root, 8, None) is None
    assert proven_job(proc.root, 7, None) is None


def test_with_several_slurmd_on_a_host_each_agent_counts_its_own_jobs(proc: Processes) -> None:
    proc.add(7, (FIXTURES / "cgroup_v1_batch.txt").read_text(), {"SLURM_JOB_ID": "18"})
    proc.add(8, "0::/", {"SLURM_JOB_ID": "18", "SLURMD_NODENAME": "node1"})
    assert owner_of(proc.root, 7, "node2") is None
    assert proven_job(proc.root, 7, "node2") is None
    assert owner_of(proc.root, 8, "node2") is None
    assert owner_of(proc.root, 7, "node1") == ProcessOwner("cgroup", 18, os.getuid())
    assert owner_of(proc.root, 8, "node1") == ProcessOwner("environ", 18, os.getuid())


NO_IDS = ["", "0", "x", "-3", "007", "1 2", "+1", "\u0663", "9223372036854775808", "1" * 20]


@pytest.mark.parametrize("claim", [*NO_IDS, "1\n"])
def test_a_claim_that_is_no_job_id_counts_for_nothing(claim: str) -> None:
    assert environ.job_in(f"SLURM_JOB_ID={claim}\0".encode(), None) is None


@pytest.mark.parametrize("told", NO_IDS)
def test_a_drop_file_of_no_job_id_is_spoilt(told: str) -> None:
    with pytest.raises(ValueError, match="SLURM_JOB_ID"):
        prolog.parse(f"SLURM_JOB_ID={told}\nSLURM_JOB_GPUS=0\n", since=0.0)


@pytest.mark.parametrize("job_id", [1, 4294967295, 2**63 - 1])
def test_ids_of_63_bits_are_read(job_id: int, tmp_path: Path) -> None:
    assert environ.job_in(f"SLURM_JOB_ID={job_id}\0".encode(), None) == job_id
    (tmp_path / str(job_id)).write_text(f"SLURM_JOB_ID={job_id}\nSLURM_JOB_GPUS=0\n")
    assert [held.job_id for held in prolog.held(tmp_path, booted_at=0.0)] == [job_id]


# By hand: what each environment says, as the kernel gives it.
ENVIRONMENTS = {
    b"SLURM_JOB_ID=7\0FLOPWATCH_JOB_ID=1099511627783\0": 1099511627783,
    b"FLOPWATCH_JOB_ID=\0SLURM_JOB_ID=7\0": 7,
    b"MY_SLURM_JOB_ID=8\0SLURM_JOB_IDS=9\0X=SLURM_JOB_ID=10\0": None,
    b"SLURM_JOB_ID=7\0SLURM_JOB_ID=8\0": 7,  # as getenv has it
    b"\xff\xfe\0=\0\0==\0NAME\0\x1b[2J=\xc3\x28\0SLURM_JOB_ID=7\0\xff": 7,
    b"SLURM_JOB_ID=7\xff\0": None,
    b"SLURM_JOB_ID=\xd9\xa3\0": None,  # an Arabic three
    b"A=b\0SLURM_JOB_ID=12": None,  # cut off: 12345 for all that is known
    b"": None,
}


@pytest.mark.parametrize("environment", ENVIRONMENTS, ids=repr)
def test_an_environment_may_hold_anything(environment: bytes) -> None:
    assert environ.job_in(environment, None) == ENVIRONMENTS[environment]


def test_a_process_that_is_gone_belongs_to_nobody(proc: Processes) -> None:
    assert owner_of(proc.root, 7, None) is None


def test_a_real_process_is_found_by_its_environment() -> None:
    with subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE, env={"SLURM_JOB_ID": "77"}) as cat:
        try:
            owner = owner_of(Path("/proc"), cat.pid, None)
        finally:
            cat.terminate()
    assert owner == ProcessOwner("environ", 77, os.getuid())


def test_a_process_keeps_the_time_it_was_first_seen_until_it_is_gone() -> None:
    gpu = ("GPU-1", "", "")
    book = ProcessEvidence({7: ProcessOwner("cgroup", 18, 1001)}.get)
    book.observe(100.0, {gpu: [7, 8]}, {gpu: 0})
    (evidence,) = book.observe(110.0, {gpu: [7]}, {gpu: 2})
    assert (evidence.first_seen, evidence.last_seen, evidence.device) == (100.0, 110.0, 2)
    assert (evidence.kind, evidence.job_id, evidence.pid, evidence.uid) == ("cgroup", 18, 7, 1001)
    book.observe(120.0, {gpu: []}, {gpu: 2})
    (evidence,) = book.observe(130.0, {gpu: [7]}, {gpu: 2})
    assert evidence.first_seen == 130.0


def test_the_prolog_tells_what_slurm_told_it_and_the_epilog_takes_it_back(
    tmp_path: Path,
) -> None:
    captured = (FIXTURES / "prolog_env.txt").read_text().splitlines()
    environment = dict(line.split("=", 1) for line in captured)
    environment["FLOPWATCH_PROLOG_DIR"] = str(tmp_path / "jobs")
    subprocess.run([SCRIPTS / "prolog.sh"], env=environment, check=True)
    (held,) = prolog.held(tmp_path / "jobs", booted_at=0.0)
    assert (held.job_id, held.ordinals, held.uid) == (18, [6, 7], 1001)
    (evidence,) = prolog_evidence(held.since + 5, [held], {})
    assert (evidence.kind, evidence.ordinals, evidence.pid) == ("prolog", [6, 7], None)
    assert [path.name for path in (tmp_path / "jobs").iterdir()] == ["18"]
    subprocess.run([SCRIPTS / "epilog.sh"], env=environment, check=True)
    assert prolog.held(tmp_path / "jobs", booted_at=0.0) == []


def test_a_prolog_may_name_gpus_and_instances_by_uuid(tmp_path: Path) -> None:
    gpus = "SLURM_JOB_ID=18\nSLURM_JOB_GPUS=GPU-1,MIG-GPU-2/3/0,GPU-2,MIG-0b3d\n"
    (tmp_path / "18").write_text(gpus)
    (held,) = prolog.held(tmp_path, booted_at=0.0)
    assert (held.ordinals, held.uuids) == ([], ("GPU-1", "MIG-GPU-2/3/0", "GPU-2", "MIG-0b3d"))
    # GPU-2 is split: it is no device by itself.
    index = {("GPU-0", "", ""): 0, ("GPU-1", "", ""): 1, ("GPU-2", "3/0", "3g.40gb"): 2,
             ("GPU-2", "4/0", "3g.40gb"): 3}  # fmt: skip
    signs = list(prolog_evidence(held.since + 5, [held], index))
    assert [(sign.kind, sign.job_id, sign.device, sign.ordinals) for sign in signs] == [
        ("prolog", 18, place, None) for place in (1, 2)
    ]


@pytest.mark.parametrize("script", ["prolog.sh", "epilog.sh"])
@pytest.mark.parametrize("job_id", ["", "../evil", "18"])
def test_prolog_and_epilog_never_fail_a_job(script: str, job_id: str, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.touch()
    environment = {"FLOPWATCH_PROLOG_DIR": str(blocked / "jobs"), "SLURM_JOB_ID": job_id}
    result = subprocess.run([SCRIPTS / script], env=environment, check=True, capture_output=True)
    assert result.stdout + result.stderr == b""
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


FULL_DISK = """
mount -t tmpfs -o size=4096 tmpfs "$FLOPWATCH_PROLOG_DIR"
head -c 4096 /dev/zero > "$FLOPWATCH_PROLOG_DIR/full"
"$SCRIPT" && ls "$FLOPWATCH_PROLOG_DIR"
"""


def test_a_full_disk_fails_no_job_and_leaves_no_half_of_a_drop_file(tmp_path: Path) -> None:
    environment = {
        "FLOPWATCH_PROLOG_DIR": str(tmp_path), "SLURM_JOB_ID": "18", "SLURM_JOB_GPUS": "6,7",
        "SCRIPT": str(SCRIPTS / "prolog.sh"), "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
    }  # fmt: skip
    result = subprocess.run(
        ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", FULL_DISK],
        env=environment, capture_output=True, text=True,
    )  # fmt: skip
    assert (result.returncode, result.stdout, result.stderr) == (0, "full\n", "")


def test_spoilt_and_left_over_drop_files_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "20").write_text("SLURM_JOB_ID=20\nSLURM_JOB_GPUS=0-1,4\nSLURM_JOB_UID=5\n")
    (tmp_path / "21").write_text("SLURM_JOB_ID=21\nSLURM_JOB_GPUS=\n")
    (tmp_path / "22").write_text("SLURM_JOB_GPUS=0\n")
    (tmp_path / "23").write_text("SLURM_JOB_ID=23\nSLURM_JOB_GPUS=zero\n")
    (tmp_path / "27").write_text(f"SLURM_JOB_ID=27\nSLURM_JOB_GPUS=0-{10**30}\n")
    (tmp_path / "24").write_text("SLURM_JOB_ID=24\nSLURM_JOB_GPUS=2\n")
    os.utime(tmp_path / "24", (500.0, 500.0))  # before the node's start
    (tmp_path / ".25.new").write_text("SLURM_JOB_ID=25\nSLURM_JOB_GPUS=3\n")
    (tmp_path / "README").write_text("SLURM_JOB_ID=26\nSLURM_JOB_GPUS=3\n")
    found = prolog.held(tmp_path, booted_at=1000.0)
    assert [(held.job_id, held.ordinals, held.uid) for held in found] == [(20, [0, 1, 4], 5)]
