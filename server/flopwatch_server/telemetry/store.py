"""Writes a group of batches in one transaction: samples by COPY, all else by SQLAlchemy."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import numpy as np
import psycopg
from sqlalchemy import text
from sqlalchemy.orm import Session

from flopwatch.metrics import COLUMNS, SAMPLE_PERIOD_SECONDS
from flopwatch_server.database.copy import Floats, Integers, copy_rows, timestamps
from flopwatch_server.fleet import repository as fleet
from flopwatch_server.fleet.registration import Register, Registration
from flopwatch_server.telemetry import facts
from flopwatch_server.telemetry.ingest import ValidatedBatch
from flopwatch_server.telemetry.local_runs import write_local_runs
from flopwatch_server.telemetry.repository import happenings

_SAMPLE_COLUMNS = ("device_id", "epoch_id", "ts", *COLUMNS)
_STAGING = "samples_staging"


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
    """Writes batches. Whoever rolls back a transaction it wrote in must call `forget`."""

    def __init__(self) -> None:
        self._register = Register()
        self._states = facts.MetricStates()

    def forget(self) -> None:
        """Remember no ids or states: the transaction they were seen in is gone."""
        self._register.forget()
        self._states.forget()

    def write(self, session: Session, batches: Sequence[ValidatedBatch]) -> list[Outcome]:
        """Write `batches`, whose days must have partitions; the caller commits."""
        registered = [(batch, self._enter(session, batch)) for batch in batches]
        rows = [_rows(batch, ids) for batch, ids in registered]
        accepted = _write_samples(session, rows)
        _mark_dirty(session, rows)
        for batch, ids in registered:
            for missing in batch.header.missing:
                self._states.tell(session, int(ids.device_ids[missing.device]), missing)
            for implausible in batch.implausible:
                device_id = int(ids.device_ids[implausible.device])
                facts.tell_implausible(session, device_id, implausible)
        facts.write_gaps(session, registered)
        facts.write_evidence(session, registered)
        facts.write_reports(session, registered)
        facts.write_host_usage(session, registered)
        write_local_runs(session, registered)
        happenings.write(session, registered)
        _touch(session, registered)
        return [
            Outcome(number, len(batch.time) - number, batch.refused)
            for batch, number in zip(batches, accepted, strict=True)
        ]

    def _enter(self, session: Session, batch: ValidatedBatch) -> Registration:
        since, at = _period(batch)
        return self._register.enter(session, batch.cluster_id, batch.header, since, at)


def _period(batch: ValidatedBatch) -> tuple[datetime, datetime]:
    """From when to when a batch speaks of its devices: that of its samples, else now."""
    if not len(batch.time):
        return batch.received_at, batch.received_at
    since = facts.instant(int(batch.time.min()) - SAMPLE_PERIOD_SECONDS)
    return since, facts.instant(int(batch.time.max()))


def _rows(batch: ValidatedBatch, ids: Registration) -> _Rows:
    epoch_id = np.full(len(batch.time), ids.epoch_id, np.int64)
    return _Rows(ids.device_ids[batch.device], epoch_id, batch.time, batch.values)


def _write_samples(session: Session, rows: Sequence[_Rows]) -> list[int]:
    """How many samples of each part were new.

    All go straight into the keyed table; only if one is there already, which is rare, the group is
    done again part by part, past a table that has no key.
    """
    try:
        with session.begin_nested():
            _joined(rows).copy_to(session, "samples")
    except psycopg.errors.UniqueViolation:
        return [_merge(session, part) for part in rows]
    return [len(part.time) for part in rows]


def _joined(rows: Sequence[_Rows]) -> _Rows:
    return _Rows(
        np.concatenate([part.device_id for part in rows]),
        np.concatenate([part.epoch_id for part in rows]),
        np.concatenate([part.time for part in rows]),
        np.concatenate([part.values for part in rows]),
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


def _mark_dirty(session: Session, rows: Sequence[_Rows]) -> None:
    """Say which device-minutes have new samples. Marks are only ever added here."""
    joined = _joined(rows)
    if not len(joined.time):
        return
    minutes = facts.minute_of(joined.time)
    marks = np.unique(np.stack((joined.device_id, minutes), axis=1), axis=0)
    keys = [marks[:, 0], timestamps(marks[:, 1])]
    nothing = np.empty((len(marks), 0), np.float32)
    copy_rows(session, "dirty_marks", ("device_id", "minute"), keys, nothing)


def _touch(session: Session, registered: Sequence[facts.Registered]) -> None:
    fleet.touch_nodes(session, {ids.node_id: batch.received_at for batch, ids in registered})
    fleet.measure_skews(
        session,
        {
            ids.epoch_id: batch.sent_at - batch.received_at.timestamp()
            for batch, ids in registered
            if batch.sent_at is not None
        },
    )
