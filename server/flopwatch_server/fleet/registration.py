"""Agents introduce their node, their devices and themselves: from names to ids."""

from dataclasses import dataclass, field
from datetime import datetime

import numpy as np
from numpy.typing import NDArray
from sqlalchemy.orm import Session

from flopwatch import wire
from flopwatch_server.fleet import repository

_EPOCHS_REMEMBERED = 16


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
    devices: list[wire.Device] | None = None
    device_ids: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    epochs: dict[tuple[str, int], int] = field(default_factory=dict)


class Register:
    """Remembers what is in the database, so that a post of a known node costs no query.

    Whoever rolls a transaction back must call `forget`: ids that were made in it do not exist.
    """

    def __init__(self) -> None:
        self._nodes: dict[tuple[int, str], _KnownNode] = {}

    def forget(self) -> None:
        """Remember nothing: everything is looked up again."""
        self._nodes.clear()

    def enter(
        self, session: Session, cluster_id: int, batch: wire.Batch, since: datetime, at: datetime
    ) -> Registration:
        """Bring the fleet up to what `batch` tells; its data begins at `since` and ends at `at`."""
        node = self._nodes.get((cluster_id, batch.node))
        if node is None or node.aliases != batch.aliases:
            node_id = repository.agent_node(session, cluster_id, batch.node, batch.aliases)
            node = self._nodes[cluster_id, batch.node] = _KnownNode(node_id, batch.aliases)
        epoch_id = self._epoch(session, node, batch.epoch)
        if node.devices != batch.devices:
            ids = repository.devices(session, batch.devices, since)
            told = dict(zip(ids, batch.devices, strict=True))
            if repository.place(session, node.node_id, told, since, at):
                for other in self._nodes.values():  # the device's last node must tell anew
                    other.devices = None
            node.devices = batch.devices
            node.device_ids = np.array(ids, np.int64)
        return Registration(node.node_id, epoch_id, node.device_ids)

    def _epoch(self, session: Session, node: _KnownNode, epoch: wire.Epoch) -> int:
        key = epoch.boot_id, epoch.number
        if key not in node.epochs:
            if len(node.epochs) >= _EPOCHS_REMEMBERED:
                node.epochs.clear()
            node.epochs[key] = repository.agent_epoch(session, node.node_id, epoch)
        return node.epochs[key]
