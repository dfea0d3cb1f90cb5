"""The lab itself: what a test may choose, and that nothing of it stays behind."""

from pathlib import Path

import pytest

from tests.lab.slurm import LabError, SlurmLab, lab_folder, python_command, wait_until
from tests.lab.slurm.daemons import step_processes


def script(path: Path, body: str) -> Path:
    path.write_text(f"#!/bin/bash\n{body}\n")
    path.chmod(0o755)
    return path


def cgroups_of(nodes: tuple[str, ...]) -> list[Path]:
    """What the nodes of a lab have below any cgroup controller."""
    return [path for name in nodes for path in Path("/sys/fs/cgroup").glob(f"*/slurm_{name}")]


def test_scripts_minors_and_a_readable_python_without_cgroups() -> None:
    with lab_folder() as root:
        notes = root / "notes"
        notes.mkdir()
        note = f"env | grep ^SLURM_JOB_ >{notes}/$SLURM_SCRIPT_CONTEXT.$SLURM_JOB_ID"
        prolog = script(root / "prolog", note)
        epilog = script(root / "epilog", note)
        task = script(root / "task", "echo export FROM_TASK_PROLOG=yes")
        with SlurmLab(
            root,
            nodes=1,
            gpus=2,
            gres_type="a100",
            device_minors=(5, 3),
            proctrack="linuxproc",
            prolog=prolog,
            epilog=epilog,
            task_prolog=task,
        ) as lab:
            with python_command(lab.users["fwalice"], root) as command:
                python = " ".join(command)
                code = "import flopwatch, os; print(os.environ['FROM_TASK_PROLOG'])"
                job = lab.submit(f'srun {python} -c "{code}"', "--gpus=a100:2")
                lab.wait_state(job, "COMPLETED")
            output = lab.users["fwalice"].home / f"slurm-{job}.out"
            assert output.read_text() == "yes\n"
            assert "SLURM_JOB_GPUS=0,1" in (notes / f"prolog_slurmd.{job}").read_text().splitlines()
            after = notes / f"epilog_slurmd.{job}"
            wait_until(after.exists, "the epilog ran", 10.0)
            minors = [
                (lab.device_folder(lab.nodes[0]) / f"nvidia{position}").stat().st_rdev & 0xFF
                for position in (0, 1)
            ]
            assert minors == [5, 3]
            assert cgroups_of(lab.nodes) == []
            lab.submit("exec sleep 300", "--gpus=1")
            conf = lab.environment["SLURM_CONF"]
            wait_until(lambda: len(step_processes(conf)) >= 2, "a step runs", 10.0)
        assert step_processes(conf) == []


def test_processes_of_a_job_are_found_by_node(slurm_lab: SlurmLab) -> None:
    first, second = slurm_lab.nodes
    job = slurm_lab.submit("exec sleep 300", "--gpus=1", f"--nodelist={second}")

    def commands() -> set[str]:
        pids = slurm_lab.node_pids(job, second)
        return {Path(f"/proc/{pid}/comm").read_text().strip() for pid in pids}

    slurm_lab.wait_state(job, "RUNNING")
    wait_until(lambda: "sleep" in commands(), "the job sleeps", 10.0)
    assert slurm_lab.node_pids(job, first) == []
    slurm_lab.cancel_jobs()


def test_a_lab_that_fails_to_start_says_why_and_leaves_nothing() -> None:
    with lab_folder() as root:
        lab = SlurmLab(root, nodes=1, extra="SchedulerType=sched/none_such")
        with pytest.raises(LabError, match=r"slurmctld ended with 1(?s:.*)none_such"):
            lab.__enter__()
        assert cgroups_of(lab.nodes) == []
        assert str(root) not in lab.run("ps", "-eo", "args")
