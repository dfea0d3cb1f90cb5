"""Signs of who holds a GPU, as agents see them."""

from collections.abc import Iterable
from datetime import datetime

from sqlalchemy import BigInteger, bindparam, func, update
from sqlalchemy.dialects.postgresql import ARRAY, insert
from sqlalchemy.orm import Session

from flopwatch import wire
from flopwatch_server.database.base import UtcDateTime
from flopwatch_server.fleet.registration import Registration
from flopwatch_server.jobs.models import Evidence
from flopwatch_server.telemetry.repository.facts import Registered, Row, instant

_KEY = ("node_id", "kind", "raw_job_id", "device_id", "pid", "ordinals", "first_seen_at")
_Key = tuple[object, ...]


class Signs:
    """Writes evidence: a new sign at once, the last time of one that is seen again a little later.

    An agent tells of every process with every post, so most signs only move their last time. That
    is gathered for all nodes until `write_moved`. What was made or moved is forgotten with `forget`
    or `keep`, when the transaction is gone or durable.
    """

    def __init__(self) -> None:
        self._ids: dict[int, dict[_Key, int]] = {}  # by node: the signs of its last batch
        self._moved: dict[int, datetime] = {}
        self._is_written = False

    def write(self, session: Session, registered: Iterable[Registered]) -> None:
        """Make the signs that are new, and note how far the others moved."""
        new: dict[_Key, Row] = {}
        seen: dict[int, dict[_Key, datetime]] = {}
        for batch, ids in registered:
            last_times = seen.setdefault(ids.node_id, {})
            for sign in batch.header.evidence:
                row = _row(sign, ids)
                key = tuple(row[name] for name in _KEY)
                last_times[key] = max(row["last_seen_at"], last_times.get(key, row["last_seen_at"]))
                if key not in self._ids.get(ids.node_id, {}):
                    new[key] = row | {"last_seen_at": last_times[key]}
        made = _insert(session, list(new.values()))
        for node_id, last_times in seen.items():
            known = self._ids.get(node_id, {}) | made
            self._ids[node_id] = {key: known[key] for key in last_times}
            self._move({known[key]: time for key, time in last_times.items() if key not in made})

    def _move(self, last_times: dict[int, datetime]) -> None:
        for id_, time in last_times.items():
            self._moved[id_] = max(time, self._moved.get(id_, time))

    def write_moved(self, session: Session) -> None:
        """Write how far signs have moved."""
        ids = sorted(self._moved)
        times = [self._moved[id_] for id_ in ids]
        session.connection().execute(_MOVE, {"ids": ids, "times": times})
        self._is_written = True

    def keep(self) -> None:
        """The transaction is durable."""
        if self._is_written:
            self._moved = {}
        self._is_written = False

    def forget(self) -> None:
        """The transaction is gone, with the signs it made."""
        self._ids = {}
        self._is_written = False


def _row(sign: wire.Evidence, ids: Registration) -> Row:
    return {
        "node_id": ids.node_id,
        "kind": sign.kind,
        "raw_job_id": sign.job_id,
        "device_id": None if sign.device is None else int(ids.device_ids[sign.device]),
        "ordinals": None if sign.ordinals is None else ",".join(map(str, sign.ordinals)),
        "pid": sign.pid,
        "uid": sign.uid,
        "first_seen_at": instant(sign.first_seen),
        "last_seen_at": instant(sign.last_seen),
    }


def _insert(session: Session, rows: list[Row]) -> dict[_Key, int]:
    """Make these signs, or move those that are there already; ids by key."""
    if not rows:
        return {}
    made = session.execute(_INSERT, rows)
    return {tuple(key): id_ for id_, *key in made}


_new = insert(Evidence)
_INSERT = _new.on_conflict_do_update(
    index_elements=_KEY,
    set_={"last_seen_at": func.greatest(Evidence.last_seen_at, _new.excluded.last_seen_at)},
).returning(Evidence.id, *(Evidence.__table__.c[name] for name in _KEY))
_told = (
    func.unnest(
        bindparam("ids", type_=ARRAY(BigInteger)), bindparam("times", type_=ARRAY(UtcDateTime))
    )
    .table_valued("id", "time", name="told")
    .render_derived()
)
_MOVE = (
    update(Evidence)
    .where(Evidence.id == _told.c.id)
    .values(last_seen_at=func.greatest(Evidence.last_seen_at, _told.c.time))
)
