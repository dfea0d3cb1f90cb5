"""What clusters do now, as it was found last."""

from collections.abc import Mapping
from datetime import datetime
from functools import cache
from typing import Any

from sqlalchemy import Select, bindparam, select
from sqlalchemy.dialects.postgresql import Insert, insert
from sqlalchemy.orm import Session

from flopwatch_server.database.base import UtcDateTime
from flopwatch_server.efficiency.models import cluster_now


def read(session: Session, cluster_id: int, not_before: datetime) -> Mapping[str, Any] | None:
    """The figures of a cluster; None if they were found before `not_before`, or never."""
    figures: Mapping[str, Any] | None = session.scalar(
        _read(), {"cluster_id": cluster_id, "not_before": not_before}
    )
    return figures


@cache
def _read() -> Select[Any]:
    return select(cluster_now.c.figures).where(
        cluster_now.c.cluster_id == bindparam("cluster_id"),
        cluster_now.c.made_at >= bindparam("not_before", type_=UtcDateTime),
    )


def write(session: Session, cluster_id: int, made_at: datetime, figures: Mapping[str, Any]) -> None:
    """Set the figures of a cluster."""
    row = {"cluster_id": cluster_id, "made_at": made_at, "figures": figures}
    session.execute(_write(), row)


@cache
def _write() -> Insert:
    written = insert(cluster_now)
    new = {name: written.excluded[name] for name in ("made_at", "figures")}
    return written.on_conflict_do_update(index_elements=["cluster_id"], set_=new)
