"""Which job runs where and when: a pure function of the seed and the time, without a beginning.

Every seat of every block is some GPUs on which the jobs of one character follow one another in a
fixed cycle. So a simulation that is started again finds the very jobs that it left, and any stretch
of time can be made again.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from random import Random

from flopwatch_simulation.cast import CAST, LAYOUT
from flopwatch_simulation.character import SHORT_CYCLE_SECONDS, Character, Places
from flopwatch_simulation.hardware import NODES_PER_BLOCK, kind_of
from flopwatch_simulation.job import Job
from flopwatch_simulation.people import person

_OPENING = 1_767_225_600  # 2026-01-01: job ids count the short cycles since then
_SEATS_PER_BLOCK = 32
_IDS_PER_BLOCK = 100_000_000
_GOLDEN = 0.618033988749895
_START_SPREAD_SECONDS = 60
_LEADS_SECONDS = (120, 900)
"""How long before its start the queue shows a job."""


@dataclass(frozen=True, slots=True)
class Seat:
    """Some GPUs of one block, and the cycle of the jobs on them.

    `index` is its row in the layout; `shift` how many seconds its cycle lags behind the clock's.
    """

    seed: int
    block: int
    index: int
    shift: int

    @property
    def key(self) -> str:
        """What kind of jobs it has."""
        return LAYOUT[self.index][0]

    @property
    def character(self) -> Character:
        """That kind."""
        return CAST[self.key]

    @property
    def places(self) -> Places:
        """Its GPUs by the cluster's node numbers."""
        first = self.block * NODES_PER_BLOCK
        return tuple((first + node, ordinals) for node, ordinals in LAYOUT[self.index][1])

    def jobs(self, start: float, end: float) -> list[Job]:
        """Its jobs that the queue shows at some time of [start, end], in order, ended ones too
        if they ended in it."""
        cycle = self.character.cycle_seconds
        first = int(start - self.shift) // cycle  # those before are over within their cycle
        last = int(end - self.shift + _LEADS_SECONDS[1]) // cycle
        jobs = (_job(self, turn) for turn in range(first, last + 1))
        return [job for job in jobs if job.listed_at <= end and job.ended_at >= start]

    def nominal_start(self, turn: int) -> int:
        """When the job of this turn of the cycle starts, but for some seconds."""
        return turn * self.character.cycle_seconds + self.shift


def seats(seed: int, nodes: int) -> list[Seat]:
    """All seats whose GPUs are among the first `nodes` nodes."""
    blocks = range(-(-nodes // NODES_PER_BLOCK))
    every = (_seat(seed, block, index) for block in blocks for index in range(len(LAYOUT)))
    return [seat for seat in every if all(node < nodes for node, _ in seat.places)]


def _seat(seed: int, block: int, index: int) -> Seat:
    """Starts of a block's seats are spread evenly, so that something ends every few minutes."""
    share = (Random(f"{seed}/{block}").random() + (index + 1) * _GOLDEN) % 1
    return Seat(seed, block, index, int(share * CAST[LAYOUT[index][0]].cycle_seconds))


def _raw_job_id(seat: Seat, turn: int) -> int:
    slot = (seat.nominal_start(turn) - _OPENING) // SHORT_CYCLE_SECONDS
    return seat.block * _IDS_PER_BLOCK + 1_000_000 + slot * _SEATS_PER_BLOCK + seat.index


@lru_cache(maxsize=100_000)
def _job(seat: Seat, turn: int) -> Job:
    character = seat.character
    random = Random(f"{seat.seed}/{seat.block}/{seat.index}/{turn}")
    nominal = seat.nominal_start(turn)
    started_at = nominal + random.randrange(_START_SPREAD_SECONDS)
    listed_at = nominal - min(random.randrange(*_LEADS_SECONDS), character.cycle_seconds // 4)
    held = int(character.cycle_seconds * random.uniform(*character.busy_share))
    account = random.choice(character.accounts)
    task = turn % character.array_tasks if character.array_tasks else None
    first = turn if task is None else turn - task
    return Job(
        key=seat.key,
        character=character,
        gpu=kind_of(seat.places[0][0] if seat.places else 0).gpu,
        raw_job_id=_raw_job_id(seat, turn),
        array_job_id=None if task is None else _raw_job_id(seat, first),
        array_task_id=task,
        name=random.choice(character.names),
        person=person(account, seat.block, random.randrange(character.crew)),
        places=seat.places,
        submitted_at=listed_at if task is None else seat.nominal_start(first) - 300,
        listed_at=listed_at,
        started_at=started_at if seat.places else None,
        ended_at=started_at + held,
        end_state=random.choice(character.endings),
        wave_shift=random.uniform(0, 2 * math.pi),
    )
