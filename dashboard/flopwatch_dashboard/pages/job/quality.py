"""How far the figures of a job can be trusted: what came, what is missing, and why."""

from dash import html
from dash.development.base_component import Component

from flopwatch.metrics import BY_NAME
from flopwatch_dashboard.components import card, facts, full_time, or_dash
from flopwatch_dashboard.format import DASH, age, count, percent, plural
from flopwatch_dashboard.pages.job.data import JobData
from flopwatch_server.efficiency.schemas import RunEvent, RunQuality, SeriesGap, SourceUse

_SHOWN = ("sm_active", "tensor_active", "dram_active", "memory_used_mib", "power_watts",
          "sm_clock_mhz", "temperature_c", "throttled_share")  # fmt: skip

_MOST_EVENTS = 5
EVENT_WORDS = {
    "xid": "Xid {}",
    "ecc_corrected": "corrected memory errors: {}",
    "ecc_uncorrected": "uncorrected memory errors: {}",
    "rows_remapped": "memory rows taken out of use: {}",
    "row_remap_failed": "a memory row could not be taken out of use",
    "pcie_width": "PCIe lanes: {}",
    "clock_reasons": "clocks held down",
}


def quality_card(data: JobData) -> Component:
    """The list of what came and what did not."""
    pairs = [
        ("Samples received", _received(data.quality)),
        ("Coverage", or_dash(percent(data.efficiency.coverage), "no minute is complete yet")),
        ("Largest gap", _largest_gap(data)),
        ("Newest sample", _newest(data)),
        ("GPUs", _confirmed(data)),
        ("Attribution", ", ".join(sorted({device.source for device in data.devices})) or DASH),
        ("Activity from", [html.Div(line) for line in activity_from(data.quality)] or DASH),
        ("Events", _events(data.quality.events)),
        ("Not measured", [html.Div(line) for line in not_measured(data)] or "nothing"),
    ]
    return card("Data quality", html.Div(facts(pairs), className="card-body"))


def _received(quality: RunQuality) -> str:
    if not quality.samples_expected:
        return "no minute is complete yet"
    return f"{count(quality.samples_received)} of {count(quality.samples_expected)}"


def _largest_gap(data: JobData) -> str:
    gaps = data.series.gaps if data.series else []
    largest: SeriesGap | None = max(gaps, key=lambda gap: gap.end - gap.start, default=None)
    if largest is None:
        return "none"
    return f"{age(largest.end - largest.start)}, {largest.cause or 'cause unknown'}"


def _newest(data: JobData) -> Component | str:
    newest = data.newest_sample_at
    if newest is None:
        return "older than 10 min, or none"
    seconds = (data.now - newest).total_seconds()
    return html.Span([f"{age(seconds)} old, ", full_time(newest)])


def _confirmed(data: JobData) -> str:
    certain = sum(1 for device in data.devices if device.confidence == "certain")
    unknown = sum(1 for device in data.devices if device.device_uuid is None)
    text = f"{certain} of {plural(len(data.devices), 'GPU')} confirmed by processes"
    return text + (f", {unknown} not matched to a device" if unknown else "")


def activity_from(quality: RunQuality) -> list[str]:
    """Where activity comes from, and why from nothing better: "8 GPUs: gpm, every second"."""
    return [
        f"{plural(use.gpus, 'GPU')}: {_name(use)}"
        + "".join(f"; not {name}: {reason}" for name, reason in use.passed_over.items())
        for use in quality.sources
    ]


def _name(use: SourceUse) -> str:
    if use.name is None or use.period_seconds is None:
        return "nothing"
    return f"{use.name}, every {use.period_seconds:g} s"


def event_line(event: RunEvent) -> str:
    """One event in words: "g014:3, Xid 79"."""
    words = EVENT_WORDS[event.kind].format(event.value)
    if event.kind == "clock_reasons" and not event.value:
        words = "clocks free again"
    detail = f" ({event.detail})" if event.detail else ""
    return f"{event.place}, {words}{detail}"


def _events(events: list[RunEvent]) -> Component | str:
    """The newest few, and how many more there are."""
    if not events:
        return "none"
    lines = [
        html.Div([event_line(event), ", ", full_time(event.at)]) for event in events[:_MOST_EVENTS]
    ]
    more = len(events) - len(lines)
    return html.Div([*lines, html.Div(f"and {more} more")] if more else lines)


def not_measured(data: JobData) -> list[str]:
    """What has no value, with the reason that the agents tell: "FP64 active: no permission".

    A metric is told when an agent gave a reason, or when a page shows it and no GPU has it.
    """
    means = data.efficiency.means
    told = data.quality.missing
    if data.has_samples:
        shown = [name for name in _SHOWN if means.get(name) is None and name not in told]
    else:
        shown = []
    lines = [f"{BY_NAME[name].label}: {reason}" for name, reason in told.items()]
    return lines + [BY_NAME[name].label for name in shown]


def why_missing(data: JobData, metric: str) -> str:
    """Why a cell of the table has no value."""
    return data.quality.missing.get(metric, "no sample has told it")
