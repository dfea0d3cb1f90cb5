"""What a whole cluster does now, found once every few seconds for all who look at it.

A periodic task finds it and keeps it as one row. A row that is older than `KEPT` is not believed,
since nobody seems to work any more: it is found then and there, as it is before the first.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec
from sqlalchemy.orm import Session

from flopwatch.metrics import SAMPLE_PERIOD_SECONDS
from flopwatch_server.access.principal import Principal
from flopwatch_server.access.visibility import ALL_STAFF, same_sight
from flopwatch_server.efficiency.listing import job_rows
from flopwatch_server.efficiency.repository import cluster_now as kept
from flopwatch_server.efficiency.repository import overview as repository
from flopwatch_server.efficiency.schemas import JobRow
from flopwatch_server.fleet.repository.clusters import every_cluster
from flopwatch_server.house import House

KEEP_PERIOD_SECONDS = 5
KEPT = timedelta(seconds=3 * KEEP_PERIOD_SECONDS)
SILENT_AFTER = timedelta(seconds=3 * SAMPLE_PERIOD_SECONDS)

_IN_NEED = ("idle", "low")
_ATTENTION_ROWS = 10


class Held(msgspec.Struct):
    """GPUs that jobs of one partition hold in one state.

    `tensor` is the sum of the tensor activity of the `tensor_gpus` that tell theirs and are not
    shared. A GPU that several jobs share is held once.
    """

    partition: str
    state: str
    gpus: int
    tensor: float | None
    tensor_gpus: int


class Nodes(msgspec.Struct):
    """GPUs of the nodes that are in the same partitions, and how many of the nodes are `heard`."""

    partitions: list[str]
    gpus: int
    free: int
    down: int
    heard: int
    reserved: int = 0  # a row that an older version kept has none


class Queued(msgspec.Struct):
    """GPU jobs of one partition, or several ("a,b"), and the sum of the MFU of those that report.

    Of those that run, `reporting` report.
    """

    partition: str
    running: int
    waiting: int
    mfu: float
    reporting: int


class ClusterNow(msgspec.Struct):
    """A cluster in its newest complete minute.

    Power is that of the GPUs that tell it, their limit None if that of one of them is not known.
    `in_need` are ids of the runs with idle or low GPUs, `staff_attention` rows of those that staff
    see first (`JobRow`). `silent` are nodes that have been heard, but not lately: name, and when
    they were.
    """

    power_watts: float | None
    power_limit_watts: float | None
    held: list[Held]
    in_need: list[int]
    staff_attention: list[dict[str, Any]]
    nodes: list[Nodes]
    silent: list[tuple[str, datetime]]
    queue: list[Queued]


def cluster_now(session: Session, cluster_id: int, now: datetime) -> ClusterNow:
    """The cluster as it was found last, `KEPT` ago at most."""
    figures = kept.read(session, cluster_id, not_before=now - KEPT)
    if figures is None:
        return _find(session, cluster_id, now)
    return msgspec.convert(figures, ClusterNow)


def attention(
    session: Session, principal: Principal, found: ClusterNow, now: datetime
) -> list[JobRow]:
    """The runs with idle or low GPUs that `principal` may see, most idle GPU-hours first."""
    if same_sight(principal) == ALL_STAFF:
        return [JobRow.model_validate(row) for row in found.staff_attention]
    return _attention(session, principal, found.in_need, now)


def keep_clusters(house: House) -> None:
    """Find what every cluster does, for all who ask meanwhile."""
    with house.database.session() as session:
        clusters = [cluster.id for cluster in every_cluster(session)]
    for cluster_id in clusters:
        with house.database.session() as session:
            keep(session, cluster_id, house.clock())


def keep(session: Session, cluster_id: int, now: datetime) -> None:
    """Find what a cluster does now, for all who ask until `KEPT` later."""
    kept.write(session, cluster_id, now, msgspec.to_builtins(_find(session, cluster_id, now)))


def _find(session: Session, cluster_id: int, now: datetime) -> ClusterNow:
    power, held = repository.gpus_now(session, cluster_id, now)
    heard = now - SILENT_AFTER
    nodes = repository.nodes(session, cluster_id, now, heard)
    queue = repository.queue(session, cluster_id)
    in_need = sorted({run for row in held if row.state in _IN_NEED for run in row.run_ids})
    first = _attention(session, ALL_STAFF, in_need, now)
    return ClusterNow(
        power_watts=power.watts,
        power_limit_watts=power.limit_watts,
        held=msgspec.convert(held, list[Held], from_attributes=True),
        in_need=in_need,
        staff_attention=[row.model_dump(mode="json") for row in first],
        nodes=msgspec.convert(nodes, list[Nodes], from_attributes=True),
        silent=[(name, at) for name, at in repository.silent_nodes(session, cluster_id, heard)],
        queue=msgspec.convert(queue, list[Queued], from_attributes=True),
    )


def _attention(
    session: Session, principal: Principal, in_need: Sequence[int], now: datetime
) -> list[JobRow]:
    seen = repository.seen(in_need, principal)
    return job_rows(session, principal, seen, "-idle_gpu_hours", 0, _ATTENTION_ROWS, now)
