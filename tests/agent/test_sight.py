"""What can be seen of jobs on a node, and that the server is told of it when it changes."""

from pathlib import Path

import pytest

from flopwatch_agent.ownership.gres_conf import GresConf
from flopwatch_agent.ownership.sight import look
from flopwatch_agent.states import Capabilities
from tests.agent.test_daemon import Life, life

__all__ = ["life"]

# Folders and files below /sys/fs/cgroup, as in fixtures/node_cgroup_paths.txt and on real nodes.
SIGHTS = {
    "nothing is mounted": ([], "none", "none"),
    "v2 without a job": (["cgroup.controllers", "system.slice/cgroup.procs"], "v2", "none"),
    "v2 with a job": (
        ["cgroup.controllers", "system.slice/slurmstepd.scope/job_5/step_0/user/cgroup.procs",
         "system.slice/slurmstepd.scope/system/cgroup.procs"], "v2", "job id",
    ),
    "v2 of several slurmd": (
        ["cgroup.controllers", "system.slice/node1_slurmstepd.scope/job_5/cgroup.procs"],
        "v2", "job id",
    ),
    "v2 of Slurm 26.05": (
        ["cgroup.controllers", "system.slice/slurmstepd.scope/sEKNKTV3WPV500/step_0/cgroup.procs"],
        "v2", "SLUID",
    ),
    "v1 without a job": (["memory/cgroup.procs", "memory/slurm/cgroup.procs"], "v1", "none"),
    "v1 with a job": (
        ["memory/cgroup.procs", "devices/cgroup.procs", "devices/slurm/uid_7/job_5/cgroup.procs"],
        "v1", "job id",
    ),
    "v1 of several slurmd": (
        ["freezer/cgroup.procs", "freezer/slurm_node1/uid_7/job_5/cgroup.procs"], "v1", "job id",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("files", "form", "named"), SIGHTS.values(), ids=SIGHTS)
def test_the_form_of_cgroups_and_what_names_those_of_jobs(
    tmp_path: Path, files: list[str], form: str, named: str
) -> None:
    for file in files:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
    assert look(tmp_path) == [{"cgroup": form, "job_cgroups": named}]


def test_a_gres_conf_that_cannot_be_read_is_told_and_one_that_leaves_it_to_the_driver_is_not(
    tmp_path: Path,
) -> None:
    conf = GresConf({"SLURM_CONF": str(tmp_path / "slurm.conf")}, "n1", Path("/proc"))
    conf.read()
    assert conf.trouble == ""
    (tmp_path / "gres.conf").mkdir()  # root, who runs the tests, may read any file
    conf.read()
    assert conf.trouble == "Is a directory"
    (tmp_path / "gres.conf").rmdir()
    (tmp_path / "gres.conf").write_text("AutoDetect=nvml\n")
    conf.read()
    assert conf.trouble == ""


def test_it_is_told_when_it_changes_and_after_it_was_lost() -> None:
    book = Capabilities()
    assert book.of_node({"cgroup": "v1"}) == {"cgroup": "v1"}
    assert book.of_node({"cgroup": "v1"}) == {}
    assert book.of_node({"cgroup": "v2"}) == {"cgroup": "v2"}
    book.forget()
    assert book.of_node({"cgroup": "v2"}) == {"cgroup": "v2"}


def test_the_agent_tells_it_once_in_each_epoch(life: Life) -> None:
    life.jumps = {25: -100.0}
    told = [(batch["epoch"]["number"], batch["capabilities"]) for batch in life.run(60)]
    first, last = told[0][0], told[-1][0]
    assert first != last
    for epoch in (first, last):
        seen = [found for number, found in told if number == epoch and found]
        assert [sorted(found) for found in seen] == [["cgroup", "gres_conf", "job_cgroups"]]
