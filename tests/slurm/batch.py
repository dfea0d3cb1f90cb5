"""A mixed batch of jobs on a real Slurm: none ends before the test lets it.

What each job held is noted on the nodes themselves, in a prolog; when it ran and what it was given
is told by accounting.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from tests.lab.slurm import Gate, SlurmLab, plain_cards, wait_until

SWARM = 300
NAME = "a|b\n99\x1fRUNNING\n<script>alert('1')</script>"
_FIELDS = "JobIDRaw,Submit,Start,End,State,ElapsedRaw,Suspended,AllocTRES,Partition"
_OVER = "CA,CD,F,RQ,TO"
_NOTE = (
    'echo "$SLURM_JOB_ID ${{SLURM_JOB_RESTART_COUNT:-$SLURM_RESTART_COUNT}} $SLURMD_NODENAME'
    ' $SLURM_JOB_GPUS" >>{notes}'
)


@dataclass(frozen=True)
class Told:
    """One run in accounting, whose columns no user can write into; no start if it never ran."""

    raw_job_id: int
    submitted_at: datetime
    started_at: datetime | None
    ended_at: datetime
    state: str
    elapsed_seconds: int
    suspended_seconds: int
    gpus: int

    @property
    def gpu_seconds(self) -> int:
        """What it is charged for: its GPUs stay its own while it is suspended."""
        return self.gpus * (self.elapsed_seconds + self.suspended_seconds)


class Batch:
    """The jobs by what they are an example of, and the witnesses of what they held."""

    def __init__(self, lab: SlurmLab, notes: Path) -> None:
        self.lab = lab
        self.jobs: dict[str, int] = {}
        self.gate = Gate(lab.root / "gate")
        self.second_gate = Gate(lab.root / "second_gate")
        self._notes = notes

    def submit(self) -> None:
        """Submit everything, and wait until all of it runs that may."""
        wait = self.gate.script
        first, second = self.lab.nodes[:2]
        self._submit("wide", wait, "--nodes=2", "--gres=gpu:8", f"--nodelist={first},{second}")
        self.lab.wait_state(self.jobs["wide"], "RUNNING")
        self._submit("one", wait, "--gres=gpu:1", user="fwbob")
        self._submit("tasks", wait, "--nodes=1", "--ntasks=3", "--gpus-per-task=1")
        self._submit("held", wait, "--gpus=3", "--hold")
        self._submit("cancelled", wait, "--gpus=2")
        # With cgroups 22.05 may run no prolog when a job begins again: this one notes by itself.
        note = _NOTE.format(notes=self._notes)
        self._submit("requeued", f"{note}; exec {wait}", "--gpus=2", "--requeue")
        self._submit("late", self.second_gate.script, "--gpus=1", "--time=10")
        self._submit("suspended", wait, "--gpus=2", user="fwbob")
        self._submit("failed", f"{wait}; srun false; exit 3", "--gpus=1")
        self._submit("failed step", f"{wait}; srun false; exit 0", "--gpus=1")
        self._submit("named", wait, "--gpus=1", f"--job-name={NAME}")
        self._submit(
            "array",
            f'[ "$SLURM_ARRAY_TASK_ID" -lt 3 ] || exec {self.second_gate.script}; exec {wait}',
            *("--array=0-5%3", "--gpus=1"),
        )
        het = ("sbatch", "--parsable", "--gpus=1", f"--wrap={wait}", ":", "--gpus=2")
        self.jobs["het"] = int(self.lab.run(*het, user="fwalice"))
        self.lab.run("salloc", "--no-shell", "--gpus=1", "--job-name=alloc", user="fwalice")
        self.jobs["alloc"] = int(self.lab.run("squeue", "-h", "--name=alloc", "-o", "%A"))
        swarm = f'for i in $(seq {SWARM}); do sbatch -Q --gpus=1 -J swarm "$1"; done'
        script = self.lab.users["fwbob"].home / "swarm.sh"
        script.write_text(f"#!/bin/sh\nexec {wait}\n")
        self.lab.run("sh", "-c", swarm, "sh", str(script), user="fwbob")
        running = len(self.jobs) - 1 + 2 + 1 + SWARM  # one is held, three tasks, two parts
        wait_until(lambda: self.running() == running, f"{running} jobs run", 60.0)

    def _submit(self, what: str, script: str, *options: str, user: str = "fwalice") -> None:
        self.jobs[what] = self.lab.submit(script, *options, user=user)

    def running(self) -> int:
        """How many jobs run now."""
        return len(self.lab.run("squeue", "-h", "-t", "R", "-o", "%A").split())

    def tasks(self) -> set[str]:
        """The tasks of the array that run now."""
        options = ("-h", "-t", "R", "-j", str(self.jobs["array"]), "-o", "%K")
        return set(self.lab.run("squeue", *options).split())

    def held(self) -> dict[int, list[set[tuple[str, int]]]]:
        """Node and position of each GPU that the nodes handed out, by run of each job."""
        runs: dict[int, dict[int, set[tuple[str, int]]]] = defaultdict(lambda: defaultdict(set))
        for line in self._notes.read_text().splitlines():
            job, restarts, node, gpus = line.split(" ")
            places = {(node, int(place)) for place in gpus.split(",")}
            runs[int(job)][int(restarts or 0)] |= places
        return {job: [held for _, held in sorted(by.items())] for job, by in runs.items()}

    def told(self) -> list[Told]:
        """All runs that accounting tells to be over."""
        options = ("-anDPX", "-s", _OVER, "-S", "now-1day", "-E", "now", "-o", _FIELDS)
        rows = self.lab.run("env", "SLURM_TIME_FORMAT=%s", "sacct", *options).splitlines()
        fields = (row.split("|") for row in rows)
        return sorted(
            (_told(row) for row in fields if row[-1]),
            key=lambda run: (run.raw_job_id, run.submitted_at),
        )


def _told(row: list[str]) -> Told:
    job, submit, start, end, state, elapsed, suspended, tres, _ = row
    counts: Mapping[str, str] = dict(item.split("=") for item in tres.split(",") if item)
    hours, minutes, seconds = map(int, suspended.split(":"))
    never = start in ("None", "Unknown") or not counts
    return Told(
        int(job), _moment(submit), None if never else _moment(start), _moment(end),
        state.split(" ")[0], int(elapsed), (hours * 60 + minutes) * 60 + seconds,
        int(counts.get("gres/gpu", 0)),
    )  # fmt: skip


def _moment(seconds: str) -> datetime:
    return datetime.fromtimestamp(int(seconds), UTC)


@contextmanager
def batch(root: Path, proctrack: str) -> Iterator[Batch]:
    """A lab of two nodes with 8 GPUs and two with 170, for jobs of all kinds."""
    notes = root / "notes"
    notes.touch()
    notes.chmod(0o666)
    prolog = root / "prolog"
    prolog.write_text(f"#!/bin/sh\n{_NOTE.format(notes=notes)}\n")
    prolog.chmod(0o755)
    small, big = plain_cards(8, "h100", range(8)), plain_cards(170, "h100", range(170))
    cards = [small, small, big, big]
    with SlurmLab(root, cards=cards, proctrack=proctrack, prolog=prolog) as lab:
        yield Batch(lab, notes)
