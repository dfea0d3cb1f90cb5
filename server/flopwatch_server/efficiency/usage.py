"""How a cluster's GPU time was used over a window: by 10 minutes, and by account."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy.orm import Session

from flopwatch_server.efficiency.models import KNOWN_STATES
from flopwatch_server.efficiency.repository import steps as repository
from flopwatch_server.efficiency.repository.figures import GRACE
from flopwatch_server.efficiency.schemas import AccountHours, StateCounts
from flopwatch_server.telemetry.models import STEP
from flopwatch_server.telemetry.repository import AnyRow

_STEP_SECONDS = STEP.total_seconds()


def last_step_end(now: datetime) -> datetime:
    """The end of the newest 10 minutes of which all samples have had time to arrive."""
    seconds = (now - GRACE).timestamp()
    return datetime.fromtimestamp(seconds // _STEP_SECONDS * _STEP_SECONDS, now.tzinfo)


@dataclass(frozen=True, slots=True)
class Usage:
    """GPU time of one cluster over whole steps of 10 minutes, by the end of the step."""

    times: Sequence[datetime]
    steps: Mapping[datetime, AnyRow]
    by_account: Sequence[AnyRow]

    @classmethod
    def read(cls, session: Session, cluster_id: int, length: timedelta, now: datetime) -> "Usage":
        """Read the window of this length that ends with the last whole step.

        If that step has not been counted yet, which takes some seconds, the one before it.
        """
        end = last_step_end(now)
        if repository.newest(session) == end - 2 * STEP:
            end -= STEP
        window = (session, cluster_id, end - length, end)
        return cls(
            times=[end - length + n * STEP for n in range(1, length // STEP + 1)],
            steps={row.step + STEP: row for row in repository.of_cluster(*window)},
            by_account=repository.of_accounts(*window),
        )

    def history(self, gpus: int, *, told: bool) -> list[StateCounts]:
        """GPUs of each step by state; they add up to `gpus`, the rest being unknown.

        Before the first sample nobody watched: there are no GPUs to speak of. As long as no
        scheduler has `told` who holds what, no GPU is called free.
        """
        first = min((time for time, row in self.steps.items() if row.is_seen), default=None)
        return [
            StateCounts(time=int(time.timestamp()), watched=False)
            if first is None or time < first
            else self._counts(time, gpus, told)
            for time in self.times
        ]

    def history_tensor(self) -> list[float | None]:
        """Mean tensor activity of the GPUs that were held, of each step."""
        rows = (self.steps.get(time) for time in self.times)
        return [None if row is None else row.tensor_active for row in rows]

    def history_power_watts(self) -> list[float | None]:
        """Power of all GPUs that reported, of each step."""
        rows = (self.steps.get(time) for time in self.times)
        return [None if row is None else row.power_watts for row in rows]

    def accounts(self) -> list[AccountHours]:
        """GPU-hours by account, most first."""
        return [
            AccountHours(
                account=row.account, allocated=row.allocated_seconds / 3600, **_known(row, 3600)
            )
            for row in self.by_account
        ]

    def _counts(self, time: datetime, gpus: int, told: bool) -> StateCounts:
        row = self.steps.get(time)
        if row is None:
            return StateCounts(time=int(time.timestamp()), unknown=gpus)
        known = _known(row, _STEP_SECONDS)
        free = row.free_seconds / _STEP_SECONDS if told else 0.0
        reserved = row.reserved_seconds / _STEP_SECONDS
        down = (row.drained_seconds + row.down_seconds) / _STEP_SECONDS
        unknown = max(gpus - sum(known.values()) - free - reserved - down, 0.0)
        return StateCounts(
            time=int(time.timestamp()), active=known["active"], low=known["low"],
            idle=known["idle"], free=free, reserved=reserved, down=down, unknown=unknown,
        )  # fmt: skip


def _known(row: AnyRow, unit_seconds: float) -> dict[str, float]:
    """Time by state, in units of so many seconds."""
    return {state: (getattr(row, f"{state}_seconds") or 0) / unit_seconds for state in KNOWN_STATES}
