"""The GPUs of a job: names beside the instrument, and the table, which is the strip in numbers."""

from collections.abc import Callable

from dash import html
from dash.development.base_component import Component

from flopwatch.metrics import BY_NAME
from flopwatch_dashboard.components import Column, card, glyph, inline_bar, or_dash, table
from flopwatch_dashboard.format import (
    celsius,
    gibibytes,
    megahertz,
    percent,
    watts,
)
from flopwatch_dashboard.pages.job import figures
from flopwatch_dashboard.pages.job.data import METRICS, JobData
from flopwatch_dashboard.pages.job.points import scale_of, strip_groups
from flopwatch_dashboard.pages.job.verdict import outlier
from flopwatch_server.efficiency.schemas import DeviceEfficiency

_LABELLED_ROW_PIXELS = 16
_EXPECTED = (
    "sm_active",
    "tensor_active",
    "dram_active",
    "memory_used_mib",
    "power_watts",
    "gpu_utilization",
    "sm_clock_mhz",
    "temperature_c",
    "fp64_active",
)
_WARM_THROTTLED_SHARE = 0.05


def power_limit(data: JobData) -> float | None:
    """The power limit of the GPUs, where it is known and the same for all."""
    limits = {d.power_limit_watts for d in data.devices if d.power_limit_watts is not None}
    return limits.pop() if len(limits) == 1 else None


def not_measured(data: JobData) -> list[str]:
    """Labels of the metrics that a page would show and that no GPU of the job has."""
    means = data.efficiency.means
    measured = any(value is not None for value in means.values())
    if not measured:
        return []
    return [BY_NAME[name].label for name in _EXPECTED if means.get(name) is None]


def gutter(data: JobData) -> Component:
    """Names at the left of the instrument. The browser writes the numbers of the metrics."""
    assert data.series is not None
    groups = strip_groups(data.series.devices)
    pixels = figures.strip_row_pixels(len(groups))
    by_place = {device.place: device for device in data.devices}
    lowest = outlier([_tensor(device) for device in data.devices])
    rows = [
        _gpu_name(label, [by_place[d.place] for d in group if d.place in by_place],
                  figures.STRIP_TOP + position * pixels, pixels, lowest)
        for position, (label, group) in enumerate(groups)
        if pixels >= _LABELLED_ROW_PIXELS or position % 4 == 0
    ]  # fmt: skip
    tops = figures.row_tops(len(groups))
    rows += [_metric_name(metric, top) for metric, top in zip(METRICS, tops, strict=True)]
    return html.Div(rows, className="gutter", **{"data-chart": "job-instrument"})


def _tensor(device: DeviceEfficiency) -> float | None:
    return device.means.get("tensor_active")


def _gpu_name(
    label: str, devices: list[DeviceEfficiency], top: int, pixels: int, lowest: float | None
) -> Component:
    means = [mean for device in devices if (mean := _tensor(device)) is not None]
    mean = sum(means) / len(means) if means else None
    rank = devices[0].rank if len(devices) == 1 else None
    warm = " warm" if lowest is not None and mean == lowest else ""
    return html.Div(
        [
            html.Span(_place(label), className="place", title=label),
            html.Span("" if rank is None else f"rank {rank}", className="rank"),
            html.Span(percent(mean), className=f"value{warm}"),
        ],
        className="gpu",
        style={"top": f"{top}px", "height": f"{max(pixels, 14)}px"},
    )


def _place(label: str) -> list[Component | str]:
    """The node can be left out where there is no room; the ordinal stays."""
    node, colon, ordinal = label.rpartition(":")
    return [html.Span(node + colon, className="node"), ordinal] if colon else [label]


def _metric_name(metric: str, top: int) -> Component:
    _, unit = scale_of(metric)
    return html.Div(
        [
            html.H3(BY_NAME[metric].label),
            html.Div([html.Span(**{"data-now": metric}), html.Small(unit)], className="now"),
            html.Div(className="range", **{"data-range": metric}),
        ],
        className="row",
        style={"top": f"{top}px"},
    )


def gpu_card(data: JobData) -> Component:
    """The table of GPUs."""
    lowest = outlier([_tensor(device) for device in data.devices])
    why = "no sample has told it"

    def mean(metric: str, text: Callable[[float | None], str]) -> Callable[..., Component | str]:
        return lambda device: or_dash(text(device.means.get(metric)), why)

    def tensor(device: DeviceEfficiency) -> Component:
        value = _tensor(device)
        warm = "warm" if lowest is not None and value == lowest else ""
        text = html.Span(or_dash(percent(value), why), className=f"bar-number {warm}")
        return html.Span([text, inline_bar(value)], className="value-with-bar")

    def throttled(device: DeviceEfficiency) -> Component | str:
        share = device.means.get("throttled_share")
        text = or_dash(percent(share), why)
        return html.Span(text, className="warm") if (share or 0) > _WARM_THROTTLED_SHARE else text

    columns: tuple[Column[DeviceEfficiency], ...] = (
        Column("", lambda device: glyph(device.state_now)),
        Column("GPU", lambda device: html.Span(device.place, className="mono")),
        Column("Rank", lambda device: or_dash(
            "–" if device.rank is None else str(device.rank), "its process does not report"),
            "number optional"),
        Column("Tensor, mean", tensor),
        Column("SM", mean("sm_active", percent), "number"),
        Column("DRAM", mean("dram_active", percent), "number optional"),
        Column("Memory, max", lambda device: or_dash(
            gibibytes(device.maxima.get("memory_used_mib")), why), "number optional"),
        Column("Power", mean("power_watts", watts), "number"),
        Column("SM clock", mean("sm_clock_mhz", megahertz), "number optional"),
        Column("Temp.", mean("temperature_c", celsius), "number optional"),
        Column("Throttled", throttled, "number optional"),
    )  # fmt: skip
    note = "means over the job so far" if data.is_live else "means over the job"
    return card("GPUs", table(columns, data.devices, "GPUs of the job"), note=note)
