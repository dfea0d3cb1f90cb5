"""All kinds of jobs at once, three hundred of one: what is stored is what nodes and accounting say.

Polled as in a site: while they run, as they change, and when they are over.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise

import pytest

from flopwatch_server.jobs.models import Run
from tests.lab.slurm import lab_folder, wait_until
from tests.slurm.batch import NAME, SWARM, Batch, Told, batch
from tests.slurm.site import Held, Site, polled

RUNS = SWARM + 10 + 6 + 2 + 2 + 1  # jobs of one run, an array, a het job, a requeued job, salloc


@dataclass(frozen=True)
class Over:
    """What is known when all is over: of the server, of the nodes, of accounting."""

    jobs: dict[str, int]
    runs: list[Run]
    held: dict[int, set[Held]]
    given: dict[int, list[set[tuple[str, int]]]]
    told: list[Told]
    refusals: list[str]
    version: tuple[int, int]

    def of(self, what: str) -> list[Run]:
        """The runs of a job, the oldest first."""
        return [run for run in self.runs if run.raw_job_id == self.jobs[what]]


@pytest.fixture(scope="module", params=["cgroup", "linuxproc"])
def over(request: pytest.FixtureRequest) -> Iterator[Over]:
    """All is over, with processes tracked by cgroups, and by their parents."""
    with lab_folder() as root, batch(root, request.param) as jobs, polled(jobs.lab) as site:
        _live(jobs, site)
        site.poll()
        yield Over(
            jobs.jobs,
            site.runs(),
            site.held(),
            jobs.held(),
            jobs.told(),
            site.refusals(),
            jobs.lab.version,
        )


def _live(batch: Batch, site: Site) -> None:
    """Let everything happen to the jobs that is to happen, until all are over."""
    lab, jobs = batch.lab, batch.jobs
    batch.submit()
    site.poll()
    lab.run("scontrol", "update", f"jobid={jobs['late']}", "endtime=now+1seconds")
    lab.run("scontrol", "suspend", str(jobs["suspended"]))
    lab.run("scontrol", "requeue", str(jobs["requeued"]))
    lab.wait_state(jobs["requeued"], "PENDING")
    for what in ("held", "cancelled", "alloc"):
        lab.run("scancel", str(jobs[what]))
    site.poll()
    # By itself it would wait two minutes. In the second of its end its credential is revoked still.
    lab.run("scontrol", "update", f"jobid={jobs['requeued']}", "starttime=now+2seconds")
    lab.wait_state(jobs["requeued"], "RUNNING")
    lab.run("scontrol", "resume", str(jobs["suspended"]))
    site.poll()
    batch.gate.open()
    wait_until(lambda: batch.tasks() == {"3", "4", "5"}, "the last tasks run", 60.0)
    site.poll()
    lab.wait_state(jobs["late"], "TIMEOUT", 60.0)
    batch.second_gate.open()
    wait_until(lambda: len(batch.told()) == RUNS, f"{RUNS} runs are over", 60.0)


def test_every_run_is_stored_with_the_times_and_state_of_accounting(over: Over) -> None:
    assert len(over.runs) == RUNS
    assert [
        (run.raw_job_id, run.submitted_at, run.started_at, run.ended_at, run.state, run.gpu_count)
        for run in over.runs
        if run.started_at
    ] == [
        (run.raw_job_id, run.submitted_at, run.started_at, run.ended_at, run.state, run.gpus)
        for run in over.told
        if run.started_at
    ]
    assert over.refusals == []


def test_every_gpu_is_held_from_start_to_end_as_the_nodes_handed_it_out(over: Over) -> None:
    by_job: dict[int, list[Run]] = defaultdict(list)
    for run in over.runs:
        if run.started_at:
            by_job[run.raw_job_id].append(run)
    assert over.given.keys() == by_job.keys()
    for job, runs in by_job.items():
        assert [over.held[run.id] for run in runs] == [
            {(node, place, run.started_at, run.ended_at) for node, place in given}
            for run, given in zip(runs, over.given[job], strict=True)
        ]


def test_gpu_seconds_are_those_of_accounting(over: Over) -> None:
    held = [
        sum((end - begin).total_seconds() for _, _, begin, end in over.held[run.id] if end)
        for run in over.runs
    ]
    assert held == [run.gpu_seconds for run in over.told]
    assert sum(held) > 0


def test_no_gpu_is_held_by_two_at_a_time(over: Over) -> None:
    uses: dict[tuple[str, int | None], list[tuple[datetime, datetime | None]]] = defaultdict(list)
    for held in over.held.values():
        for node, place, begin, end in held:
            uses[node, place].append((begin, end))
    for use in uses.values():
        use.sort()
        assert all(end and end <= begin for (_, end), (begin, _) in pairwise(use))


@pytest.mark.parametrize(
    ("what", "states", "gpus", "exit_code"),
    [
        ("one", ["COMPLETED"], [1], "0:0"),
        ("wide", ["COMPLETED"], [16], "0:0"),
        ("tasks", ["COMPLETED"], [3], "0:0"),
        ("cancelled", ["CANCELLED"], [2], "0:0"),
        ("requeued", ["REQUEUED", "COMPLETED"], [2, 2], "0:0"),
        ("late", ["TIMEOUT"], [1], "0:0"),
        ("suspended", ["COMPLETED"], [2], "0:0"),
        ("failed", ["FAILED"], [1], "3:0"),
        ("failed step", ["COMPLETED"], [1], "0:0"),
        ("named", ["COMPLETED"], [1], "0:0"),
        ("alloc", ["CANCELLED"], [1], "0:0"),
    ],
)
def test_a_job_of_each_kind(
    over: Over, what: str, states: list[str], gpus: list[int], exit_code: str
) -> None:
    runs = over.of(what)
    assert [run.state for run in runs] == states
    assert [run.restarts for run in runs] == list(range(len(states)))
    assert [len(over.held[run.id]) for run in runs] == gpus
    assert runs[-1].exit_code == exit_code
    assert {(run.display_id, run.vanished_at) for run in runs} == {(str(over.jobs[what]), None)}


def test_two_times_eight_gpus_are_all_of_two_nodes(over: Over) -> None:
    [wide] = over.of("wide")
    first, second = sorted({node for node, *_ in over.held[wide.id]})
    assert {(node, place) for node, place, *_ in over.held[wide.id]} == {
        (node, place) for node in (first, second) for place in range(8)
    }


def test_a_job_cancelled_while_it_waits_held_nothing(over: Over) -> None:
    [held] = over.of("held")
    assert (held.state, held.started_at, held.gpu_count) == ("CANCELLED", None, 3)
    assert over.held[held.id] == set()


def test_an_array_of_six_ran_three_at_a_time(over: Over) -> None:
    tasks = {run.array_task_id: run for run in over.runs if run.array_job_id == over.jobs["array"]}
    assert sorted(tasks) == [0, 1, 2, 3, 4, 5]
    assert {run.display_id for run in tasks.values()} == {
        f"{over.jobs['array']}_{task}" for task in range(6)
    }
    assert {run.state for run in tasks.values()} == {"COMPLETED"}
    assert [len(over.held[run.id]) for run in tasks.values()] == [1] * 6
    begins = sorted(run.started_at for run in tasks.values() if run.started_at)
    ends = sorted(run.ended_at for run in tasks.values() if run.ended_at)
    assert begins[3] >= ends[0]


def test_both_parts_of_a_het_job_held_their_own(over: Over) -> None:
    leader = over.jobs["het"]
    parts = [run for run in over.runs if run.het_job_id == leader]
    assert [(run.display_id, run.state, len(over.held[run.id])) for run in parts] == [
        (f"{leader}+0", "COMPLETED", 1),
        (f"{leader}+1", "COMPLETED", 2),
    ]


def test_time_suspended_is_known_and_its_gpus_were_held_all_the_while(over: Over) -> None:
    [run] = over.of("suspended")
    [told] = [one for one in over.told if one.raw_job_id == run.raw_job_id]
    assert run.started_at
    assert run.ended_at
    assert run.suspended_seconds == told.suspended_seconds >= 1
    assert (run.ended_at - run.started_at).total_seconds() == (
        told.elapsed_seconds + told.suspended_seconds
    )


def test_a_name_is_stored_as_it_was_given(over: Over) -> None:
    [run] = over.of("named")
    assert run.name == NAME


def test_every_run_has_its_own_sluid_where_slurm_gives_them(over: Over) -> None:
    """sacct of 24.11 tells them, and that of 22.05 does not."""
    sluids = {run.sluid for run in over.runs}
    if over.version >= (24, 11):
        assert None not in sluids
        assert len(sluids) == RUNS
    else:
        assert sluids == {None}


def test_three_hundred_jobs_at_once_held_three_hundred_gpus(over: Over) -> None:
    swarm = [run for run in over.runs if run.name == "swarm"]
    assert [run.state for run in swarm] == ["COMPLETED"] * SWARM
    held = [place for run in swarm for place in over.held[run.id]]
    assert len({(node, place) for node, place, *_ in held}) == len(held) == SWARM
    assert max(begin for *_, begin, _ in held) <= min(end for *_, end in held if end)
