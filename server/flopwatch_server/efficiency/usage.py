"""How a cluster's GPU time was used over a window: by 10 minutes, and by account."""

from collections.abc import Iterable, Mapping, Sequence
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

    times: range
    minutes: Sequence[AnyRow]
    allocated_seconds: Mapping[int, float]
    reporting: Mapping[int, AnyRow]
    account_seconds: Mapping[str, float]

    @classmethod
    def read(
        cls, session: Session, cluster_id: int, start: datetime, end: datetime, now: datetime
    ) -> "Usage":
        """Read the window (start, end]; both are whole steps."""
        window = (session, cluster_id, start, end, now)
        return cls(
            times=range(
                int(start.timestamp()) + STEP_SECONDS, int(end.timestamp()) + 1, STEP_SECONDS
            ),
            minutes=repository.held_minutes(*window),
            allocated_seconds=repository.allocated_steps(*window),
            reporting={row.time: row for row in repository.reporting_steps(*window)},
            account_seconds=repository.account_seconds(*window),
        )

    def history(self, gpus: int) -> list[StateCounts]:
        """GPUs of each step by state; they add up to `gpus`, the rest being unknown."""
        return [self._counts(time, gpus) for time in self.times]

    def history_tensor(self) -> list[float | None]:
        """Mean tensor activity of the GPUs that were held, of each step."""
        return [_mean_tensor(self._at(time)) for time in self.times]

    def history_power_watts(self) -> list[float | None]:
        """Power of all GPUs that reported, of each step."""
        rows = (self.reporting.get(time) for time in self.times)
        return [None if row is None else row.power_watts for row in rows]

    def accounts(self) -> list[AccountHours]:
        """GPU-hours by account, most first."""
        hours = [
            AccountHours(
                account=account,
                allocated=seconds / 3600,
                **_sums((row for row in self.minutes if row.account == account), 1 / 60),
            )
            for account, seconds in self.account_seconds.items()
        ]
        return sorted(hours, key=lambda row: (-row.allocated, row.account))

    def _at(self, time: int) -> list[AnyRow]:
        return [row for row in self.minutes if row.time == time]

    def _counts(self, time: int, gpus: int) -> StateCounts:
        known = _sums(self._at(time), 60 / STEP_SECONDS)
        allocated = self.allocated_seconds.get(time, 0.0) / STEP_SECONDS
        reporting = self.reporting.get(time)
        idle_hands = reporting.free / STEP_SECONDS if reporting else 0.0
        free = min(idle_hands, max(gpus - allocated, 0.0))
        unknown = max(gpus - sum(known.values()) - free, 0.0)
        return StateCounts(time=time, **known, free=free, unknown=unknown)


def _sums(rows: Iterable[AnyRow], factor: float) -> dict[str, float]:
    held = list(rows)
    return {state: factor * sum(getattr(row, state) for row in held) for state in KNOWN_STATES}


def _mean_tensor(rows: Sequence[AnyRow]) -> float | None:
    count = sum(row.tensor_minutes for row in rows)
    total: float = sum(row.tensor for row in rows if row.tensor is not None)
    return total / count if count else None
