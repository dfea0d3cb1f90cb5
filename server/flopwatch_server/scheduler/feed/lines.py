"""The shapes of the feed's lines. Every field is a field of the record that the line becomes.

Free text (`name`, `user`, `account`, `reason`, ...) may hold anything; identifiers, which stand in
addresses and indexes, are short and printable.
"""

from datetime import datetime
from typing import Annotated, Literal

from msgspec import Meta, Struct

Identifier = Annotated[
    str, Meta(min_length=1, max_length=256, pattern=r"^[^\x00-\x1f\x7f\ud800-\udfff]+\Z")
]
ShortText = Annotated[str, Meta(max_length=256)]
Name = Annotated[str, Meta(min_length=1, max_length=256)]
ExitCode = Annotated[str, Meta(pattern=r"^[0-9]{1,3}:[0-9]{1,3}\Z")]
Count = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Int64 = Annotated[int, Meta(ge=0, le=2**63 - 1)]
PositiveInt64 = Annotated[int, Meta(ge=1, le=2**63 - 1)]
GpusOfNode = Annotated[int, Meta(ge=1, le=1024)]
Ordinal = Annotated[int, Meta(ge=0, le=1023)]
Fraction = Annotated[float, Meta(ge=0, le=1)]
Level = Annotated[float, Meta(ge=0)] | Literal["Infinity"]
"""JSON has no number for a level of which nothing has been used."""

Moment = Annotated[datetime, Meta(tz=True)] | float
"""ISO 8601 with its offset, or seconds since 1970."""


class GpusLine(Struct, frozen=True, forbid_unknown_fields=True):
    """The GPUs that a run holds on one node; see `NodeGpus`."""

    node: Identifier
    count: GpusOfNode
    ordinals: tuple[Ordinal, ...] | None = None
    type: Identifier | None = None
    shared: bool = False


class RunLine(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="run"
):
    """One run of one job; see `JobRecord`."""

    raw_job_id: PositiveInt64
    submitted_at: Moment
    state: str
    name: str
    user: ShortText
    account: ShortText
    display_id: Identifier | None = None
    partition: ShortText = ""
    qos: ShortText = ""
    reason: str = ""
    started_at: Moment | None = None
    ended_at: Moment | None = None
    time_limit_seconds: Int64 | None = None
    suspended_seconds: Int64 | None = None
    restarts: Count | None = None
    exit_code: ExitCode | None = None
    gpu_count: Count | None = None
    node_count: Count | None = None
    nodes: tuple[Identifier, ...] = ()
    gpus: tuple[GpusLine, ...] | None = None
    array_job_id: PositiveInt64 | None = None
    array_task_id: Int64 | None = None
    het_job_id: PositiveInt64 | None = None
    het_offset: Count | None = None
    sluid: Identifier | None = None


class NodeLine(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="node"
):
    """One node; see `NodeRecord`."""

    name: Identifier
    state: Identifier
    reason: str = ""
    gpu_count: Count | None = None
    gpu_type: Identifier | None = None
    partitions: tuple[Identifier, ...] = ()


class ShareLine(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="share"
):
    """The fair share of a user in an account, or of the account; see `ShareRecord`."""

    account: Name
    user: Name | None = None
    partition: ShortText = ""
    raw_shares: Int64 | None = None
    norm_shares: Fraction | None = None
    raw_usage: Int64 | None = None
    effective_usage: Fraction | None = None
    fair_share: Fraction | None = None
    level_fs: Level | None = None


class ReservationLine(
    Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    tag_field="kind",
    tag="reservation",
):
    """Nodes that are kept for some; see `ReservationRecord`."""

    name: Name
    starts_at: Moment
    ends_at: Moment
    nodes: Annotated[tuple[Identifier, ...], Meta(min_length=1)]
    is_whole: bool = True
    users: tuple[Name, ...] = ()
    accounts: tuple[Name, ...] = ()
    flags: tuple[ShortText, ...] = ()


class SnapshotLine(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="snapshot"
):
    """What the body is: with `complete`, its runs are all that pended or ran at `time`, its
    reservations all that are or will be, and its shares, if it has any, all there are."""

    time: Moment
    complete: bool


Line = RunLine | NodeLine | ShareLine | ReservationLine | SnapshotLine
