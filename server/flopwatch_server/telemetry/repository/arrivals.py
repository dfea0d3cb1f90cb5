"""Samples as they come in: into the keyed table, with a mark for what is to be recomputed."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from sqlalchemy import text
from sqlalchemy.orm import Session

from flopwatch.metrics import COLUMNS
from flopwatch_server.database.copy import Floats, Integers, Keys, copy_rows, timestamps
from flopwatch_server.telemetry.ingest import Implausible, clear_implausible
from flopwatch_server.telemetry.repository.facts import Registered, minute_of

_COLUMNS = ("device_id", "epoch_id", "ts", *COLUMNS)
_STAGING = "samples_staging"
_MINUTE_BITS = 28  # minutes since 1970 until the year 2480


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Samples with the ids that they have in the database.

    Of `implausible` values, by device id, none is in `values` any more.
    """

    device_id: Integers
    epoch_id: Integers
    time: Integers
    values: Floats
    implausible: list[Implausible]

    @classmethod
    def of(cls, registered: Sequence[Registered]) -> "Rows":
        """All samples of these batches, in their order."""
        epochs = np.array([ids.epoch_id for _, ids in registered], np.int64)
        device_id = np.concatenate([ids.device_ids[batch.device] for batch, ids in registered])
        time = np.concatenate([batch.time for batch, _ in registered])
        values = np.concatenate([batch.values for batch, _ in registered])
        implausible = clear_implausible(device_id, time, values)
        epoch_id = np.repeat(epochs, [len(batch.time) for batch, _ in registered])
        return cls(device_id, epoch_id, time, values, implausible)

    def copy_to(self, session: Session, table: str = "samples") -> None:
        """Add all; raises UniqueViolation if one is there already."""
        ids = [self.device_id.astype(np.int32), self.epoch_id.astype(np.int32)]
        keys: list[Keys] = [*ids, timestamps(self.time)]
        copy_rows(session, table, _COLUMNS, keys, self.values)

    def merge_into_samples(self, session: Session) -> int:
        """Add those that are not there yet, by way of a table that has no key; their number."""
        session.execute(
            text(f"CREATE TEMP TABLE IF NOT EXISTS {_STAGING} (LIKE samples) ON COMMIT DELETE ROWS")
        )
        self.copy_to(session, _STAGING)
        merged = session.execute(
            text(
                f"WITH merged AS (INSERT INTO samples SELECT * FROM {_STAGING} "
                "ON CONFLICT DO NOTHING RETURNING 1) SELECT count(*) FROM merged"
            )
        ).scalar_one()
        session.execute(text(f"DELETE FROM {_STAGING}"))
        return int(merged)

    def mark_dirty(self, session: Session) -> None:
        """Say which device-minutes have new samples. Marks are only ever added here."""
        if not len(self.time):
            return
        # One integer a mark: to find equal pairs takes many times as long.
        marks = np.unique(self.device_id << _MINUTE_BITS | minute_of(self.time) // 60)
        minute = (marks & (1 << _MINUTE_BITS) - 1) * 60
        nothing = np.empty((len(marks), 0), np.float32)
        keys = [marks >> _MINUTE_BITS, timestamps(minute)]
        copy_rows(session, "dirty_marks", ("device_id", "minute"), keys, nothing)
