"""Writes a group of batches in one transaction: samples by COPY, all else by SQLAlchemy."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import numpy as np
from sqlalchemy import text
from sqlalchemy.orm import Session

from flopwatch.metrics import COLUMNS, SAMPLE_PERIOD_SECONDS
from flopwatch_server.database.copy import Floats, Integers, copy_rows, timestamps
from flopwatch_server.fleet.liveness import Liveness
from flopwatch_server.fleet.registration import Register, Registration
from flopwatch_server.telemetry import facts
from flopwatch_server.telemetry.ingest import ValidatedBatch
from flopwatch_server.telemetry.local_runs import write_local_runs
from flopwatch_server.telemetry.repository import happenings

_SAMPLE_COLUMNS = ("device_id", "epoch_id", "ts", *COLUMNS)
_STAGING = "samples_staging"
_MINUTE_BITS = 28  # minutes since 1970 until the year 2480


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one batch's samples."""

    accepted: int
    duplicates: int
    refused: int


@dataclass(frozen=True, slots=True, eq=False)
class _Rows:
    """Samples with the ids that they have in the database."""

    device_id: Integers
    epoch_id: Integers
    time: Integers
    values: Floats

    def copy_to(self, session: Session, table: str) -> None:
        keys = [self.device_id, self.epoch_id, timestamps(self.time)]
        copy_rows(session, table, _SAMPLE_COLUMNS, keys, self.values)


class Store:
    """Writes batches. Whoever commits or rolls back must call `keep` or `forget`."""

    def __init__(self) -> None:
        self._register = Register()
        self._states = facts.MetricStates()
        self._liveness = Liveness()

    def keep(self) -> None:
        """The transaction that was written in is durable."""
        self._register.keep()
        self._liveness.keep()

    def forget(self) -> None:
        """The transaction that was written in is gone, with the ids and states it made."""
        self._register.forget()
        self._states.forget()
        self._liveness.forget()

    def write(
        self, session: Session, batches: Sequence[ValidatedBatch], some_known: bool = False
    ) -> list[Outcome]:
        """Write `batches`, whose days must have partitions.

        Unless `some_known`, all samples go straight into the keyed table, and UniqueViolation says
        that one is there already; else they take a longer way that passes such samples over.
        """
        registered = [(batch, self._enter(session, batch)) for batch in batches]
        rows = _rows(registered)
        if some_known:
            accepted = [_merge(session, _rows([one])) for one in registered]
        else:
            rows.copy_to(session, "samples")
            accepted = [len(batch.time) for batch in batches]
        _mark_dirty(session, rows)
        self._write_states(session, registered)
        facts.write_gaps(session, registered)
        facts.write_evidence(session, registered)
        facts.write_reports(session, registered)
        facts.write_host_usage(session, registered)
        write_local_runs(session, registered)
        happenings.write(session, registered)
        self.write_signs_of_life(session)
        return [
            Outcome(number, len(batch.time) - number, batch.refused)
            for batch, number in zip(batches, accepted, strict=True)
        ]

    def has_signs_of_life(self) -> bool:
        """Whether it is time for `write_signs_of_life`, which `write` does by itself."""
        return self._liveness.is_due()

    def write_signs_of_life(self, session: Session) -> None:
        """Write when nodes were last heard of, if that is due."""
        if self._liveness.is_due():
            self._liveness.write(session)

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
            for implausible in batch.implausible:
                device_id = int(ids.device_ids[implausible.device])
                facts.tell_implausible(session, device_id, implausible)


def _period(batch: ValidatedBatch) -> tuple[datetime, datetime]:
    """From when to when a batch speaks of its devices: that of its samples, else now."""
    if not len(batch.time):
        return batch.received_at, batch.received_at
    since = facts.instant(int(batch.time.min()) - SAMPLE_PERIOD_SECONDS)
    return since, facts.instant(int(batch.time.max()))


def _rows(registered: Sequence[facts.Registered]) -> _Rows:
    return _Rows(
        np.concatenate([ids.device_ids[batch.device] for batch, ids in registered]),
        np.repeat(
            np.array([ids.epoch_id for _, ids in registered], np.int64),
            [len(batch.time) for batch, _ in registered],
        ),
        np.concatenate([batch.time for batch, _ in registered]),
        np.concatenate([batch.values for batch, _ in registered]),
    )


def _merge(session: Session, part: _Rows) -> int:
    """Add the samples that are not there yet; their number."""
    session.execute(
        text(f"CREATE TEMP TABLE IF NOT EXISTS {_STAGING} (LIKE samples) ON COMMIT DELETE ROWS")
    )
    part.copy_to(session, _STAGING)
    merged = session.execute(
        text(
            f"WITH merged AS (INSERT INTO samples SELECT * FROM {_STAGING} "
            "ON CONFLICT DO NOTHING RETURNING 1) SELECT count(*) FROM merged"
        )
    ).scalar_one()
    session.execute(text(f"DELETE FROM {_STAGING}"))
    return int(merged)


def _mark_dirty(session: Session, rows: _Rows) -> None:
    """Say which device-minutes have new samples. Marks are only ever added here."""
    if not len(rows.time):
        return
    # One integer a mark: to find equal pairs takes many times as long.
    marks = np.unique(rows.device_id << _MINUTE_BITS | facts.minute_of(rows.time) // 60)
    minute = (marks & (1 << _MINUTE_BITS) - 1) * 60
    nothing = np.empty((len(marks), 0), np.float32)
    keys = [marks >> _MINUTE_BITS, timestamps(minute)]
    copy_rows(session, "dirty_marks", ("device_id", "minute"), keys, nothing)
