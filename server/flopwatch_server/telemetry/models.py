"""Samples and what is recomputed from them, reports of training processes, gaps and reasons.

Samples, minutes and hours are the three tiers of what is known of a device, each made of the one
before and kept longer; all are partitioned by time (`database.partitions`). Samples enter by binary
COPY only. A sample carries no job id: it meets allocations when read.
"""

from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import (
    REAL,
    BigInteger,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    PrimaryKeyConstraint,
    SmallInteger,
    Table,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column

from flopwatch.metrics import COLUMNS
from flopwatch_server.database.base import Base, UtcDateTime

samples = Table(
    "samples",
    Base.metadata,
    # As everywhere ids of devices and epochs, but half as wide: 8 bytes a row, for ever.
    Column("device_id", Integer, nullable=False),
    Column("epoch_id", Integer, nullable=False),
    Column("ts", UtcDateTime, nullable=False),
    *(Column(name, REAL) for name in COLUMNS),
    # Time before epoch: whoever reads wants a stretch of time of one device.
    PrimaryKeyConstraint("device_id", "ts", "epoch_id"),
    postgresql_partition_by="RANGE (ts)",
)
"""One device over (ts − 10 s, ts]: the 24 columns of `flopwatch.metrics`, NULL where unknown."""

MEAN_COLUMNS = tuple(name for name in COLUMNS if name not in ("sm_min", "sm_max",
                     "subsample_count", "source_period", "energy_joules"))  # fmt: skip
"""Columns of which a minute keeps the mean; energy is summed, the extremes keep their meaning."""

MAX_COLUMNS = ("sm_active", "tensor_active", "dram_active", "memory_used_mib", "power_watts",
               "temperature_c")  # fmt: skip
"""Columns of which a minute also keeps the highest sample, as `<name>_max`."""

SPREAD_COLUMNS = ("sm_active", "tensor_active", "dram_active")
"""Ratios of which an hour also keeps how they were spread, as `<name>_points`."""

STATES = ("unknown", "idle", "low", "active")
"""A device-minute's state is stored as a position in this list."""


def _measures() -> list[Column[Any]]:
    """What minutes and hours keep of the metrics."""
    names = ["energy_joules", "sm_min", "sm_max", *MEAN_COLUMNS]
    return [Column(name, REAL) for name in (*names, *(f"{name}_max" for name in MAX_COLUMNS))]


device_minutes = Table(
    "device_minutes",
    Base.metadata,
    Column("device_id", BigInteger, primary_key=True),
    Column("minute", UtcDateTime, primary_key=True),
    Column("state", SmallInteger, nullable=False),
    Column("samples_received", SmallInteger, nullable=False),
    Column("samples_expected", SmallInteger, nullable=False),
    Column("samples_suspect", SmallInteger, nullable=False),
    *_measures(),
    Index("ix_device_minutes_minute", "minute"),
    postgresql_partition_by="RANGE (minute)",
)
"""One device over [minute, minute + 60 s): state, coverage, means and maxima of its samples."""

device_hours = Table(
    "device_hours",
    Base.metadata,
    Column("device_id", BigInteger, primary_key=True),
    Column("hour", UtcDateTime, primary_key=True),
    *(Column(f"{state}_minutes", SmallInteger, nullable=False) for state in STATES),
    Column("samples_received", SmallInteger, nullable=False),
    Column("samples_expected", SmallInteger, nullable=False),
    Column("samples_suspect", SmallInteger, nullable=False),
    *_measures(),
    *(Column(f"{name}_points", LargeBinary) for name in SPREAD_COLUMNS),
    postgresql_partition_by="RANGE (hour)",
)
"""One device over [hour, hour + 60 min): minutes by state, coverage, means and maxima of minutes.

Minutes without any sample are in no state: the four numbers add up to the minutes that are known
of. `<name>_points` has one byte for each minute whose mean is known, that mean in whole points
rounded down (0 to 100), in no order. So it holds a histogram with bins of one point in at most 60
bytes; two are merged by putting one behind the other, and a quantile of minute means that is read
from it, in the middle of its point, is wrong by half a point at most.
"""

# Work to be done again. Append-only: a mark is consumed by DELETE ... RETURNING and never changed,
# so that what is written while it is consumed brings a mark of its own. The indexes have the order
# in which marks are consumed, so that all marks of one thing lie side by side.
dirty_marks = Table(
    "dirty_marks",
    Base.metadata,
    Column("device_id", BigInteger, nullable=False),
    Column("minute", UtcDateTime, nullable=False),
    Index("ix_dirty_marks_minute", "minute", "device_id"),
)
"""A device-minute that has new samples."""

dirty_hours = Table(
    "dirty_hours",
    Base.metadata,
    Column("device_id", BigInteger, nullable=False),
    Column("hour", UtcDateTime, nullable=False),
    Index("ix_dirty_hours_hour", "hour", "device_id"),
)
"""A device-hour that has new minutes."""

STEP = timedelta(minutes=10)
"""How fine the use of a whole cluster is kept."""

dirty_steps = Table(
    "dirty_steps",
    Base.metadata,
    Column("id", BigInteger, primary_key=True),
    Column("device_id", BigInteger, nullable=False),
    Column("step", UtcDateTime, nullable=False),
)
"""10 minutes of a device, by their start, that have new minutes: its use is to be counted again."""


class MetricState(Base):
    """Why a metric of a device has no value over [valid_from, valid_to): never the same as zero."""

    __tablename__ = "metric_states"
    device_id: Mapped[int] = mapped_column(ForeignKey("devices.id"), primary_key=True)
    metric: Mapped[str] = mapped_column(primary_key=True)
    valid_from: Mapped[datetime] = mapped_column(primary_key=True)
    valid_to: Mapped[datetime | None]
    reason: Mapped[str]


class DeviceSource(Base):
    """Which collector a device's activity comes from since `valid_from`, until the next row.

    `name` is NULL where none can tell; `passed_over` says why each better one was not taken.
    """

    __tablename__ = "device_sources"
    device_id: Mapped[int] = mapped_column(ForeignKey("devices.id"), primary_key=True)
    valid_from: Mapped[datetime] = mapped_column(primary_key=True)
    name: Mapped[str | None]
    period_seconds: Mapped[float | None] = mapped_column(Float)
    passed_over: Mapped[dict[str, str]] = mapped_column(JSONB)


class DeviceEvent(Base):
    """Something rare that happened to a device, as `flopwatch.wire.Event` tells it."""

    __tablename__ = "device_events"
    device_id: Mapped[int] = mapped_column(ForeignKey("devices.id"), primary_key=True)
    at: Mapped[datetime] = mapped_column(primary_key=True)
    kind: Mapped[str] = mapped_column(primary_key=True)
    value: Mapped[int] = mapped_column(primary_key=True)
    detail: Mapped[str]


class Gap(Base):
    """Samples of (valid_from, valid_to] are lost for good, with the cause. Never idleness."""

    __tablename__ = "gaps"
    device_id: Mapped[int] = mapped_column(ForeignKey("devices.id"), primary_key=True)
    valid_from: Mapped[datetime] = mapped_column(primary_key=True)
    valid_to: Mapped[datetime]
    cause: Mapped[str]


class HookCounter(Base):
    """A report of one rank, cumulative since its `watch`; `received_at` is the agent's clock.

    The raw job id comes from the sender's cgroup; which run it was follows from the time.
    """

    __tablename__ = "hook_counters"
    __table_args__ = (
        Index("ix_hook_counters_job", "cluster_id", "raw_job_id", "node_id", "boot", "rank",
              "received_at"),
    )  # fmt: skip
    node_id: Mapped[int] = mapped_column(ForeignKey("nodes.id"), primary_key=True)
    boot: Mapped[str] = mapped_column(primary_key=True)
    rank: Mapped[int] = mapped_column(primary_key=True)
    sequence: Mapped[int] = mapped_column(primary_key=True)
    cluster_id: Mapped[int] = mapped_column(ForeignKey("clusters.id"))
    raw_job_id: Mapped[int | None]
    received_at: Mapped[datetime]
    pid: Mapped[int]
    uid: Mapped[int]
    world_size: Mapped[int]
    device_name: Mapped[str]
    device_uuid: Mapped[str | None]
    train_flops: Mapped[dict[str, float]] = mapped_column(JSONB)
    forward_only_flops: Mapped[dict[str, float]] = mapped_column(JSONB)
    train_seconds: Mapped[float] = mapped_column(Float)
    elapsed_seconds: Mapped[float] = mapped_column(Float)
    steps: Mapped[int]
    phase_seconds: Mapped[dict[str, Any]] = mapped_column(JSONB)
    convention: Mapped[str]
    reason: Mapped[str | None]
    dropped: Mapped[int]


class NodeMinute(Base):
    """CPU and memory of a whole node over [minute, minute + 60 s)."""

    __tablename__ = "node_minutes"
    node_id: Mapped[int] = mapped_column(ForeignKey("nodes.id"), primary_key=True)
    minute: Mapped[datetime] = mapped_column(primary_key=True)
    cpu_seconds: Mapped[float | None] = mapped_column(Float)
    cpu_count: Mapped[int | None]
    memory_used_mib: Mapped[float | None] = mapped_column(Float)
    memory_total_mib: Mapped[float | None] = mapped_column(Float)


class RunMinute(Base):
    """The same for the cgroup of one job on one node."""

    __tablename__ = "run_minutes"
    node_id: Mapped[int] = mapped_column(ForeignKey("nodes.id"), primary_key=True)
    raw_job_id: Mapped[int] = mapped_column(primary_key=True)
    minute: Mapped[datetime] = mapped_column(primary_key=True)
    cpu_seconds: Mapped[float | None] = mapped_column(Float)
    cpu_count: Mapped[int | None]
    memory_used_mib: Mapped[float | None] = mapped_column(Float)
    memory_total_mib: Mapped[float | None] = mapped_column(Float)
