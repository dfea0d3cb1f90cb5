"""How well a whole cluster is being used: now, and over the last day.

Now is the newest complete minute. The history is what has been counted of it (`efficiency.rollups`)
and ends with the last 10 minutes that have been.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from sqlalchemy.orm import Session

from flopwatch_server.access.principal import Principal
from flopwatch_server.efficiency.cluster_now import Held, Nodes, Queued, attention, cluster_now
from flopwatch_server.efficiency.quality import newest_sample_at
from flopwatch_server.efficiency.repository import overview as repository
from flopwatch_server.efficiency.schemas import (
    GpuCounts,
    Overview,
    PartitionNow,
    SilentNode,
    SourceStatus,
)
from flopwatch_server.efficiency.usage import Usage
from flopwatch_server.fleet.repository.clusters import the_cluster
from flopwatch_server.scheduler.models import TELL_HOLDINGS


def overview(
    session: Session, principal: Principal, cluster: str, now: datetime, window_hours: int = 24
) -> Overview:
    """A cluster as a whole: figures of all jobs, and rows of those that `principal` may see.

    Raises NotFound for a name that is no cluster.
    """
    found = the_cluster(session, cluster)
    present = cluster_now(session, found.id, now)
    held, nodes, queue = present.held, present.nodes, present.queue
    reporting_jobs = sum(row.reporting for row in queue)
    usage = Usage.read(session, found.id, timedelta(hours=window_hours), now)
    gpus = sum(node.gpus for node in nodes)
    sources = repository.sources(session, found.id)
    told = any(source.last_success_at and source.kind in TELL_HOLDINGS for source in sources)
    return Overview(
        cluster=found.name,
        simulated=found.simulated,
        gpus=gpus,
        allocated=sum(row.gpus for row in held) if told else None,
        free=sum(node.free for node in nodes) if told else None,
        reserved=sum(node.reserved for node in nodes),
        down=sum(node.down for node in nodes),
        gpus_now=_counts(held),
        tensor_active=_mean_tensor(held),
        mfu=sum(row.mfu for row in queue) / reporting_jobs if reporting_jobs else None,
        reporting_jobs=reporting_jobs,
        running_jobs=sum(row.running for row in queue),
        pending_jobs=sum(row.waiting for row in queue),
        power_watts=present.power_watts,
        power_limit_watts=present.power_limit_watts,
        newest_sample_at=newest_sample_at(session, cluster, now),
        history=usage.history(gpus, told=told),
        history_tensor=usage.history_tensor(),
        history_power_watts=usage.history_power_watts(),
        attention=attention(session, principal, present, now),
        accounts=usage.accounts(),
        partitions=_partitions(nodes, held, queue),
        agents_reporting=sum(node.heard for node in nodes),
        agents_silent=[SilentNode(node=name, since=since) for name, since in present.silent],
        sources=[
            SourceStatus(
                kind=source.kind, last_success_at=source.last_success_at, error=source.error,
                error_since=source.error_since,
            )
            for source in sources
        ],
    )  # fmt: skip


def _counts(held: Iterable[Held]) -> GpuCounts:
    counts: Counter[str] = Counter()
    for row in held:
        counts[row.state] += row.gpus
    return GpuCounts(**counts)


def _partitions(
    nodes: Sequence[Nodes], held: Sequence[Held], queue: Sequence[Queued]
) -> list[PartitionNow]:
    """One row a partition. A job that waits for several ("a,b") is queued in each."""
    told = {name for node in nodes for name in node.partitions}
    queued: Counter[str] = Counter()
    for row in queue:
        if row.waiting:
            queued.update(dict.fromkeys(row.partition.split(","), row.waiting))
    names = told | set(queued) | {row.partition for row in held}
    return [_partition(name, nodes, held, queued[name], bool(told)) for name in sorted(names)]


def _partition(
    name: str, nodes: Sequence[Nodes], held: Sequence[Held], queued: int, is_told: bool
) -> PartitionNow:
    inside = [node for node in nodes if name in node.partitions]
    mine = [row for row in held if row.partition == name]
    return PartitionNow(
        partition=name,
        gpus=sum(node.gpus for node in inside) if is_told else None,
        allocated=sum(row.gpus for row in mine),
        idle=sum(row.gpus for row in mine if row.state == "idle"),
        free=sum(node.free for node in inside) if is_told else None,
        queued=queued,
        tensor_active=_mean_tensor(mine),
    )


def _mean_tensor(held: Iterable[Held]) -> float | None:
    """Mean tensor activity of GPUs that are held and not shared, of those that tell it."""
    rows = [row for row in held if row.tensor_gpus]
    gpus = sum(row.tensor_gpus for row in rows)
    return sum(row.tensor or 0.0 for row in rows) / gpus if gpus else None
