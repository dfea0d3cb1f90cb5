"""What a run got out of its GPUs, as API and pages show it.

Ratios are fractions; None is unknown.
"""

from datetime import datetime

from pydantic import BaseModel, ConfigDict, Field

from flopwatch_server.database.text import Word
from flopwatch_server.jobs.schemas import RunView


class StateSeconds(BaseModel):
    """Allocated GPU-seconds by state; they add up to the allocated time."""

    active: float = 0
    low: float = 0
    idle: float = 0
    shared: float = 0
    unknown: float = 0

    @property
    def total(self) -> float:
        return self.active + self.low + self.idle + self.shared + self.unknown


class GpuCounts(BaseModel):
    """GPUs by their state in the newest complete minute."""

    active: int = 0
    low: int = 0
    idle: int = 0
    shared: int = 0
    unknown: int = 0


class Efficiency(BaseModel):
    """A run so far. `coverage` is device-minutes with a known state over those allocated.

    `means` and `maxima` are by metric name over all known allocated minutes of all GPUs.
    """

    state_seconds: StateSeconds
    gpus_now: GpuCounts
    coverage: float | None
    means: dict[str, float | None]
    maxima: dict[str, float | None]
    energy_joules: float | None


class SourceUse(BaseModel):
    """The collector that the activity of `gpus` GPUs comes from; `name` None where none can tell.

    `period_seconds` is how often it has new values: what is finer is unknown. `passed_over` says of
    each better collector why it is not used.
    """

    name: str | None
    period_seconds: float | None
    passed_over: dict[str, str]
    gpus: int


class RunEvent(BaseModel):
    """Something rare that happened to a GPU while the run held it (`flopwatch.wire.Event`)."""

    place: str
    device_uuid: str
    at: datetime
    kind: str
    value: int
    detail: str


class RunQuality(BaseModel):
    """How complete the samples of a run are.

    Both counts are over the whole minutes in which the run alone held the GPU. `missing` gives, by
    metric, why GPUs of the run have no value for it: the reason of most of them. `events` begin
    with the newest.
    """

    samples_received: int
    samples_expected: int
    missing: dict[str, str]
    sources: list[SourceUse]
    events: list[RunEvent]


class Mfu(BaseModel):
    """Model FLOPs Utilization of a run (PaLM's definition; recompute excluded).

    train MFU is over the time between optimizer steps, job MFU over all allocated GPU time;
    job MFU = train MFU x `train_share`. `reason` says why a value is None, `note` what to know of
    one that is there: ranks that don't report, a value that can't be. `ranks` counts those that
    report; `flops_per_second` is the mean of one rank while it trains, `peak_flops` the dense peak
    of `device_name` for `dtype`, the one with most FLOPs.
    """

    train_mfu: float | None
    job_mfu: float | None
    train_share: float | None
    reason: str | None
    note: str | None
    convention: str
    ranks: int
    steps: int
    step_seconds: float | None
    flops_per_second: float | None
    peak_flops: float | None
    dtype: str | None
    device_name: str | None
    reported_at: datetime


class MfuPoint(BaseModel):
    """Train MFU over one step that ends at `time` (seconds since 1970): a minute up to a day."""

    time: int
    train_mfu: float | None


class DeviceEfficiency(BaseModel):
    """One allocated GPU of a run. `place` is "node:ordinal"; device fields None while unknown."""

    place: str
    node: str
    device_uuid: str | None
    model: str | None
    memory_mib: float | None
    power_limit_watts: float | None
    rank: int | None
    state_now: str
    source: str
    confidence: str
    means: dict[str, float | None]
    maxima: dict[str, float | None]
    latest: dict[str, float | None]
    latest_at: datetime | None


class JobDetail(BaseModel):
    """One run with all that is known of it; `mfu` None if no training process has reported."""

    run: RunView
    efficiency: Efficiency
    mfu: Mfu | None
    devices: list[DeviceEfficiency]
    quality: RunQuality


class JobMfu(BaseModel):
    """MFU of a run, over its life and by minute."""

    mfu: Mfu | None
    series: list[MfuPoint]


class DeviceSeries(BaseModel):
    """Values of one allocated GPU at the times of its `RunSeries`; None where unknown.

    `states` holds one of "active", "low", "idle", "unknown" a point, None outside the allocation.
    """

    place: str
    values: dict[str, list[float | None]]
    states: list[str | None]


class SeriesGap(BaseModel):
    """No sample of any GPU of the run in (start, end]; cause None while unknown."""

    start: int
    end: int
    cause: str | None


class RunSeries(BaseModel):
    """Metrics of a run over time: each point covers (time - step_seconds, time]."""

    start: int
    end: int
    step_seconds: int
    times: list[int]
    devices: list[DeviceSeries]
    gaps: list[SeriesGap]


class JobRow(RunView):
    """A row of the jobs list: the run, what it got out of its GPUs so far, and its MFU.

    Metrics are means over its minutes so far, per GPU. `idle_gpu_hours` are GPU-hours held in idle
    minutes, None while no minute is known. `idle_since` is when the last of its GPUs that are idle
    now fell idle: all of them have been idle that long. `spark` is the mean tensor activity of all
    its GPUs over its last hour, one value per 2 minutes. `state_now` is "pending", "ended", or what
    most calls for attention among its GPUs: idle, low, active, shared, unknown.
    """

    state_now: str
    gpus_now: GpuCounts
    sm_active: float | None
    tensor_active: float | None
    dram_active: float | None
    power_watts: float | None
    mfu: float | None
    idle_gpu_hours: float | None
    idle_since: datetime | None
    spark: list[float | None]


SORTS = ("job_id", "name", "user", "account", "partition", "state", "submitted_at", "started_at",
         "ended_at", "elapsed", "gpus", "sm_active", "tensor_active", "dram_active", "power_watts",
         "mfu", "idle_gpu_hours")  # fmt: skip
"""What the jobs list can be sorted by; with "-" before it, highest first. Unknown comes last."""


class JobQuery(BaseModel):
    """Which rows of the jobs list are asked for.

    An empty tuple asks for all. `text` is searched in name, user and job id. `days` leaves out what
    ended longer ago; `gpus_min` None brings in jobs without GPUs.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    cluster: Word | None = None
    states: tuple[Word, ...] = Field(default=(), max_length=50)
    users: tuple[Word, ...] = Field(default=(), max_length=50)
    accounts: tuple[Word, ...] = Field(default=(), max_length=50)
    partitions: tuple[Word, ...] = Field(default=(), max_length=50)
    text: Word | None = None
    gpus_min: int | None = Field(default=1, ge=0, le=1_000_000)
    days: int = Field(default=7, ge=1, le=366)
    sort: str = Field(default="-idle_gpu_hours", pattern=f"^-?({'|'.join(SORTS)})$")
    offset: int = Field(default=0, ge=0, le=10_000_000)
    limit: int = Field(default=50, ge=1, le=200)


class JobPage(BaseModel):
    """One block of the jobs list; `total` counts all rows that match, `gpus` their GPUs."""

    rows: list[JobRow]
    total: int
    gpus: int


class JobFacets(BaseModel):
    """How many of the visible jobs carry each value, per facet, most first."""

    state: dict[str, int]
    user: dict[str, int]
    account: dict[str, int]
    partition: dict[str, int]


class StateCounts(BaseModel):
    """GPUs by state, on average over the 10 minutes that end at `time` (seconds since 1970).

    They add up to all GPUs of the cluster, or to none with `watched` False: no agent had reported
    yet. Those that nobody held are `free`, `reserved` for some, or `down`, which here are the
    drained too; `unknown` are the rest: held without a known state, or nobody told of them.
    """

    time: int
    watched: bool = True
    active: float = 0
    low: float = 0
    idle: float = 0
    unknown: float = 0
    free: float = 0
    reserved: float = 0
    down: float = 0


class GpuSeconds(BaseModel):
    """GPU-seconds by what became of them: held by one job, by several that share the GPU, by one
    that others dispute; or by nobody, and then by what the node was there for. They add up to the
    time that the GPUs were there.
    """

    allocated: float
    shared: float
    disputed: float
    free: float
    reserved: float
    drained: float
    down: float
    unknown: float


class NodeTime(BaseModel):
    """The GPU-seconds of one node."""

    node: str
    seconds: GpuSeconds


class GpuTime(BaseModel):
    """The GPU-seconds of a cluster over [start, end), which ends now at the latest."""

    cluster: str
    start: datetime
    end: datetime
    seconds: GpuSeconds
    nodes: list[NodeTime]


class AccountHours(BaseModel):
    """GPU-hours of one account over the overview's window."""

    account: str
    allocated: float
    active: float
    low: float
    idle: float


class PartitionNow(BaseModel):
    """One partition now; None where no scheduler tells."""

    partition: str
    gpus: int | None
    allocated: int
    idle: int
    free: int | None
    queued: int
    tensor_active: float | None


class SilentNode(BaseModel):
    """A node whose agent has reported before and is silent for more than 3 periods."""

    node: str
    since: datetime


class SourceStatus(BaseModel):
    """How a scheduler's source fares: `error` None while the last call worked."""

    kind: str
    last_success_at: datetime | None
    error: str | None
    error_since: datetime | None


class Overview(BaseModel):
    """How well a cluster is being used now, and over the last window.

    `allocated` and `free` are None until a scheduler has answered once: nobody knows who holds
    what. `mfu` is the plain mean of the train MFU of the running jobs that report.
    """

    cluster: str
    simulated: bool
    gpus: int
    allocated: int | None
    free: int | None
    reserved: int
    down: int
    gpus_now: GpuCounts
    tensor_active: float | None
    mfu: float | None
    reporting_jobs: int
    running_jobs: int
    pending_jobs: int
    power_watts: float | None
    power_limit_watts: float | None
    newest_sample_at: datetime | None
    history: list[StateCounts]
    history_tensor: list[float | None]
    history_power_watts: list[float | None]
    attention: list[JobRow]
    accounts: list[AccountHours]
    partitions: list[PartitionNow]
    agents_reporting: int
    agents_silent: list[SilentNode]
    sources: list[SourceStatus]
