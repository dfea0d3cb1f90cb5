"""The series of all GPUs as the instrument draws them: a strip, and mean and band by metric."""

from collections.abc import Sequence
from dataclasses import dataclass

from flopwatch.metrics import BY_NAME
from flopwatch_dashboard.format import axis_time
from flopwatch_server.efficiency.schemas import DeviceSeries, RunSeries

Values = list[float | None]
MOST_STRIP_ROWS = 32
"""With more GPUs than this, a row of the strip is a node: the mean of its GPUs."""


@dataclass(frozen=True)
class MetricRow:
    """One metric over all GPUs at each time, in the unit of the screen: percent, or its own."""

    mean: Values
    low: Values
    high: Values
    text: list[str | None]

    def since(self, first: int) -> "MetricRow":
        """The values from a position on."""
        return MetricRow(self.mean[first:], self.low[first:], self.high[first:], self.text[first:])


@dataclass(frozen=True)
class Points:
    """Everything on one time axis. `idle` is 1 where a row of the strip was idle, else None."""

    x: list[int]
    rows: dict[str, MetricRow]
    labels: list[str]
    strip: list[Values]
    idle: list[Values]

    def column(self, position: int) -> tuple[object, ...]:
        """All that is drawn at one time."""
        rows = self.rows.values()
        values = (value for row in rows for value in (row.mean, row.low, row.high))
        return tuple(row[position] for row in (*values, *self.strip, *self.idle))

    def since(self, first: int) -> "Points":
        """The points from a position on."""
        return Points(
            x=self.x[first:],
            rows={name: row.since(first) for name, row in self.rows.items()},
            labels=self.labels,
            strip=[row[first:] for row in self.strip],
            idle=[row[first:] for row in self.idle],
        )


def points_of(series: RunSeries, metrics: Sequence[str]) -> Points:
    """The points of a series; the first metric is also the strip."""
    groups = strip_groups(series.devices)
    return Points(
        x=[axis_time(time) - series.step_seconds * 500 for time in series.times],
        rows={metric: _metric_row(metric, series) for metric in metrics},
        labels=[label for label, _ in groups],
        strip=[_strip_row(metrics[0], group, len(series.times)) for _, group in groups],
        idle=[_idle_row(group, len(series.times)) for _, group in groups],
    )


def strip_groups(devices: Sequence[DeviceSeries]) -> list[tuple[str, list[DeviceSeries]]]:
    """One row a GPU, or a node where the GPUs are many."""
    if len(devices) <= MOST_STRIP_ROWS:
        return [(device.place, [device]) for device in devices]
    nodes: dict[str, list[DeviceSeries]] = {}
    for device in devices:
        nodes.setdefault(device.place.rpartition(":")[0], []).append(device)
    return list(nodes.items())


def scale_of(metric: str) -> tuple[float, str]:
    """What a value is multiplied with for the screen, and its unit there."""
    unit = BY_NAME[metric].unit
    return (100.0, "%") if unit == "ratio" else (1.0, unit)


def _metric_row(metric: str, series: RunSeries) -> MetricRow:
    factor, unit = scale_of(metric)
    columns = zip(*(device.values[metric] for device in series.devices), strict=True)
    known = [[factor * value for value in column if value is not None] for column in columns]
    mean = [_rounded(sum(column) / len(column)) if column else None for column in known]
    low = [_rounded(min(column)) if column else None for column in known]
    high = [_rounded(max(column)) if column else None for column in known]
    text = [
        f"{_short(middle)} {unit} ({_range(lowest, highest)})"
        if middle is not None and lowest is not None and highest is not None
        else None
        for middle, lowest, highest in zip(mean, low, high, strict=True)
    ]
    return MetricRow(mean, low, high, text)


def _strip_row(metric: str, group: Sequence[DeviceSeries], length: int) -> Values:
    factor, _ = scale_of(metric)
    row: Values = []
    for position in range(length):
        known = [v for d in group if (v := d.values[metric][position]) is not None]
        row.append(_rounded(factor * sum(known) / len(known)) if known else None)
    return row


def _idle_row(group: Sequence[DeviceSeries], length: int) -> Values:
    """Idle where every GPU of the row with a known state is."""
    row: Values = []
    for position in range(length):
        states = {device.states[position] for device in group} - {None, "unknown"}
        row.append(1.0 if states == {"idle"} else None)
    return row


def _rounded(value: float) -> float:
    return round(value, 1)


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 9.95 or value == 0 else f"{value:.1f}"


def _range(low: float, high: float) -> str:
    return _short(low) if _short(low) == _short(high) else f"{_short(low)}–{_short(high)}"
