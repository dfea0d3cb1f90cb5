"""Every message that crosses a process border.

Two kinds travel:

* a **report**: one small JSON datagram from a training process to its node's agent (`Report`);
* a **batch**: one HTTP body from an agent to the server (`Batch`): a JSON header, a line feed,
  then a block of little-endian float32 values, one row a sample and one column a name in
  `samples.columns`, NaN where nothing is known. Another client may send the header alone as
  `application/json` with the rows in `samples.values`.

The classes are plain dataclasses, so that the node needs only the standard library and the server
can decode straight into them.
"""

import json
import re
import sys
from array import array
from dataclasses import asdict, dataclass, field

VERSION = 1
BATCH_TYPE = "application/vnd.flopwatch.batch"
SENT_AT_HEADER = "flopwatch-sent-at"
"""HTTP header of a post: the agent's clock when it sent, in seconds since 1970. A batch may have
waited in the spool, so it can't tell this itself; the server measures the clock's skew by it."""

EVENT_KINDS = (
    "xid",
    "ecc_corrected",
    "ecc_uncorrected",
    "rows_remapped",
    "row_remap_failed",
    "pcie_width",
    "clock_reasons",
)
MAX_BODY_BYTES = 8 * 1024 * 1024
MAX_DECODED_BYTES = 32 * 1024 * 1024
MAX_REPORT_BYTES = 8192
DEFAULT_SOCKET = "/run/flopwatch/hook.sock"
NODE = re.compile(r"[A-Za-z0-9._-]{1,253}")
ID = re.compile(r"[A-Za-z0-9._:+/-]{1,64}")
UUID = re.compile(r"[A-Za-z0-9._:/-]{1,128}")
"""What the server takes for a node's name, an id, a GPU's UUID. One that is not would cost the
whole batch it is in, so an agent lets none in."""

MAX_ENTRIES = 10_000
MAX_TABLE = 64
_MOST_TEXT = 256


@dataclass
class Report:
    """What one training process (one rank) has done since it called `watch`.

    All counters are cumulative, so a lost datagram costs nothing. `boot` is drawn anew by every
    process. FLOPs are by dtype as PyTorch names them (`bfloat16`, `float32`, ...; `tf32` for
    float32 matmuls that may use TF32). `train_flops` is forward plus backward without recompute,
    `forward_only_flops` is evaluation. `train_seconds` is the time between optimizer steps.
    `device_uuid` is None where the process computes on no GPU; `device_name` is then "CPU".
    `reason` says why there is no MFU, if so.
    """

    boot: str
    sequence: int
    rank: int
    world_size: int
    device_name: str
    device_uuid: str | None
    train_flops: dict[str, float]
    forward_only_flops: dict[str, float]
    train_seconds: float
    elapsed_seconds: float
    steps: int
    phase_seconds: dict[str, float] = field(default_factory=dict)
    convention: str = "palm"
    reason: str | None = None
    dropped: int = 0
    version: int = VERSION


@dataclass
class AttributedReport:
    """A report with what the agent itself knows of the sender: never what it alone claims.

    `pid` and `uid` are the kernel's (SCM_CREDENTIALS); `job_id` comes from the pid's cgroup, or
    from its environment where a drop file of root's says that the job is this user's, else it is
    None. `received_at` is the agent's clock in seconds since 1970.
    """

    report: Report
    pid: int
    uid: int
    job_id: int | None
    received_at: float


@dataclass
class Epoch:
    """One life of one agent: `number` grows with every start and every backward clock step."""

    boot_id: str
    number: int
    started_at: float
    agent_version: str


@dataclass
class Device:
    """A GPU, or a MIG instance of one, as the driver describes it now.

    `instance` and `profile` are empty for a whole GPU. `minor` is N of /dev/nvidiaN.
    `gres_ordinal` is its position in the node's GRES list, as gres.conf says; None where that is
    not known.
    """

    uuid: str
    model: str
    memory_mib: float | None
    minor: int | None
    pci_bus_id: str | None
    instance: str = ""
    profile: str = ""
    power_limit_watts: float | None = None
    gres_ordinal: int | None = None


@dataclass
class Samples:
    """`device[i]` (an index into the batch's devices) over (`time[i]` − 10 s, `time[i]`]."""

    columns: list[str] = field(default_factory=list)
    device: list[int] = field(default_factory=list)
    time: list[int] = field(default_factory=list)
    values: list[list[float | None]] | None = None


@dataclass
class Missing:
    """A metric of a device has no value since `since`; with `reason` None it has one again."""

    device: int
    metric: str
    reason: str | None
    since: float


@dataclass
class Evidence:
    """A sign of who holds a GPU. `kind`: "prolog", "cgroup" or "environ".

    A prolog file names GRES ordinals of the node or devices; a process the one it computes on.
    "environ" is what a process claims. A job id has up to 63 bits, as in the feed.
    """

    kind: str
    job_id: int
    first_seen: float
    last_seen: float
    device: int | None = None
    ordinals: list[int] | None = None
    pid: int | None = None
    uid: int | None = None


@dataclass
class HostUsage:
    """CPU and memory of the node (`job_id` None) or of one job's cgroup, over (time − 60 s, time].

    `cpu_seconds` is CPU time used in that minute, `cpu_count` the CPUs that were available.
    """

    time: int
    job_id: int | None
    cpu_seconds: float | None
    cpu_count: int | None
    memory_used_mib: float | None
    memory_total_mib: float | None


@dataclass
class Gap:
    """Samples of (start, end] are lost for good; `device` None means all of the node's."""

    start: float
    end: float
    cause: str
    device: int | None = None


@dataclass
class Source:
    """Which collector a device's activity figures come from since `since`.

    `name` is None where none can tell; `period_seconds` is how often that source has a new value.
    `passed_over` says of each collector that would have come first why it was not taken.
    """

    device: int
    name: str | None
    period_seconds: float | None
    since: float
    passed_over: dict[str, str] = field(default_factory=dict)


@dataclass
class Event:
    """Something rare that happened to a device, in the driver's words; `kind` is in EVENT_KINDS.

    `value` is an Xid's code, how many errors or rows more there are than before, the lanes of the
    PCIe link now, or the bits of the clock event reasons now (0: none any more).
    """

    device: int
    time: float
    kind: str
    value: int
    detail: str = ""


@dataclass
class LocalRun:
    """A process tree that computes on GPUs of a machine that no scheduler shares out.

    `pid` and `started_at` (seconds since 1970) are those of its root, `user` is whom the root
    belongs to and `name` what it runs. `devices` are those it was seen to compute on within the
    last minute. `last_seen` is when it lived, `ended_at` when it was first seen to be gone, None
    before.
    """

    pid: int
    started_at: float
    uid: int
    user: str
    name: str
    devices: list[int]
    last_seen: float
    ended_at: float | None = None


@dataclass
class Batch:
    """One post of an agent. All lists may be empty; times are seconds since 1970, UTC.

    `capabilities` are what the agent can see on its node, all of them whenever one has changed:
    `cgroup` is "v1", "v2" or "none", `job_cgroups` says what names those of jobs now ("job id",
    "SLUID", or "none" where there are none), `gres_conf` why it can't be read, or nothing.
    """

    node: str
    epoch: Epoch
    devices: list[Device] = field(default_factory=list)
    samples: Samples = field(default_factory=Samples)
    missing: list[Missing] = field(default_factory=list)
    evidence: list[Evidence] = field(default_factory=list)
    reports: list[AttributedReport] = field(default_factory=list)
    host: list[HostUsage] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    sources: list[Source] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    local_runs: list[LocalRun] = field(default_factory=list)
    aliases: list[str] = field(default_factory=list)
    capabilities: dict[str, str] = field(default_factory=dict)
    version: int = VERSION


def local_job_id(pid: int, started_at: float) -> int:
    """The job id of a local run, for its evidence and reports: no other process ever has the same.

    Pids stay below 2^22 (PID_MAX_LIMIT of Linux), so it fits the 53 bits that every JSON reader
    keeps.
    """
    return int(started_at) << 22 | pid


def encode_report(report: Report) -> bytes:
    """Encode a report as one datagram."""
    return json.dumps(asdict(report), separators=(",", ":")).encode()


def as_text(value: object) -> str:
    """`value` as a report can carry it: one line of printable characters, cut to fit."""
    return "".join(c if c.isprintable() else " " for c in str(value)[:_MOST_TEXT])


def decode_report(datagram: bytes) -> Report:
    """Decode a datagram; raise ValueError that names what is wrong with it."""
    if len(datagram) > MAX_REPORT_BYTES:
        raise ValueError(f"report of {len(datagram)} bytes is over {MAX_REPORT_BYTES}")
    try:
        fields = json.loads(datagram, parse_constant=_refuse_constant)
        return _checked(Report(**fields))
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"not a report: {error}") from error


def encode_batch(batch: Batch, values: "array[float]") -> bytes:
    """Encode a batch with its float32 rows, row after row (len(time) x len(columns) values)."""
    # `vars` of each part, not asdict of the whole, which copies all that is in it first.
    header = json.dumps(batch, default=vars, separators=(",", ":"), allow_nan=False).encode()
    if sys.byteorder == "big":
        values = array("f", values)
        values.byteswap()
    return header + b"\n" + values.tobytes()


def split_batch(body: bytes) -> tuple[bytes, memoryview]:
    """Split a body into its JSON header and its float32 block."""
    end = body.find(b"\n")
    if end < 0:
        raise ValueError("no line feed after the JSON header")
    return body[:end], memoryview(body)[end + 1 :]


def _refuse_constant(text: str) -> float:
    raise ValueError(f"{text} is not a number")


def _checked(report: Report) -> Report:
    """Refuse what JSON allows and a report does not, so that no datagram can spoil a batch.

    Every number ends up as the type that `Report` gives it: FLOPs may come as integers too large
    for other decoders.
    """
    if report.version != VERSION:
        raise ValueError(f"version {report.version} is not {VERSION}")
    for name in ("sequence", "rank", "world_size", "steps", "dropped"):
        value = getattr(report, name)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 53:
            raise ValueError(f"{name} is no plain count")
    for name in ("train_seconds", "elapsed_seconds"):
        setattr(report, name, _amount(name, getattr(report, name)))
    for name in ("train_flops", "forward_only_flops", "phase_seconds"):
        table = getattr(report, name)
        if not isinstance(table, dict) or len(table) > MAX_TABLE or "" in table:
            raise ValueError(f"{name} is no table of {MAX_TABLE} named entries at most")
        checked = {_text(name, key): _amount(f"{name}.{key}", table[key]) for key in table}
        setattr(report, name, checked)
    _match(ID, "boot", report.boot)
    _match(ID, "convention", report.convention)
    _text("device_name", report.device_name)
    if report.device_uuid is not None:
        _match(UUID, "device_uuid", report.device_uuid)
    if report.reason is not None:
        _text("reason", report.reason)
    return report


def _amount(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e30:
        raise ValueError(f"{name} is no amount from 0 to 1e30")
    return float(value)


def _text(name: str, value: object) -> str:
    if not isinstance(value, str) or len(value) > _MOST_TEXT or not value.isprintable():
        raise ValueError(f"{name} is no printable text of {_MOST_TEXT} characters at most")
    return value


def _match(pattern: re.Pattern[str], name: str, value: object) -> None:
    if not pattern.fullmatch(_text(name, value)):
        raise ValueError(f"{name} is not of the form {pattern.pattern}")
