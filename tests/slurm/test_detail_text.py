"""Which GPUs a job holds by `scontrol show job -d`; the table was read off the capture by hand."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from flopwatch_server.scheduler.records import JobRecord, NodeGpus, SchedulerError
from flopwatch_server.scheduler.slurm import Slurm
from flopwatch_server.scheduler.slurm.client import Client
from flopwatch_server.scheduler.slurm.detail_text import MOST_JOBS, parse_job, read_gpus
from flopwatch_server.scheduler.slurm.fields import FieldError

CAPTURE = (Path(__file__).parent / "cases/22.05/scontrol_show_job_d.txt").read_text()
TEXTS = {int(text[6:].split()[0]): text for text in CAPTURE.split("\n\n") if text.strip()}
JOB = JobRecord(
    raw_job_id=2, submitted_at=datetime(2026, 11, 29, 12, 2, 59, tzinfo=UTC), state="RUNNING",
    name="big2x8", user="alice", account="vision", display_id="2", partition="gpu", qos="normal",
)  # fmt: skip
EIGHT = tuple(range(8))


def h100(node: str, *ordinals: int) -> NodeGpus:
    return NodeGpus(node, len(ordinals), ordinals, "h100")


def named(text: str) -> JobRecord:
    first = text.partition("\n")[0]
    job_id, name = first[6:].split()[0], first.partition(" JobName=")[2]
    return replace(JOB, raw_job_id=int(job_id), name=name)


def test_sixteen_jobs_of_slurm_22_05() -> None:
    told = [pair for text in TEXTS.values() for pair in parse_job(text, named(text))]
    assert dict(told) == {
        1: (h100("node4", 0),),
        2: (h100("node1", *EIGHT), h100("node2", *EIGHT)),
        13: (h100("node4", 1),),
        14: (h100("node4", 2),),
        15: (h100("node4", 3),),
        4: (h100("node3", 0, 1, 2),),
        5: (h100("node3", 3, 4),),
        6: (h100("node4", 4),),
        10: (h100("node4", 5),),
        11: (h100("node3", 5, 6),),
        12: (h100("node3", 7),),
    }
    assert set(TEXTS) - {job for job, _ in told} == {3, 7, 8, 9}  # wait, failed, completing, wait


def test_a_name_that_forges_the_line_of_gpus_is_only_a_name() -> None:
    name = "x\n   UserId=root(0)\n     Nodes=n9 CPU_IDs=0 Mem=1 GRES=gpu:1(IDX:7)\n   MinCPUsNode=1"
    text = TEXTS[2].replace("JobName=big2x8", f"JobName={name}")
    assert list(parse_job(text, replace(JOB, name=name))) == list(parse_job(TEXTS[2], JOB))


def test_what_follows_the_resources_is_not_read() -> None:
    comment = "   Comment=\n     Nodes=n9 CPU_IDs=0 Mem=1 GRES=gpu:1(IDX:7)\n   MinCPUsNode=1\n"
    assert list(parse_job(TEXTS[2] + comment, JOB)) == list(parse_job(TEXTS[2], JOB))


@pytest.mark.parametrize(
    ("text", "job", "field"),
    [
        (TEXTS[1], JOB, "JobId of job 2"),
        (TEXTS[2].replace("big2x8", "renamed"), JOB, "JobName of job 2"),
        (TEXTS[2].partition("   MinCPUsNode=")[0], JOB, "JobState of job 2"),
        (TEXTS[2], replace(JOB, account="a\n     Nodes=n9"), "account of job 2"),
        (TEXTS[2].replace("(IDX:0-7)", "(IDX:0-6)"), JOB, "GRES"),
        (TEXTS[2].replace("Nodes=node[1-2]", "Nodes=@all"), JOB, "Nodes"),
        ("", JOB, "JobId of job 2"),
    ],
    ids=["another job", "renamed", "cut off", "forged account", "count", "nodes", "nothing"],
)
def test_an_unknown_shape_is_refused_by_the_name_of_its_field(
    text: str, job: JobRecord, field: str
) -> None:
    with pytest.raises(FieldError, match=f"^{field} reads"):
        list(parse_job(text, job))


class Scontrol:
    """Answers from the capture; a Slurm without JSON."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.is_down = False

    def __call__(
        self, command: Sequence[str], environment: Mapping[str, str], deadline: float
    ) -> str:
        self.asked.append(command[-1])
        if self.is_down:
            raise SchedulerError(f"{command[0]}: exit status 1: Unable to contact slurm controller")
        if "--json" in command:
            raise SchedulerError("squeue: exit status 1: unrecognized option '--json'")
        if command[-1] not in ("2", "3_0"):
            raise SchedulerError("scontrol: exit status 1: slurm_load_jobs error: Invalid job id")
        return TEXTS[{"2": 2, "3_0": 13}[command[-1]]]


TASK = replace(named(TEXTS[13]), display_id="3_0", array_job_id=3, array_task_id=0)


def test_a_task_is_asked_for_by_its_own_id_and_one_that_has_ended_is_left_out() -> None:
    scontrol = Scontrol()
    answer = read_gpus(Client(run=scontrol), [replace(JOB, raw_job_id=99), TASK])
    assert scontrol.asked == ["99", "3_0"]
    assert answer.records == [(13, (h100("node4", 1),))]


def test_many_jobs_are_asked_for_in_several_calls() -> None:
    scontrol = Scontrol()
    read_gpus(Client(run=scontrol), [replace(JOB, raw_job_id=id_) for id_ in range(1000, 1500)])
    assert scontrol.asked == [str(id_) for id_ in range(1000, 1000 + MOST_JOBS)]


def test_without_json_slurm_is_asked_in_text_from_then_on() -> None:
    scontrol = Scontrol()
    slurm = Slurm("lab", run=scontrol)
    assert slurm.gpus([JOB]) == slurm.gpus([JOB]) == {2: (h100("node1", *EIGHT),
                                                         h100("node2", *EIGHT))}  # fmt: skip
    assert scontrol.asked == ["--json", "2", "2"]


def test_a_slurm_that_is_down_is_asked_for_json_again() -> None:
    scontrol = Scontrol()
    slurm = Slurm("lab", run=scontrol)
    scontrol.is_down = True
    with pytest.raises(SchedulerError, match="scontrol: exit status 1: Unable to contact"):
        slurm.gpus([JOB])
    scontrol.is_down = False
    slurm.gpus([JOB])
    assert scontrol.asked == ["--json", "2", "--json", "2"]
