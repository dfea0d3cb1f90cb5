"""A stretch of a simulated cluster with all that happens to GPUs, told to a database by the feed,
and the same painted second by second from what the simulation's own ledger says.

The simulation has arrays, requeues, lost nodes and scheduler outages. Added here are drains and
reservations of its nodes, and a node of two GPUs with shards and a double booking.
"""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy.orm import Session

from flopwatch_server.database.engine import Database
from flopwatch_server.efficiency.repository.gpu_time import STATES, by_gpu
from flopwatch_server.fleet.models import Device, Node, Placement
from flopwatch_server.fleet.repository.clusters import ensure_cluster
from flopwatch_server.jobs.feed_endpoints import apply_snapshot
from flopwatch_server.scheduler.feed import parse
from flopwatch_simulation.cluster import Cluster
from flopwatch_simulation.faults import drawn
from flopwatch_simulation.hardware import kind_of, node_name
from flopwatch_simulation.replay import feeds

START = 1_773_273_600  # 2026-03-12 00:00 UTC
HOUR, DAY = 3600, 86_400
NODES = 8
FEED_SECONDS = 320  # a day ends with one, and six minutes without would be an outage
LAB = "lab1"
"""The node that the simulation does not have."""

Gpu = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Booking:
    """A run that holds one GPU of the lab every day, by the second of the day."""

    number: int
    gpu: int
    start: int
    end: int
    shared: bool = False


BOOKINGS = (
    Booking(1, 0, 7 * HOUR + 11, 9 * HOUR + 1, shared=True),
    Booking(2, 0, 8 * HOUR + 7, 10 * HOUR + 3, shared=True),
    Booking(3, 1, 1 * HOUR + 1, 3 * HOUR + 2),
    Booking(4, 1, 2 * HOUR + 5, 4 * HOUR + 9),
)
DRAINS = ((1, 5 * HOUR, 8 * HOUR), (6, 20 * HOUR, 23 * HOUR))
"""Of each day: (node, from, to). The feed tells what is so when it speaks."""

RESERVATIONS = ((2, 12 * HOUR + 17, 18 * HOUR + 3), (1, 6 * HOUR, 10 * HOUR))


@dataclass
class Stretch:
    """So many days of the cluster; `seed` chooses its jobs and what goes wrong."""

    days: int
    seed: int = 5
    cluster: Cluster = field(init=False)

    def __post_init__(self) -> None:
        kinds = ("node lost", "requeue", "scheduler outage")
        faults = drawn(self.seed, NODES, START, self.end, kinds, per_node=self.days / 2)
        self.cluster = Cluster(self.seed, NODES, faults)

    @property
    def end(self) -> int:
        return START + self.days * DAY

    def gpus(self) -> Iterator[Gpu]:
        for node in range(NODES):
            yield from ((node_name(node), place) for place in range(kind_of(node).places))
        yield from ((LAB, 0), (LAB, 1))

    def tell(self, database: Database) -> int:
        """Tell all of it, feed by feed, to a database that knows the GPUs; the cluster's id."""
        with database.session() as session:
            cluster_id = ensure_cluster(session, "granite", instant(START))
            self._place(session, cluster_id)
        told_until = START
        for feed in feeds(self.cluster, START, self.end, FEED_SECONDS):
            now = int(feed.at)
            lines = [*self._changed(feed.lines, now), *self._lab(told_until, now)]
            body = b"\n".join(json.dumps(line).encode() for line in lines)
            snapshot = parse(body, instant(now))
            with database.session() as session:
                apply_snapshot(session, cluster_id, snapshot, instant(now))
            told_until = now
        return cluster_id

    def _place(self, session: Session, cluster_id: int) -> None:
        nodes: dict[str, Node] = {}
        for node, place in self.gpus():
            if node not in nodes:
                nodes[node] = Node(cluster_id=cluster_id, name=node)
                session.add(nodes[node])
            device = Device(
                uuid=f"GPU-{node}-{place}", instance="", profile="", model="NVIDIA H100",
                valid_from=instant(START),
            )  # fmt: skip
            session.add(device)
            session.flush()
            session.add(
                Placement(
                    device_id=device.id, node_id=nodes[node].id, valid_from=instant(START),
                    gres_ordinal=place, ordinal_source="gres.conf",
                )
            )  # fmt: skip

    def _changed(self, lines: list[dict[str, Any]], now: int) -> Iterator[dict[str, Any]]:
        """The simulation's lines, with drains and reservations and without fair share."""
        drained = {node_name(node) for node, start, end in DRAINS if start <= now % DAY < end}
        for line in (line for line in lines if line["kind"] != "share"):
            if line["kind"] == "node" and line["name"] in drained and line["state"] != "DOWN":
                line = line | {"state": f"{line['state']}+DRAIN"}
            yield line
        midnight = now - now % DAY
        for node, start, end in RESERVATIONS:
            if midnight + end > now:
                yield {"kind": "reservation", "name": f"of {node}", "starts_at": midnight + start,
                       "ends_at": midnight + end, "nodes": [node_name(node)]}  # fmt: skip

    def _lab(self, told_until: int, now: int) -> Iterator[dict[str, Any]]:
        yield {"kind": "node", "name": LAB, "state": "MIXED", "gpu_count": 2}
        for booking, start, end in self.booked():
            if start <= now and end > told_until:
                ended = {"ended_at": end} if end <= now else {}
                yield {
                    "kind": "run", "raw_job_id": 10**12 + start * 10 + booking.number,
                    "submitted_at": start - 60, "name": "lab", "user": "ada", "account": "lab",
                    "state": "COMPLETED" if ended else "RUNNING", "started_at": start,
                    "gpus": [{"node": LAB, "count": 1, "ordinals": [booking.gpu],
                              "shared": booking.shared}],
                    **ended,
                }  # fmt: skip

    def booked(self) -> Iterator[tuple[Booking, int, int]]:
        """Every booking of every day, and its times."""
        for day in range(START, self.end, DAY):
            yield from ((each, day + each.start, day + each.end) for each in BOOKINGS)


class Ledger:
    """What each GPU was in each second, painted in the order in which one thing covers another."""

    def __init__(self, stretch: Stretch) -> None:
        self._stretch = stretch
        seconds = stretch.end - START
        self._told = [int(feed.at) for feed in feeds(stretch.cluster, START, stretch.end,
                                                     FEED_SECONDS)]  # fmt: skip
        self._gpus: dict[Gpu, NDArray[np.int8]] = {
            gpu: np.full(seconds, STATES.index("free"), np.int8) for gpu in stretch.gpus()
        }
        self._paint_reservations()
        self._paint_nodes()
        self._paint_outages()
        self._paint_holders()

    def seconds(self) -> dict[str, Counter[str]]:
        """By the UUID of each GPU, the seconds of each state."""
        return {
            f"GPU-{node}-{place}": Counter(
                {state: int(count) for state, count in
                 zip(STATES, np.bincount(states, minlength=len(STATES)), strict=True) if count}
            )
            for (node, place), states in self._gpus.items()
        }  # fmt: skip

    def _paint(self, node: str, place: int | None, start: int, end: int, state: str) -> None:
        first, last = max(start - START, 0), max(end - START, 0)
        for (name, number), states in self._gpus.items():
            if name == node and place in (None, number):
                states[first:last] = STATES.index(state)

    def _paint_reservations(self) -> None:
        for day in range(START, self._stretch.end, DAY):
            for node, start, end in RESERVATIONS:
                self._paint(node_name(node), None, day + start, day + end, "reserved")

    def _paint_nodes(self) -> None:
        """A node is what the last feed said until the next one speaks."""
        for now, until in zip(self._told, [*self._told[1:], self._stretch.end], strict=True):
            for node, start, end in DRAINS:
                if start <= now % DAY < end:
                    self._paint(node_name(node), None, now, until, "drained")
            for node in range(NODES):
                if self._stretch.cluster.faults.down(node, now):
                    self._paint(node_name(node), None, now, until, "down")

    def _paint_outages(self) -> None:
        """Of a stretch without any feed nothing is known but what was held."""
        for now, until in zip(self._told, [*self._told[1:], self._stretch.end], strict=True):
            if until - now > FEED_SECONDS:
                for node in {node for node, _ in self._gpus}:
                    self._paint(node, None, now, until, "unknown")

    def _paint_holders(self) -> None:
        for job in self._stretch.cluster.jobs(START, self._stretch.end):
            if job.started_at is not None:
                for node, ordinals in job.places:
                    for place in ordinals:
                        self._paint(node_name(node), place, job.started_at, job.ended_at,
                                    "allocated")  # fmt: skip
        booked = list(self._stretch.booked())
        for booking, start, end in booked:
            self._paint(LAB, booking.gpu, start, end, "shared" if booking.shared else "allocated")
        for one, start, end in booked:
            for other, other_start, other_end in booked:
                if one.number < other.number and one.gpu == other.gpu and not one.shared:
                    both = max(start, other_start), min(end, other_end)
                    if both[0] < both[1]:
                        self._paint(LAB, one.gpu, *both, "disputed")


def told_seconds(session: Session, stretch: Stretch) -> dict[str, Counter[str]]:
    """What the database says, in the ledger's form."""
    end = instant(stretch.end)
    rows = session.execute(by_gpu(instant(START), end, end)).all()
    found = {}
    for row in rows:
        device = session.get_one(Device, row.device_id)
        states = {state: getattr(row, f"{state}_seconds") for state in STATES}
        found[device.uuid] = Counter({state: n for state, n in states.items() if n})
    return found


def instant(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
