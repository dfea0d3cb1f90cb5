"""Samples of the simulated cluster as a reader of its batches sees them."""

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from flopwatch.metrics import COLUMNS
from flopwatch.wire import encode_batch
from flopwatch_simulation.cluster import Cluster
from flopwatch_simulation.job import Job

# A Thursday; nothing depends on it.
NOON = 1_773_316_800
HOUR = range(NOON - 3590, NOON + 1, 10)
Row = dict[str, float]


def rows_of(
    cluster: Cluster, times: Sequence[int], nodes: Iterable[int]
) -> dict[tuple[int, int], list[Row]]:
    """All samples of these nodes by (node, place), in order of time."""
    found: dict[tuple[int, int], list[Row]] = defaultdict(list)
    width = len(COLUMNS)
    for node in nodes:
        for stretch in cluster.agent(node).stretches(times):
            batch, values = cluster.agent(node).batch(stretch)
            pairs = zip(batch.samples.device, batch.samples.time, strict=True)
            for index, (device, time) in enumerate(pairs):
                cells = values[index * width : (index + 1) * width]
                row = {"time": time, **dict(zip(COLUMNS, cells, strict=True))}
                found[node, device].append(row)
    return found


def settled(cluster: Cluster, key: str) -> tuple[Job, range]:
    """A job of this character, and intervals that it held from end to end, after its start."""
    for time in range(NOON, NOON + 86_400, 300):
        for truth in cluster.truth(time):
            job = truth.job
            if job.key == key and job.started_at is not None:
                first = (job.started_at // 10 + 2) * 10
                return job, range(first, job.ended_at // 10 * 10 + 1, 10)
    raise AssertionError(f"no {key} in a day")


def means(cluster: Cluster, job: Job, times: Sequence[int], column: str) -> list[float]:
    """The mean of a column for each GPU of a job, in the order of ranks."""
    rows = rows_of(cluster, times, (node for node, _ in job.places))
    return [
        statistics.fmean(row[column] for row in rows[node, ordinal])
        for node, ordinals in job.places
        for ordinal in ordinals
    ]


def reports_of(cluster: Cluster, job: Job, time: int) -> list[Any]:
    """What the hooks of a job say at one time, in the order of nodes and ranks."""
    return [
        entry
        for node, _ in job.places
        for entry in cluster.agent(node).batch([time])[0].reports
        if entry.job_id == job.raw_job_id
    ]


def encoded(cluster: Cluster, node: int, times: Sequence[int]) -> bytes:
    """A batch as it is sent, before it is compressed."""
    return encode_batch(*cluster.agent(node).batch(times))
