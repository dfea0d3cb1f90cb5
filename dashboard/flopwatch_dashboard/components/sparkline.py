"""A sparkline as two masks over a token's colour, so that it follows the colour scheme."""

from collections.abc import Iterable, Sequence
from urllib.parse import quote

from dash import html
from dash.development.base_component import Component

_WIDTH = 100.0
_HEIGHT = 24.0
_MARGIN = 2.0
_SAFE = "/:=' "


def sparkline(values: Sequence[float | None], tone: str = "") -> Component:
    """The shape of a series, scaled to its own range; it breaks where values are missing.

    What never changes lies in the middle, and on the base line if it is 0.
    """
    known = [value for value in values if value is not None]
    if len(known) < 2:
        return html.Div(className="spark", style={"visibility": "hidden"})
    runs = list(_runs(values, min(known), max(known)))
    line = "".join(f"M{_path(run)}" for run in runs)
    area = "".join(
        f"M{run[0][0]:.1f} {_HEIGHT} L{_path(run)} L{run[-1][0]:.1f} {_HEIGHT}Z" for run in runs
    )
    stroke = "fill='none' stroke='black' stroke-width='1.25' vector-effect='non-scaling-stroke'"
    return html.Div(
        className=f"spark {tone}",
        style={"--line-mask": _mask(line, stroke), "--area-mask": _mask(area, "fill='black'")},
        **{"aria-hidden": "true"},
    )


def _runs(
    values: Sequence[float | None], lowest: float, highest: float
) -> Iterable[list[tuple[float, float]]]:
    """Unbroken runs of points in the picture's coordinates."""
    span = highest - lowest
    step = _WIDTH / (len(values) - 1)
    run: list[tuple[float, float]] = []
    for position, value in enumerate(values):
        if value is not None:
            level = (value - lowest) / span if span else 0.5 * (value != 0)
            run.append((position * step, _HEIGHT - _MARGIN - level * (_HEIGHT - 2 * _MARGIN)))
        elif run:
            yield run
            run = []
    if run:
        yield run


def _path(run: Sequence[tuple[float, float]]) -> str:
    return " L".join(f"{x:.1f} {y:.1f}" for x, y in run)


def _mask(path: str, style: str) -> str:
    svg = (
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {_WIDTH:.0f} {_HEIGHT:.0f}' "
        f"preserveAspectRatio='none'><path d='{path}' {style}/></svg>"
    )
    return f'url("data:image/svg+xml,{quote(svg, safe=_SAFE)}")'
