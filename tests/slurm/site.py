"""A database into which a real Slurm is polled, turn by turn, and what stands in it then."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime

from sqlalchemy import select, update

from flopwatch.gpus import PeakTable
from flopwatch_server.database.engine import Database
from flopwatch_server.fleet.models import Node
from flopwatch_server.house import House
from flopwatch_server.jobs.models import Allocation, Run
from flopwatch_server.scheduler.models import SchedulerRefusal, SchedulerSource
from flopwatch_server.scheduler.slurm import Slurm
from flopwatch_server.settings import Settings
from flopwatch_server.work.poll import SlurmPoll
from tests.lab.postgres import DatabaseFactory, postgres, public_folder
from tests.lab.slurm import SlurmLab

Held = tuple[str, int | None, datetime, datetime | None]
"""One GPU of a run: node, position, from, to."""


class Site:
    """A poll of the lab into a database."""

    def __init__(self, lab: SlurmLab, database: Database) -> None:
        self._database = database
        self._house = House(database, Settings(), PeakTable.load())
        self._poll = SlurmPoll(lab.cluster, Slurm(lab.cluster, lab.environment))

    def poll(self) -> None:
        """One turn of each question, as after any rest."""
        with self._database.session() as session:
            session.execute(update(SchedulerSource).values(rests_until=None))
        self._poll.read_queue(self._house)
        self._poll.close_runs(self._house)

    def runs(self) -> list[Run]:
        """All runs, by job and time of submission."""
        order = Run.raw_job_id, Run.submitted_at
        with self._database.session() as session:
            return list(session.scalars(select(Run).order_by(*order)))

    def held(self) -> dict[int, set[Held]]:
        """What each run has held, by its id in the database."""
        held: dict[int, set[Held]] = {run.id: set() for run in self.runs()}
        with self._database.session() as session:
            rows = session.execute(select(Allocation, Node.name).join(Node)).all()
        for row, node in rows:
            held[row.run_id].add((node, row.gres_ordinal, row.valid_from, row.valid_to))
        assert sum(map(len, held.values())) == len(rows)
        return held

    def errors(self) -> dict[str, str | None]:
        """What went wrong with each question when it was last asked."""
        with self._database.session() as session:
            return {row.kind: row.error for row in session.scalars(select(SchedulerSource))}

    def refusals(self) -> list[str]:
        """Which fields could not be read, ever."""
        with self._database.session() as session:
            return [row.problem for row in session.scalars(select(SchedulerRefusal))]


@contextmanager
def polled(lab: SlurmLab) -> Iterator[Site]:
    """A new database for the lab."""
    with (
        public_folder() as folder,
        postgres(folder) as server,
        DatabaseFactory(server.url).database() as database,
    ):
        yield Site(lab, database)
