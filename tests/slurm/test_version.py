"""Which version a Slurm has: by its commands, and by what slurmrestd tells beside its answers."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from flopwatch_server.scheduler.records import SchedulerError
from flopwatch_server.scheduler.slurm import Slurm
from flopwatch_server.scheduler.slurm.rest.version import parse_version
from tests.lab.slurm import SlurmLab

CASES = Path(__file__).parent / "cases"
ANSWERS = [path for path in sorted(CASES.glob("*/*.json")) if '"release"' in path.read_text()]


@pytest.mark.parametrize("path", ANSWERS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_every_answer_of_slurmrestd_tells_the_version_that_gave_it(path: Path) -> None:
    assert parse_version(path.read_text()).startswith(f"{path.parent.name}.")


@pytest.mark.parametrize(
    "answer", ["", "[]", "{}", '{"meta": {}}', '{"meta": {"slurm": {"release": 5}}}']
)
def test_an_answer_without_a_version_is_an_error_that_says_so(answer: str) -> None:
    with pytest.raises(SchedulerError, match=r"^ping: "):
        parse_version(answer)


def test_there_are_answers_of_both_forms() -> None:
    forms = {"slurm" in json.loads(path.read_text())["meta"] for path in ANSWERS}
    assert forms == {True, False}


@pytest.mark.parametrize("printed", ["slurm 23.11.10\n", "slurm-wlm 23.11.10\n"])
def test_sinfo_tells_the_version_under_any_name_of_the_package(printed: str) -> None:
    def run(command: Sequence[str], environment: Mapping[str, str], deadline: float) -> str:
        assert command == ("sinfo", "--version")
        return printed

    assert Slurm("lab", run=run).version() == "23.11.10"


def test_a_real_slurm_tells_its_own(slurm_lab: SlurmLab) -> None:
    told = Slurm(slurm_lab.cluster, slurm_lab.environment).version()
    assert slurm_lab.run("slurmctld", "-V").split()[-1] == told
