"""A cluster that is not there: its agents, its scheduler, and the ledger of what is true of it.

A pure function of (seed, nodes, faults, time). A cluster's nodes are the first nodes of every
larger one of the same seed, with the same jobs.
"""

from collections.abc import Iterable, Iterator

from flopwatch_simulation.agent import Agent
from flopwatch_simulation.faults import Fault, Faults
from flopwatch_simulation.feed import Line, node_line, run_line
from flopwatch_simulation.job import Job
from flopwatch_simulation.people import PEOPLE_PER_ACCOUNT, Person, person
from flopwatch_simulation.schedule import seats
from flopwatch_simulation.shares import WINDOW_SECONDS, are_due, share_lines, usage
from flopwatch_simulation.truth import GpuMinute, Truth, gpu_minute, true_of

DEFAULT_NODES = 8


class Cluster:
    """`nodes` nodes of 8 GPUs each, the jobs on them, and what goes wrong."""

    def __init__(
        self, seed: int = 1, nodes: int = DEFAULT_NODES, faults: Iterable[Fault] = ()
    ) -> None:
        self.seed = seed
        self.nodes = nodes
        self.faults = Faults(faults)
        self._seats = seats(seed, nodes)
        self._seats_of: list[list[int]] = [[] for _ in range(nodes)]
        for index, seat in enumerate(self._seats):
            for node, _ in seat.places:
                self._seats_of[node].append(index)
        self._agents: dict[int, Agent] = {}

    def agent(self, node: int) -> Agent:
        """The agent of one node."""
        if node not in self._agents:
            mine = [self._seats[index] for index in self._seats_of[node]]
            self._agents[node] = Agent(self.seed, node, mine, self.faults)
        return self._agents[node]

    def jobs(self, start: float, end: float) -> list[Job]:
        """All runs that the queue shows, or that end, at some time of [start, end]."""
        return [
            run
            for seat in self._seats
            for job in seat.jobs(start, end)
            for run in self.faults.runs_of(job)
            if run.listed_at <= end and run.ended_at >= start
        ]

    def feed_lines(self, time: float, ended_since: float) -> Iterator[Line]:
        """The scheduler's word at `time`: a complete snapshot, the runs ended since then, and the
        shares, if they were reckoned anew since then."""
        yield {"kind": "snapshot", "time": time, "complete": True}
        used = [0] * self.nodes
        for job in self.jobs(ended_since, time):
            yield run_line(job, time)
            for node, ordinals in job.places if job.runs(time) else ():
                used[node] += len(ordinals)
        for node, count in enumerate(used):
            yield node_line(node, count, self.faults.down(node, time))
        if are_due(time, ended_since):
            jobs = self.jobs(time - WINDOW_SECONDS, time)
            yield from share_lines(self.seed, self.people(), usage(jobs, time))

    def people(self) -> list[Person]:
        """All who may use it, by account: also those who never do."""
        groups = {(name, seat.block) for seat in self._seats for name in seat.character.accounts}
        everybody = (
            person(account, block, place)
            for account, block in sorted(groups)
            for place in range(PEOPLE_PER_ACCOUNT)
        )
        return list(dict.fromkeys(everybody))  # later blocks share the accounts of earlier ones

    def truth(self, time: float) -> list[Truth]:
        """The ledger: every pending and running job as it really is at this time."""
        listed = ((job, job.state(time)) for job in self.jobs(time, time))
        return [true_of(job, state) for job, state in listed if state in ("PENDING", "RUNNING")]

    def gpu_minute(self, node: int, place: int, minute: int) -> GpuMinute:
        """The ledger of one GPU over (minute, minute + 60 s]: what it did, and who may tell."""
        return gpu_minute(self.agent(node), self.faults, place, minute)
