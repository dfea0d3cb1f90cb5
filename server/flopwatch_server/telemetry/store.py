"""Writes a group of batches in one transaction: samples by COPY, all else by SQLAlchemy."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy.orm import Session

from flopwatch.metrics import SAMPLE_PERIOD_SECONDS
from flopwatch_server.fleet.liveness import Liveness
from flopwatch_server.fleet.registration import Register, Registration
from flopwatch_server.fleet.repository import agents
from flopwatch_server.telemetry.ingest import ValidatedBatch
from flopwatch_server.telemetry.local_runs import write_local_runs
from flopwatch_server.telemetry.repository import facts, happenings
from flopwatch_server.telemetry.repository.arrivals import Rows
from flopwatch_server.telemetry.repository.evidence import Signs
from flopwatch_server.telemetry.repository.states import MetricStates, tell_implausible

DEFER_SECONDS = 1.0
"""For so long what every post says anew may wait. A server that is killed loses this much of it."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one batch's samples."""

    accepted: int
    duplicates: int
    refused: int


class Store:
    """Writes batches. Whoever commits or rolls back must call `keep` or `forget`."""

    def __init__(self) -> None:
        self._register = Register()
        self._states = MetricStates()
        self._signs = Signs()
        self._liveness = Liveness()
        self._defers = False
        self._deferred_written_at = -math.inf

    def keep(self) -> None:
        """The transaction that was written in is durable."""
        self._register.keep()
        self._signs.keep()
        self._liveness.keep()

    def forget(self) -> None:
        """The transaction that was written in is gone, with the ids and states it made."""
        self._register.forget()
        self._states.forget()
        self._signs.forget()
        self._liveness.forget()
        self._defers = True

    def write(
        self, session: Session, batches: Sequence[ValidatedBatch], some_known: bool = False
    ) -> list[Outcome]:
        """Write `batches`, whose days must have partitions.

        Unless `some_known`, all samples go straight into the keyed table, and UniqueViolation says
        that one is there already; else they take a longer way that passes such samples over.
        """
        registered = [(batch, self._enter(session, batch)) for batch in batches]
        rows = Rows.of(registered)
        if some_known:
            accepted = [Rows.of([one]).merge_into_samples(session) for one in registered]
        else:
            rows.copy_to(session)
            accepted = [len(batch.time) for batch in batches]
        rows.mark_dirty(session)
        self._write_states(session, registered)
        for batch, ids in registered:
            if batch.header.capabilities:
                agents.tell_capabilities(session, ids.epoch_id, batch.header.capabilities)
        for implausible in rows.implausible:
            tell_implausible(session, implausible)
        facts.write_gaps(session, registered)
        self._signs.write(session, registered)
        facts.write_reports(session, registered)
        facts.write_host_usage(session, registered)
        write_local_runs(session, registered)
        happenings.write(session, registered)
        self._defers = True
        if self.is_due():
            self.write_deferred(session)
        return [
            Outcome(number, len(batch.time) - number, batch.refused)
            for batch, number in zip(batches, accepted, strict=True)
        ]

    def is_due(self) -> bool:
        """Whether it is time for `write_deferred`, which `write` does by itself."""
        return self._defers and time.monotonic() - self._deferred_written_at >= DEFER_SECONDS

    def write_deferred(self, session: Session) -> None:
        """Write for all nodes at once what with every batch would cost as much as its samples.

        That is when nodes were last heard of, their clocks, and how long signs have been seen.
        """
        self._liveness.write(session)
        self._signs.write_moved(session)
        self._defers = False
        self._deferred_written_at = time.monotonic()

    def _enter(self, session: Session, batch: ValidatedBatch) -> Registration:
        now = batch.received_at
        ids = self._register.enter(
            session, batch.cluster_id, batch.header, now, lambda: _period(batch)
        )
        self._liveness.hear(ids.node_id, now)
        if batch.sent_at is not None:
            self._liveness.measure(ids.epoch_id, batch.sent_at - now.timestamp())
        return ids

    def _write_states(self, session: Session, registered: Sequence[facts.Registered]) -> None:
        for batch, ids in registered:
            for missing in batch.header.missing:
                self._states.tell(session, int(ids.device_ids[missing.device]), missing)
        self._states.write(session)


def _period(batch: ValidatedBatch) -> tuple[datetime, datetime]:
    """From when to when a batch speaks of its devices: that of its samples, else now."""
    if not len(batch.time):
        return batch.received_at, batch.received_at
    since = facts.instant(int(batch.time.min()) - SAMPLE_PERIOD_SECONDS)
    return since, facts.instant(int(batch.time.max()))
