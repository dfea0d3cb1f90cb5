"""How well a whole cluster is being used: now, and over the last day."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from statistics import fmean

from sqlalchemy import Row
from sqlalchemy.orm import Session

from flopwatch.gpus import PeakTable
from flopwatch.metrics import SAMPLE_PERIOD_SECONDS
from flopwatch_server.access.principal import Principal
from flopwatch_server.efficiency.listing import job_rows, train_mfus
from flopwatch_server.efficiency.repository import overview as repository
from flopwatch_server.efficiency.schemas import (
    GpuCounts,
    Overview,
    PartitionNow,
    SilentNode,
    SourceStatus,
)
from flopwatch_server.efficiency.usage import Usage, last_step_end
from flopwatch_server.fleet.models import Node
from flopwatch_server.house import NotFound
from flopwatch_server.telemetry import repository as telemetry
from flopwatch_server.telemetry.repository import AnyRow

SILENT_AFTER = timedelta(seconds=3 * SAMPLE_PERIOD_SECONDS)
NEWEST_SAMPLE_LOOK_BACK = timedelta(minutes=2)
"""A device whose newest sample is older than this draws an unknown power now."""

_ATTENTION_ROWS = 10
_OUT_OF_SERVICE = re.compile("DOWN|DRAIN|FAIL")


@dataclass(frozen=True, slots=True)
class NodeGpus:
    """GPUs of one node now. `total` is what the agent sees or the scheduler says, if that is more.

    `down` are those that nobody holds on a node which the scheduler gives to nobody.
    """

    node: Node
    total: int
    allocated: int

    @property
    def down(self) -> int:
        is_down = bool(_OUT_OF_SERVICE.search(self.node.scheduler_state or ""))
        return self.total - self.allocated if is_down else 0

    @property
    def free(self) -> int:
        return self.total - self.allocated - self.down


@dataclass(frozen=True, slots=True)
class _Power:
    """Power of all GPUs whose newest sample tells it, and what their boards may draw."""

    watts: float | None
    limit_watts: float | None
    newest_at: datetime | None

    @classmethod
    def now(cls, session: Session, cluster_id: int, now: datetime) -> "_Power":
        rows = telemetry.newest_power(session, cluster_id, now - NEWEST_SAMPLE_LOOK_BACK, now)
        known = [(watts, limit) for _, _, watts, limit in rows if watts is not None]
        limits = [limit for _, limit in known]
        return cls(
            watts=sum(watts for watts, _ in known) if known else None,
            limit_watts=_sum_if_known(limits),
            newest_at=max((row[1] for row in rows), default=None),
        )


def overview(
    session: Session, principal: Principal, cluster: str, peaks: PeakTable, now: datetime,
    window_hours: int = 24,
) -> Overview:  # fmt: skip
    """A cluster as a whole: figures of all jobs, and rows of those that `principal` may see.

    Raises NotFound for a name that is no cluster.
    """
    found = repository.cluster_by_name(session, cluster)
    if found is None:
        raise NotFound(f"no cluster {cluster}")
    held = _distinct_gpus(repository.gpus_held(session, found.id, now))
    nodes = _nodes(repository.nodes(session, found.id), held)
    runs = repository.live_runs(session, found.id)
    running = [run_id for run_id, _, runs_now in runs if runs_now]
    mfus = [m for m in train_mfus(session, running, peaks, now).values() if m is not None]
    end = last_step_end(now)
    usage = Usage.read(session, found.id, end - timedelta(hours=window_hours), end, now)
    power = _Power.now(session, found.id, now)
    gpus = sum(node.total for node in nodes)
    sources = repository.sources(session, found.id)
    told = any(source.last_success_at is not None for source in sources)
    return Overview(
        cluster=found.name,
        simulated=found.simulated,
        gpus=gpus,
        allocated=len(held) if told else None,
        free=sum(node.free for node in nodes) if told else None,
        down=sum(node.down for node in nodes),
        gpus_now=GpuCounts(**Counter(row.state for row in held)),
        tensor_active=_mean(row.tensor_active for row in held if not row.shared),
        mfu=_mean(mfus),
        reporting_jobs=len(mfus),
        running_jobs=len(running),
        pending_jobs=len(runs) - len(running),
        power_watts=power.watts,
        power_limit_watts=power.limit_watts,
        newest_sample_at=power.newest_at or repository.newest_minute_end(session, found.id),
        history=usage.history(gpus, told=told),
        history_tensor=usage.history_tensor(),
        history_power_watts=usage.history_power_watts(),
        attention=job_rows(
            session, principal, repository.needing_attention(principal, found.id, now),
            "-idle_gpu_hours", 0, _ATTENTION_ROWS, peaks, now,
        ),
        accounts=usage.accounts(),
        partitions=_partitions(nodes, held, runs),
        agents_reporting=sum(_is_reporting(node.node, now) for node in nodes),
        agents_silent=[
            SilentNode(node=node.node.name, since=node.node.last_batch_at)
            for node in nodes
            if node.node.last_batch_at is not None and not _is_reporting(node.node, now)
        ],
        sources=[
            SourceStatus(
                kind=source.kind, last_success_at=source.last_success_at, error=source.error,
                error_since=source.error_since,
            )
            for source in sources
        ],
    )  # fmt: skip


def _distinct_gpus(rows: Iterable[AnyRow]) -> list[AnyRow]:
    """One row a GPU: a card that several jobs share is held once."""
    gpus: dict[tuple[int, int | None, int | None], AnyRow] = {}
    for row in rows:
        holder = row.id if row.gres_ordinal is None else None
        gpus.setdefault((row.node_id, row.gres_ordinal, holder), row)
    return list(gpus.values())


def _nodes(rows: Sequence[Row[Node, int]], held: Iterable[AnyRow]) -> list[NodeGpus]:
    allocated = Counter(row.node_id for row in held)
    return [
        NodeGpus(
            node=node,
            total=max(placed, node.gpu_count or 0, allocated[node.id]),
            allocated=allocated[node.id],
        )
        for node, placed in rows
    ]


def _is_reporting(node: Node, now: datetime) -> bool:
    return node.last_batch_at is not None and now - node.last_batch_at <= SILENT_AFTER


def _partitions(
    nodes: Sequence[NodeGpus], held: Sequence[AnyRow], runs: Sequence[Row[int, str, bool]]
) -> list[PartitionNow]:
    """One row a partition. A job that waits for several ("a,b") is queued in each."""
    told = {name for node in nodes for name in node.node.partitions}
    queued = Counter(
        name for _, partition, runs_now in runs if not runs_now for name in partition.split(",")
    )
    names = told | set(queued) | {row.partition for row in held}
    return [_partition(name, nodes, held, queued[name], bool(told)) for name in sorted(names)]


def _partition(
    name: str, nodes: Sequence[NodeGpus], held: Sequence[AnyRow], queued: int, is_told: bool
) -> PartitionNow:
    inside = [node for node in nodes if name in node.node.partitions]
    mine = [row for row in held if row.partition == name]
    return PartitionNow(
        partition=name,
        gpus=sum(node.total for node in inside) if is_told else None,
        allocated=len(mine),
        idle=sum(row.state == "idle" for row in mine),
        free=sum(node.free for node in inside) if is_told else None,
        queued=queued,
        tensor_active=_mean(row.tensor_active for row in mine if not row.shared),
    )


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _sum_if_known(values: Sequence[float | None]) -> float | None:
    """The sum, or None if there is nothing to add or one part is not known."""
    known = [value for value in values if value is not None]
    return sum(known) if known and len(known) == len(values) else None
