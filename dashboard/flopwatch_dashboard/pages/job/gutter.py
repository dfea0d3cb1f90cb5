"""The names beside the instrument; the browser writes the numbers of its rows."""

from dash import html
from dash.development.base_component import Component

from flopwatch.metrics import BY_NAME
from flopwatch_dashboard.format import percent
from flopwatch_dashboard.pages.job import figures
from flopwatch_dashboard.pages.job.data import METRICS, JobData
from flopwatch_dashboard.pages.job.points import scale_of, strip_groups
from flopwatch_dashboard.pages.job.verdict import outlier
from flopwatch_server.efficiency.schemas import DeviceEfficiency

_LABELLED_ROW_PIXELS = 16


def gutter(data: JobData) -> Component:
    """Names at the left of the instrument. The browser writes the numbers of the metrics."""
    assert data.series is not None
    groups = strip_groups(data.series.devices)
    pixels = figures.strip_row_pixels(len(groups))
    by_place = {device.place: device for device in data.devices}
    lowest = outlier([device.means.get("tensor_active") for device in data.devices])
    rows = [
        _gpu_name(label, [by_place[d.place] for d in group if d.place in by_place],
                  figures.STRIP_TOP + position * pixels, pixels, lowest)
        for position, (label, group) in enumerate(groups)
        if pixels >= _LABELLED_ROW_PIXELS or position % 4 == 0
    ]  # fmt: skip
    tops = figures.row_tops(len(groups))
    rows += [_metric_name(metric, top) for metric, top in zip(METRICS, tops, strict=True)]
    return html.Div(rows, className="gutter", **{"data-chart": "job-instrument"})


def _gpu_name(
    label: str, devices: list[DeviceEfficiency], top: int, pixels: int, lowest: float | None
) -> Component:
    means = [mean for device in devices if (mean := device.means.get("tensor_active")) is not None]
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
