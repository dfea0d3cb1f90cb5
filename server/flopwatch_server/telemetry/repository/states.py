"""Why metrics of devices have no value, over time."""

from typing import Any

from sqlalchemy import Insert, Update, bindparam, exists, func, or_, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from flopwatch import wire
from flopwatch_server.telemetry.ingest import Implausible
from flopwatch_server.telemetry.models import MetricState
from flopwatch_server.telemetry.repository.facts import instant

_COLUMNS = ("device_id", "metric", "valid_from", "valid_to", "reason")


class MetricStates:
    """What agents say of metrics, gathered to be written at once: a new node tells of a hundred.

    Remembers the last word on each metric, since agents repeat themselves. `forget` it when a
    transaction is rolled back.
    """

    def __init__(self) -> None:
        self._last: dict[tuple[int, str], tuple[float, str | None]] = {}
        self._told: set[tuple[int, str]] = set()
        self._ends: list[dict[str, Any]] = []
        self._stretches: list[dict[str, Any]] = []

    def forget(self) -> None:
        """Remember nothing."""
        self._last.clear()
        self._clear()

    def tell(self, session: Session, device_id: int, entry: wire.Missing) -> None:
        """`entry.metric` has no value since `entry.since`, or with no reason has one again."""
        key = device_id, entry.metric
        if key in self._told:  # the end of one stretch and the begin of the next, in their order
            self.write(session)
        since, reason = self._last.get(key, (entry.since, None))
        if entry.since < since:  # older than what is known: a piece of the past
            if entry.reason is not None:
                self._add(key, entry.reason, entry.since, since)
        elif key not in self._last or entry.reason != reason:
            self._ends.append(
                {"id": device_id, "of": entry.metric, "at": instant(entry.since),
                 "not_for": entry.reason or ""}
            )  # fmt: skip
            if entry.reason is not None:
                self._add(key, entry.reason, entry.since, None)
            self._last[key] = entry.since, entry.reason
        self._told.add(key)

    def write(self, session: Session) -> None:
        """Write what was told since the last time."""
        if self._ends:
            session.connection().execute(_END, self._ends)
        if self._stretches:
            session.connection().execute(_ADD, self._stretches)
        self._clear()

    def _add(self, key: tuple[int, str], reason: str, start: float, end: float | None) -> None:
        until = None if end is None else instant(end)
        row = dict(zip(_COLUMNS, (*key, instant(start), until, reason), strict=True))
        self._stretches.append(row)

    def _clear(self) -> None:
        self._told, self._ends, self._stretches = set(), [], []


def _end_open() -> Update:
    """End what was open `at` a time, unless it is for the same reason."""
    return (
        update(MetricState)
        .where(
            MetricState.device_id == bindparam("id"),
            MetricState.metric == bindparam("of"),
            MetricState.valid_to.is_(None),
            MetricState.valid_from < bindparam("at"),
            MetricState.reason != bindparam("not_for"),
        )
        .values(valid_to=bindparam("at"))
    )


def _add_stretch() -> Insert:
    """Add [valid_from, valid_to); one that is open only where no other is."""
    told = {name: bindparam(name, type_=MetricState.__table__.c[name].type) for name in _COLUMNS}
    open_already = exists().where(
        MetricState.device_id == told["device_id"],
        MetricState.metric == told["metric"],
        MetricState.valid_to.is_(None),
    )
    row = select(*told.values()).where(or_(told["valid_to"].is_not(None), ~open_already))
    return insert(MetricState).from_select(list(_COLUMNS), row).on_conflict_do_nothing()


_END = _end_open()
_ADD = _add_stretch()


def tell_implausible(session: Session, entry: Implausible) -> None:
    """Record that values of a device, told by its id, were implausible over (start, end].

    It becomes one stretch with what it joins.
    """
    start, end = instant(entry.start), instant(entry.end)
    joined = session.execute(
        update(MetricState)
        .where(
            MetricState.device_id == entry.device,
            MetricState.metric == entry.metric,
            MetricState.reason == "implausible",
            MetricState.valid_from < start,
            MetricState.valid_to.between(start, end),
        )
        .values(valid_to=end)
        .returning(MetricState.valid_from)
        .execution_options(synchronize_session=False)
    ).first()
    if joined is None:
        statement = insert(MetricState).values(
            device_id=entry.device, metric=entry.metric, valid_from=start, valid_to=end,
            reason="implausible",
        )  # fmt: skip
        session.execute(
            statement.on_conflict_do_update(
                index_elements=["device_id", "metric", "valid_from"],
                set_={"valid_to": func.greatest(MetricState.valid_to, end)},
                where=MetricState.reason == "implausible",
            )
        )
