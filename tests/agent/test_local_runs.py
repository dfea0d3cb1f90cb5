"""Which process tree is a run, by real processes; only their GPU is made up."""

import os
import pty
import pwd
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from flopwatch.wire import LocalRun, local_job_id
from flopwatch_agent.collectors.host import boot_time
from flopwatch_agent.inventory import Key
from flopwatch_agent.ownership.local import LocalRuns, program_name
from tests.lab.login import Tree
from tests.lab.processes import wait_for

PROC = Path("/proc")
KEY, OTHER = ("GPU-a", "", ""), ("GPU-b", "", "")
INDEX = {KEY: 0, OTHER: 1}
NOW = 4_000_000_000.0  # later than any process of the test begins


@pytest.fixture
def runs() -> LocalRuns:
    return LocalRuns(PROC, boot_time(PROC), lambda pid: None)


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """A training script that tells its pid and works until its standard input ends."""
    path = tmp_path / "train.py"
    path.write_text("import os, sys\nos.write(1, b'%d\\n' % os.getpid())\nsys.stdin.read()\n")
    return path


@pytest.fixture
def start() -> Iterator[Callable[..., Tree]]:
    trees: list[Tree] = []

    def begin(*command: str | Path) -> Tree:
        trees.append(Tree(*command))
        return trees[-1]

    yield begin
    for tree in trees:
        tree.end()


def seen(runs: LocalRuns, now: float, pids: dict[Key, list[int]]) -> list[LocalRun]:
    return [sighting.told(INDEX) for sighting in runs.observe(now, pids)]


def only(runs: LocalRuns, pid: int, now: float = NOW) -> LocalRun:
    (run,) = seen(runs, now, {KEY: [pid]})
    return run


def test_a_script_is_a_run_under_its_users_and_its_own_name(
    runs: LocalRuns, start: Callable[..., Tree], script: Path
) -> None:
    before = time.time()
    tree = start(sys.executable, "-u", "-W", "ignore", script, "--api-key", "s3cret")
    pid = tree.told_pid()
    run = only(runs, pid)
    assert (run.pid, run.uid, run.user, run.name) == (pid, os.getuid(), "root", "train.py")
    assert (
        before - 1.1 <= run.started_at <= time.time() + 1.1
    )  # the start of the node is whole seconds
    assert (run.devices, run.last_seen, run.ended_at) == ([0], NOW, None)
    assert "s3cret" not in str(run)


def test_a_run_ends_with_its_root_and_is_told_so_once(
    runs: LocalRuns, start: Callable[..., Tree], script: Path
) -> None:
    tree = start(sys.executable, script)
    pid = tree.told_pid()
    only(runs, pid)
    tree.end()
    (ended,) = seen(runs, NOW + 10, {})
    assert (ended.pid, ended.last_seen, ended.ended_at) == (pid, NOW, NOW + 10)
    assert seen(runs, NOW + 20, {}) == []


def test_an_ended_run_is_told_by_the_places_of_the_batch_that_tells_it(
    runs: LocalRuns, start: Callable[..., Tree], script: Path
) -> None:
    tree = start(sys.executable, script)
    runs.observe(NOW, {KEY: [pid := tree.told_pid()], OTHER: [pid]})
    tree.end()
    (ended,) = runs.observe(NOW + 10, {})
    assert ended.told({OTHER: 0}).devices == [0]  # the other was lost, and with it a place


def test_a_clock_turned_back_lets_no_run_end_before_it_began(
    runs: LocalRuns, start: Callable[..., Tree], script: Path
) -> None:
    tree = start(sys.executable, script)
    pid = tree.told_pid()
    run = only(runs, pid)
    (run,) = seen(runs, 1000.0, {})
    assert run.devices == []  # since when nobody knows
    tree.end()
    (ended,) = seen(runs, 1010.0, {})
    assert ended.ended_at == ended.started_at == run.started_at


def test_a_run_that_is_met_after_the_clock_was_turned_back_begins_then(
    runs: LocalRuns, start: Callable[..., Tree], script: Path
) -> None:
    pid = start(sys.executable, script).told_pid()
    run = only(runs, pid, now=1000.0)
    assert run.started_at == 1000.0
    assert runs.job_of(pid) == local_job_id(pid, 1000.0)


def test_a_user_whom_the_name_service_did_not_know_may_be_known_later(
    runs: LocalRuns, start: Callable[..., Tree], script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script.write_text("import os\nos.setuid(54321)\n" + script.read_text())
    pids = [start(sys.executable, script).told_pid() for _ in range(2)]
    assert only(runs, pids[0]).user == "54321"
    eve = pwd.struct_passwd(("eve", "x", 54321, 54321, "", "/", "/bin/sh"))
    monkeypatch.setattr("pwd.getpwuid", lambda uid: eve)
    assert seen(runs, NOW + 10, {KEY: pids[1:]})[-1].user == "eve"


def test_a_zombie_is_no_run(runs: LocalRuns, start: Callable[..., Tree], script: Path) -> None:
    tree = start(sys.executable, script)
    pid = tree.told_pid()
    only(runs, pid)
    os.kill(pid, signal.SIGKILL)  # nobody waits for it yet
    wait_for(lambda: ") Z " in Path(f"/proc/{pid}/stat").read_text(), "it is a zombie", 20)
    (ended,) = seen(runs, NOW + 10, {})
    assert ended.ended_at == NOW + 10


def test_workers_are_part_of_their_parents_run(
    runs: LocalRuns, start: Callable[..., Tree], tmp_path: Path
) -> None:
    parent = tmp_path / "train.py"
    parent.write_text(
        textwrap.dedent("""
        import multiprocessing, os, sys
        def work(event):
            os.write(1, b"%d\\n" % os.getpid())
            event.wait()
        if __name__ == "__main__":
            context = multiprocessing.get_context("spawn")
            event = context.Event()
            workers = [context.Process(target=work, args=(event,)) for _ in range(2)]
            for worker in workers: worker.start()
            sys.stdin.read()
            event.set()
            for worker in workers: worker.join()
        """)
    )
    tree = start(sys.executable, parent)
    pids = [tree.told_pid(), tree.told_pid()]
    (run,) = seen(runs, NOW, {KEY: pids[:1], OTHER: pids[1:]})
    assert (run.pid, run.name, run.devices) == (tree.pid, "train.py", [0, 1])
    assert runs.job_of(pids[0]) == runs.job_of(pids[1]) == local_job_id(run.pid, run.started_at)


def test_torchrun_and_its_ranks_are_one_run_named_by_the_script(
    runs: LocalRuns, start: Callable[..., Tree], script: Path
) -> None:
    torchrun = Path(sys.executable).with_name("torchrun")
    tree = start(torchrun, "--standalone", "--nproc-per-node", "2", script)
    pids = [tree.told_pid(), tree.told_pid()]
    (run,) = seen(runs, NOW, {KEY: pids})
    assert (run.pid, run.name) == (tree.pid, "train.py")
    os.kill(tree.pid, signal.SIGTERM)


def test_a_shell_script_is_one_run_and_the_shell_typed_into_is_none(
    runs: LocalRuns, start: Callable[..., Tree], script: Path, tmp_path: Path
) -> None:
    sweep = tmp_path / "sweep.sh"
    sweep.write_text(f"{sys.executable} {script} --lr 1\n{sys.executable} {script} --lr 2\n")
    tree = start("bash", "-eu", sweep)
    run = only(runs, tree.told_pid())
    assert (run.pid, run.name) == (tree.pid, "sweep.sh")

    leader, terminal = pty.openpty()
    with subprocess.Popen(
        ["bash", "--norc"], stdin=terminal, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL, start_new_session=True,
    ) as shell:  # fmt: skip
        told = tmp_path / "pid"
        os.write(leader, f"{sys.executable} {script} > {told}\n".encode())
        pid = int(wait_for(lambda: told.exists() and told.read_text().strip(), "it runs", 30))
        typed = {each.pid: each.name for each in seen(runs, NOW, {KEY: [pid]})}
        assert typed[pid] == "train.py"
        os.kill(pid, signal.SIGKILL)
        shell.kill()
    os.close(leader)
    os.close(terminal)


@pytest.mark.parametrize("prefix", [["sh", "-c"], ["bash", "-lc"]])
def test_a_shell_of_one_command_is_climbed_past_and_is_never_the_run(
    runs: LocalRuns, start: Callable[..., Tree], script: Path, prefix: list[str]
) -> None:
    # The second command keeps the shell from becoming the first.
    tree = start(*prefix, f"{sys.executable} {script}; true")
    pid = tree.told_pid()
    run = only(runs, pid)
    assert (run.pid, run.name) == (pid, "train.py")


def test_a_launcher_that_uses_a_shell_is_still_one_run(
    runs: LocalRuns, start: Callable[..., Tree], script: Path, tmp_path: Path
) -> None:
    makefile = tmp_path / "Makefile"
    makefile.write_text(f"train:\n\t@{sys.executable} {script}; true\n")
    tree = start("make", "-sf", makefile)
    run = only(runs, tree.told_pid())
    assert (run.pid, run.name) == (tree.pid, "train.py")


def test_each_kernel_of_a_notebook_server_is_a_run(
    runs: LocalRuns, start: Callable[..., Tree], tmp_path: Path
) -> None:
    kernel = tmp_path / "ipykernel_launcher.py"
    kernel.write_text("import os, sys\nos.write(1, b'%d\\n' % os.getpid())\nsys.stdin.read()\n")
    server = tmp_path / "jupyter-lab"
    server.write_text(
        "import subprocess, sys\n"
        f"command = [sys.executable, '-m', 'ipykernel_launcher', '-f', '/secret/path.json']\n"
        f"kernels = [subprocess.Popen(command, cwd={str(tmp_path)!r}) for _ in range(2)]\n"
        "for kernel in kernels: kernel.wait()\n"
    )
    tree = start(sys.executable, server)
    pids = sorted([tree.told_pid(), tree.told_pid()])
    told = sorted(seen(runs, NOW, {KEY: pids}), key=lambda run: run.pid)
    assert [(run.pid, run.name) for run in told] == [(pid, "ipykernel_launcher") for pid in pids]


def test_another_users_parent_is_not_part_of_the_run(
    runs: LocalRuns, start: Callable[..., Tree], tmp_path: Path
) -> None:
    service = tmp_path / "service.py"
    service.write_text(
        "import os, sys\n"
        "if not os.fork():\n"
        "    os.setuid(65534)\n"
        "    print(os.getpid(), flush=True)\n"
        "    sys.stdin.read()\n"
        "    os._exit(0)\n"
        "os.wait()\n"
    )
    pid = start(sys.executable, service).told_pid()
    run = only(runs, pid)
    assert (run.pid, run.user, run.uid) == (pid, "nobody", 65534)


def test_a_device_is_held_for_a_minute_after_its_last_process(
    runs: LocalRuns, start: Callable[..., Tree], script: Path
) -> None:
    pid = start(sys.executable, script).told_pid()
    assert only(runs, pid).devices == [0]
    held = {}
    for after in (50, 59, 60, 70):
        (run,) = seen(runs, NOW + after, {})
        held[after] = run.devices
        assert (run.last_seen, run.ended_at) == (NOW + after, None)
    assert held == {50: [0], 59: [0], 60: [], 70: []}
    (run,) = seen(runs, NOW + 80, {OTHER: [pid]})
    assert (run.pid, run.devices) == (pid, [1])


def test_a_process_of_a_schedulers_job_is_in_no_local_run(
    start: Callable[..., Tree], script: Path
) -> None:
    pid = start(sys.executable, script).told_pid()
    runs = LocalRuns(PROC, boot_time(PROC), {pid: 77}.get)
    assert seen(runs, NOW, {KEY: [pid]}) == []
    assert runs.job_of(pid) == 77


def test_their_number_is_bounded(
    runs: LocalRuns, start: Callable[..., Tree], script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flopwatch_agent.ownership.local.MOST_RUNS", 2)
    pids = [start(sys.executable, script).told_pid() for _ in range(3)]
    assert [run.pid for run in seen(runs, NOW, {KEY: pids})] == pids[:2]


def test_a_process_that_is_gone_is_in_no_run(runs: LocalRuns) -> None:
    with subprocess.Popen(["true"]) as gone:
        gone.wait()
    assert seen(runs, NOW, {KEY: [gone.pid]}) == []
    assert runs.job_of(gone.pid) is None


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("python3 train.py --token x", "train.py"),
        ("/usr/bin/python3.11 -u -X dev /home/a/b/train.py", "train.py"),
        ("python -m torch.distributed.run train.py", "torch.distributed.run"),
        ("python -O train.py", "train.py"),
        ("python -c print(1)", "python"),
        ("python", "python"),
        ("python /opt/tool/__main__.py", "tool"),
        ("/venv/bin/python /venv/bin/torchrun train.py", "torchrun"),
        ("bash -o pipefail sweep.sh secret", "sweep.sh"),
        ("bash -lc secret", "bash"),
        ("-zsh", "zsh"),
        ("/opt/gromacs/bin/gmx mdrun -v", "gmx"),
        ("julia -e secret", "julia"),
    ],
)
def test_a_command_has_the_name_that_a_person_would_use(command: str, name: str) -> None:
    assert program_name(command.split()) == name


def test_a_title_that_a_process_gave_itself_is_not_told(
    runs: LocalRuns, start: Callable[..., Tree], tmp_path: Path
) -> None:
    titled = tmp_path / "titled.sh"
    titled.write_text(
        f'exec -a "worker --password hunter2" {sys.executable} -c '
        "'import os, sys; print(os.getpid(), flush=True); sys.stdin.read()'\n"
    )
    pid = start("bash", titled).told_pid()
    assert only(runs, pid).name == "worker"


def test_a_name_is_printable_and_short(
    runs: LocalRuns, start: Callable[..., Tree], tmp_path: Path
) -> None:
    script = tmp_path / ("a\x1b[31m\n<b>" + "x" * 200 + ".py")
    script.write_text("import os, sys\nos.write(1, b'%d\\n' % os.getpid())\nsys.stdin.read()\n")
    name = only(runs, start(sys.executable, script).told_pid()).name
    assert name.startswith("a [31m <b>xxx")
    assert name.isprintable()
    assert len(name) == 80
