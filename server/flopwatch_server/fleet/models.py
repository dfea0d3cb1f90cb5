"""Clusters, nodes, devices, where devices sit, and the lives of agents."""

from datetime import datetime

from sqlalchemy import ForeignKey, Index, UniqueConstraint, text
from sqlalchemy.dialects.postgresql import ARRAY, JSONB
from sqlalchemy.orm import Mapped, mapped_column
from sqlalchemy.types import Float, Text

from flopwatch_server.database.base import Base, Key


class Cluster(Base):
    """One scheduler's realm. `simulated` puts a label on every page that shows it."""

    __tablename__ = "clusters"
    id: Mapped[Key]
    name: Mapped[str] = mapped_column(unique=True)
    simulated: Mapped[bool]
    created_at: Mapped[datetime]


class Node(Base):
    """A host, named by its agent's own configuration or by the scheduler, with aliases.

    `scheduler_state` is the scheduler's word for it now, None where no scheduler told.
    """

    __tablename__ = "nodes"
    __table_args__ = (UniqueConstraint("cluster_id", "name"),)
    id: Mapped[Key]
    cluster_id: Mapped[int] = mapped_column(ForeignKey("clusters.id"))
    name: Mapped[str]
    aliases: Mapped[list[str]] = mapped_column(ARRAY(Text), server_default=text("'{}'"))
    scheduler_state: Mapped[str | None]
    scheduler_reason: Mapped[str | None]
    gpu_count: Mapped[int | None]
    partitions: Mapped[list[str]] = mapped_column(ARRAY(Text), server_default=text("'{}'"))
    last_batch_at: Mapped[datetime | None]


class Device(Base):
    """A GPU or a MIG instance: (uuid, instance, profile, valid from). A re-split makes a new one.

    `model` is the driver's name; peaks are looked up by it. Instance and profile are empty for a
    whole GPU.
    """

    __tablename__ = "devices"
    __table_args__ = (
        UniqueConstraint("uuid", "instance", "profile", "valid_from"),
        Index("ix_devices_current", "uuid", "instance", "profile",
              unique=True, postgresql_where=text("valid_to IS NULL")),
    )  # fmt: skip
    id: Mapped[Key]
    uuid: Mapped[str]
    instance: Mapped[str]
    profile: Mapped[str]
    valid_from: Mapped[datetime]
    valid_to: Mapped[datetime | None]
    model: Mapped[str]
    memory_mib: Mapped[float | None] = mapped_column(Float)
    power_limit_watts: Mapped[float | None] = mapped_column(Float)


class Placement(Base):
    """A device sat in this node, as this minor, over [valid_from, valid_to).

    `gres_ordinal` is its position in the node's GRES list; `ordinal_source` says how that is known:
    "gres.conf", which the agent read, or "minor order", assumed where no agent tells.
    """

    __tablename__ = "placements"
    __table_args__ = (
        Index("ix_placements_node", "node_id", postgresql_where=text("valid_to IS NULL")),
    )
    device_id: Mapped[int] = mapped_column(ForeignKey("devices.id"), primary_key=True)
    valid_from: Mapped[datetime] = mapped_column(primary_key=True)
    valid_to: Mapped[datetime | None]
    node_id: Mapped[int] = mapped_column(ForeignKey("nodes.id"))
    minor: Mapped[int | None]
    pci_bus_id: Mapped[str | None]
    gres_ordinal: Mapped[int | None]
    ordinal_source: Mapped[str | None]


class AgentEpoch(Base):
    """One life of one agent. `clock_skew_seconds` is agent minus server, as last measured.

    `capabilities` are what it can see on its node, as it told last (`flopwatch.wire.Batch`).
    """

    __tablename__ = "agent_epochs"
    __table_args__ = (UniqueConstraint("node_id", "boot_id", "number"),)
    id: Mapped[Key]
    node_id: Mapped[int] = mapped_column(ForeignKey("nodes.id"))
    boot_id: Mapped[str]
    number: Mapped[int]
    started_at: Mapped[datetime]
    agent_version: Mapped[str]
    clock_skew_seconds: Mapped[float | None] = mapped_column(Float)
    capabilities: Mapped[dict[str, str]] = mapped_column(JSONB, server_default=text("'{}'"))
