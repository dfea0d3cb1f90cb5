"""How GPU time was used, kept so that no page adds up minutes.

All but `cluster_now` is made again of minutes and allocations wherever marks say that those have
changed (`efficiency.rollups`): set, never added to. Times are starts of hours and of `STEP`s.
"""

from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    SmallInteger,
    Table,
    Text,
)
from sqlalchemy.dialects.postgresql import JSONB

from flopwatch_server.database.base import Base, UtcDateTime

KNOWN_STATES = ("active", "low", "idle")
NOT_HELD_COLUMNS = ("free_seconds", "reserved_seconds", "drained_seconds", "down_seconds")
MEAN_COLUMNS = ("sm_active", "tensor_active", "dram_active", "power_watts")
"""Metrics of which means over a run are kept."""


def _seconds() -> list[Column[Any]]:
    return [Column(f"{state}_seconds", Integer, nullable=False) for state in KNOWN_STATES]


def _sum(metric: str, count: type[Integer]) -> list[Column[Any]]:
    """A sum of minute means and how many they are: such pairs add up, means don't."""
    return [Column(f"{metric}_sum", Float), Column(f"{metric}_minutes", count, nullable=False)]


cluster_now = Table(
    "cluster_now",
    Base.metadata,
    Column("cluster_id", ForeignKey("clusters.id"), primary_key=True),
    Column("made_at", UtcDateTime, nullable=False),
    Column("figures", JSONB, nullable=False),
)
"""What a cluster did when it was found last (`efficiency.cluster_now`)."""

allocation_hours = Table(
    "allocation_hours",
    Base.metadata,
    Column("device_id", BigInteger, primary_key=True, autoincrement=False),
    Column("hour", UtcDateTime, primary_key=True),
    Column("allocation_id", ForeignKey("allocations.id", ondelete="CASCADE"), primary_key=True),
    *_seconds(),
    *(column for metric in MEAN_COLUMNS for column in _sum(metric, SmallInteger)),
    Index("ix_allocation_hours_allocation_id", "allocation_id", "hour"),
)
"""What one allocation got out of its device in the minutes of one hour that count for it.

The rest of the time it was held in the hour is unknown, or shared. An hour without a minute that
counts has no row.
"""

run_figures = Table(
    "run_figures",
    Base.metadata,
    Column("run_id", ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True),
    Column("idle_gpu_hours", Float),
    *(Column(metric, Float) for metric in MEAN_COLUMNS),
    Column("mfu", Float),
)
"""A run so far, over all its minutes that count; `idle_gpu_hours` None if none has a known state.

`mfu` is train MFU, None where it is not known.
"""

cluster_steps = Table(
    "cluster_steps",
    Base.metadata,
    Column("cluster_id", ForeignKey("clusters.id"), primary_key=True),
    Column("step", UtcDateTime, primary_key=True),
    Column("allocated_seconds", Float, nullable=False),
    *(Column(name, Float, nullable=False) for name in NOT_HELD_COLUMNS),
    Column("power_watts", Float),
    Column("is_seen", Boolean, nullable=False),
)
"""All GPUs of a cluster in one step, once it is over.

`allocated_seconds` counts a GPU once that several jobs share, and those too of which nobody knows
which they are; what nobody held is told apart as in `repository.gpu_time`, the rest is unknown.
`power_watts` is that of all GPUs that reported; `is_seen` says whether any did.
"""

account_steps = Table(
    "account_steps",
    Base.metadata,
    Column("cluster_id", ForeignKey("clusters.id"), primary_key=True),
    Column("step", UtcDateTime, primary_key=True),
    Column("account", Text, primary_key=True),
    Column("allocated_seconds", Float, nullable=False),
    *_seconds(),
    *_sum("tensor_active", Integer),
)
"""What one account held in one step, once it is over, and the minutes of that with a known state.

Here each holder of a shared GPU counts.
"""
