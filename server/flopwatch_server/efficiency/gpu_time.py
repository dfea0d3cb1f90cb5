"""What became of the time of a cluster's GPUs over a window, whole and by node."""

from collections.abc import Iterable
from datetime import datetime

from sqlalchemy.orm import Session

from flopwatch_server.efficiency.repository import gpu_time as repository
from flopwatch_server.efficiency.repository.gpu_time import STATES
from flopwatch_server.efficiency.schemas import GpuSeconds, GpuTime, NodeTime
from flopwatch_server.fleet.repository.clusters import the_cluster
from flopwatch_server.telemetry.repository import AnyRow


def gpu_time(
    session: Session, cluster: str, start: datetime, end: datetime, now: datetime
) -> GpuTime:
    """GPU-seconds by state within [start, end), as far as that is over; raises NotFound.

    It names nobody and no job: all who may sign in may see it.
    """
    found = the_cluster(session, cluster)
    rows = repository.of_cluster(session, found.id, start, end, now)
    return GpuTime(
        cluster=found.name,
        start=start,
        end=max(start, min(end, now)),
        seconds=_together(rows),
        nodes=[NodeTime(node=row.node, seconds=_together([row])) for row in rows],
    )


def _together(rows: Iterable[AnyRow]) -> GpuSeconds:
    counted = list(rows)
    return GpuSeconds(
        **{state: sum(getattr(row, f"{state}_seconds") for row in counted) for state in STATES}
    )
