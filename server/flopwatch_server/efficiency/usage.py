"""How a cluster's GPU time was used over a window: by 10 minutes, and by account."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy.orm import Session

from flopwatch_server.efficiency.repository import overview as repository
from flopwatch_server.efficiency.repository.figures import GRACE, KNOWN_STATES
from flopwatch_server.efficiency.schemas import AccountHours, StateCounts
from flopwatch_server.telemetry.repository import AnyRow

STEP_SECONDS = int(repository.STEP.total_seconds())


def last_step_end(now: datetime) -> datetime:
    """The end of the newest 10 minutes of which all samples have had time to arrive."""
    seconds = (now - GRACE).timestamp()
    return datetime.fromtimestamp(seconds // STEP_SECONDS * STEP_SECONDS, now.tzinfo)


@dataclass(frozen=True, slots=True)
class Usage:
    """GPU time of one cluster over whole steps of 10 minutes, by the end of the step."""

    times: Sequence[datetime]
    minutes: Mapping[datetime, Sequence[AnyRow]]
    steps: Mapping[datetime, AnyRow]
    account_seconds: Mapping[str, float]

    @classmethod
    def read(
        cls, session: Session, cluster_id: int, start: datetime, end: datetime, now: datetime
    ) -> "Usage":
        """Read the window (start, end]; both are whole steps."""
        window = (session, cluster_id, start, end, now)
        minutes: dict[datetime, list[AnyRow]] = {}
        for row in repository.held_minutes(*window):
            minutes.setdefault(row.time, []).append(row)
        return cls(
            times=[
                start + n * repository.STEP for n in range(1, (end - start) // repository.STEP + 1)
            ],
            minutes=minutes,
            steps={row.time: row for row in repository.steps(*window)},
            account_seconds=repository.account_seconds(*window),
        )

    def history(self, gpus: int, *, told: bool) -> list[StateCounts]:
        """GPUs of each step by state; they add up to `gpus`, the rest being unknown.

        Before the first sample nobody watched: there are no GPUs to speak of. As long as no
        scheduler has `told` who holds what, no GPU is called free.
        """
        seen = (time for time, row in self.steps.items() if row.seen)
        first = min(seen, default=None)
        return [
            StateCounts(time=int(time.timestamp()), watched=False)
            if first is None or time < first
            else self._counts(time, gpus, told)
            for time in self.times
        ]

    def history_tensor(self) -> list[float | None]:
        """Mean tensor activity of the GPUs that were held, of each step."""
        return [_mean_tensor(self.minutes.get(time, ())) for time in self.times]

    def history_power_watts(self) -> list[float | None]:
        """Power of all GPUs that reported, of each step."""
        rows = (self.steps.get(time) for time in self.times)
        return [None if row is None else row.power_watts for row in rows]

    def accounts(self) -> list[AccountHours]:
        """GPU-hours by account, most first."""
        minutes: dict[str, list[AnyRow]] = {account: [] for account in self.account_seconds}
        for rows in self.minutes.values():
            for row in rows:
                minutes[row.account].append(row)
        hours = [
            AccountHours(
                account=account, allocated=seconds / 3600, **_sums(minutes[account], 1 / 60)
            )
            for account, seconds in self.account_seconds.items()
        ]
        return sorted(hours, key=lambda row: (-row.allocated, row.account))

    def _counts(self, time: datetime, gpus: int, told: bool) -> StateCounts:
        known = _sums(self.minutes.get(time, ()), 60 / STEP_SECONDS)
        step = self.steps.get(time)
        free = 0.0
        if step is not None and told:
            free = min(step.free, max(gpus * STEP_SECONDS - step.allocated, 0.0)) / STEP_SECONDS
        unknown = max(gpus - sum(known.values()) - free, 0.0)
        return StateCounts(
            time=int(time.timestamp()), active=known["active"], low=known["low"],
            idle=known["idle"], free=free, unknown=unknown,
        )  # fmt: skip


def _sums(rows: Sequence[AnyRow], factor: float) -> dict[str, float]:
    return {state: factor * sum(getattr(row, state) for row in rows) for state in KNOWN_STATES}


def _mean_tensor(rows: Sequence[AnyRow]) -> float | None:
    count = sum(row.tensor_minutes for row in rows)
    total: float = sum(row.tensor for row in rows if row.tensor is not None)
    return total / count if count else None
