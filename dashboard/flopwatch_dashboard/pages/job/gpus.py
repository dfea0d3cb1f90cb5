"""The table of GPUs: the strip in numbers, and what else was measured of each."""

from collections.abc import Callable
from dataclasses import dataclass

from dash import html
from dash.development.base_component import Component

from flopwatch_dashboard.components import Column, card, glyph, inline_bar, or_dash, table
from flopwatch_dashboard.format import DASH, celsius, gibibytes, megahertz, percent, watts
from flopwatch_dashboard.pages.job.data import JobData
from flopwatch_dashboard.pages.job.quality import why_missing
from flopwatch_dashboard.pages.job.verdict import outlier
from flopwatch_server.efficiency.schemas import DeviceEfficiency

_WARM_THROTTLED_SHARE = 0.05
Cell = Callable[[DeviceEfficiency], Component | str]


def gpu_card(data: JobData) -> Component:
    """The table of GPUs."""
    cells = _Cells(data, outlier([device.means.get("tensor_active") for device in data.devices]))
    columns: tuple[Column[DeviceEfficiency], ...] = (
        Column("", lambda device: glyph(device.state_now)),
        Column("GPU", lambda device: html.Span(device.place, className="mono")),
        Column("Rank", cells.rank, "number optional"),
        Column("Tensor, mean", cells.tensor),
        Column("SM", cells.mean("sm_active", percent), "number"),
        Column("DRAM", cells.mean("dram_active", percent), "number optional"),
        Column("Memory, max", cells.memory, "number optional"),
        Column("Power", cells.mean("power_watts", watts), "number"),
        Column("SM clock", cells.mean("sm_clock_mhz", megahertz), "number optional"),
        Column("Temp.", cells.mean("temperature_c", celsius), "number optional"),
        Column("Throttled", cells.throttled, "number optional"),
    )
    note = "means over the job so far" if data.is_live else "means over the job"
    return card("GPUs", table(columns, data.devices, "GPUs of the job"), note=note)


@dataclass(frozen=True)
class _Cells:
    """Cells that need to know the job: why a value is missing, which GPU falls behind."""

    data: JobData
    lowest_tensor: float | None

    def mean(self, metric: str, text: Callable[[float | None], str]) -> Cell:
        why = why_missing(self.data, metric)
        return lambda device: or_dash(text(device.means.get(metric)), why)

    def rank(self, device: DeviceEfficiency) -> Component | str:
        text = DASH if device.rank is None else str(device.rank)
        return or_dash(text, "its process does not report")

    def tensor(self, device: DeviceEfficiency) -> Component:
        value = device.means.get("tensor_active")
        falls_behind = value is not None and value == self.lowest_tensor
        text = or_dash(percent(value), why_missing(self.data, "tensor_active"))
        number = html.Span(text, className="bar-number warm" if falls_behind else "bar-number")
        return html.Span([number, inline_bar(value)], className="value-with-bar")

    def memory(self, device: DeviceEfficiency) -> Component | str:
        text = gibibytes(device.maxima.get("memory_used_mib"))
        return or_dash(text, why_missing(self.data, "memory_used_mib"))

    def throttled(self, device: DeviceEfficiency) -> Component | str:
        share = device.means.get("throttled_share")
        text = or_dash(percent(share), why_missing(self.data, "throttled_share"))
        return html.Span(text, className="warm") if (share or 0) > _WARM_THROTTLED_SHARE else text
