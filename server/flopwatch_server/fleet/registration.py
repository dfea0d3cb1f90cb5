"""Agents introduce their node, their devices and themselves: from names to ids."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import numpy as np
from numpy.typing import NDArray
from sqlalchemy.orm import Session

from flopwatch import wire
from flopwatch_server.fleet.repository import agents

log = logging.getLogger(__name__)

HANDOVER = timedelta(minutes=2)
"""A node that told of a device this short a while ago still holds it, whatever another one says."""

_EPOCHS_REMEMBERED = 16
_NodeKey = tuple[int, str]  # cluster id and the agent's name for its node


@dataclass(frozen=True, slots=True, eq=False)
class Registration:
    """Ids of one batch's node, agent life and devices, the latter by the batch's own index."""

    node_id: int
    epoch_id: int
    device_ids: NDArray[np.int64]


@dataclass(slots=True)
class _KnownNode:
    node_id: int
    aliases: list[str]
    heard_at: datetime
    devices: list[wire.Device] | None = None
    device_ids: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    epochs: dict[tuple[str, int], int] = field(default_factory=dict)
    place_again_at: datetime | None = None  # it told of a device that another node holds


class Register:
    """Remembers what is in the database, so that a post of a known node costs no query.

    Whoever commits or rolls back must call `keep` or `forget`: ids that were made in a transaction
    that is rolled back do not exist.
    """

    def __init__(self) -> None:
        self._nodes: dict[_NodeKey, _KnownNode] = {}
        self._holders: dict[int, _NodeKey] = {}  # device id to the node that it was placed in
        self._entered: set[_NodeKey] = set()

    def keep(self) -> None:
        """All that was entered is durable."""
        self._entered.clear()

    def forget(self) -> None:
        """All that was entered since the last `keep` is looked up again."""
        for key in self._entered:
            self._nodes.pop(key, None)
        self._entered.clear()

    def find(self, cluster_id: int, batch: wire.Batch, now: datetime) -> Registration | None:
        """The ids, if `batch` tells nothing new; `now` is when it came, by the server's clock."""
        node = self._nodes.get((cluster_id, batch.node))
        if node is None or node.aliases != batch.aliases or node.devices != batch.devices:
            return None
        epoch_id = node.epochs.get((batch.epoch.boot_id, batch.epoch.number))
        if epoch_id is None or (node.place_again_at is not None and node.place_again_at <= now):
            return None
        node.heard_at = now
        return Registration(node.node_id, epoch_id, node.device_ids)

    def enter(
        self,
        session: Session,
        cluster_id: int,
        batch: wire.Batch,
        now: datetime,
        period: Callable[[], tuple[datetime, datetime]],
    ) -> Registration:
        """Bring the fleet up to what `batch` tells; `period` is from when to when its data is."""
        found = self.find(cluster_id, batch, now)
        if found is not None:
            return found
        key = cluster_id, batch.node
        self._entered.add(key)
        node = self._nodes.get(key)
        if node is None or node.aliases != batch.aliases:
            node_id = agents.agent_node(session, cluster_id, batch.node, batch.aliases)
            node = self._nodes[key] = _KnownNode(node_id, batch.aliases, now)
        node.heard_at = now
        self._place(session, key, batch.devices, period())
        epoch_id = self._epoch(session, node, batch.epoch)
        return Registration(node.node_id, epoch_id, node.device_ids)

    def _place(
        self,
        session: Session,
        key: _NodeKey,
        devices: list[wire.Device],
        period: tuple[datetime, datetime],
    ) -> None:
        """Say which devices are in a node, save those that another one holds."""
        node = self._nodes[key]
        since, at = period
        ids = agents.devices(session, devices, since)
        told = dict(zip(ids, devices, strict=True))
        own = {id_: told[id_] for id_ in ids if not self._is_held(id_, key, node.heard_at)}
        agents.describe(session, own)
        if agents.place(session, node.node_id, own, since, at):
            for other in self._nodes.values():  # the device's last node must tell anew
                other.devices = None
        self._holders |= dict.fromkeys(own, key)
        node.devices, node.device_ids = devices, np.array(ids, np.int64)
        node.place_again_at = None
        if len(own) < len(told):
            log.warning("node %s tells of devices that another node holds", key[1])
            node.place_again_at = node.heard_at + HANDOVER

    def _is_held(self, device_id: int, key: _NodeKey, now: datetime) -> bool:
        """Whether another node than `key` told of the device with its last word, a moment ago."""
        holder = self._holders.get(device_id, key)
        other = self._nodes.get(holder)
        if holder == key or other is None or now - other.heard_at >= HANDOVER:
            return False
        return device_id in other.device_ids

    def _epoch(self, session: Session, node: _KnownNode, epoch: wire.Epoch) -> int:
        key = epoch.boot_id, epoch.number
        if key not in node.epochs:
            if len(node.epochs) >= _EPOCHS_REMEMBERED:
                node.epochs.clear()
            node.epochs[key] = agents.agent_epoch(session, node.node_id, epoch)
        return node.epochs[key]
