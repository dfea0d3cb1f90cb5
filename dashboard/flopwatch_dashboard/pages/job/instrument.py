"""The points of the instrument while it is open: which of them a browser has to get anew."""

from dataclasses import asdict, dataclass
from functools import cached_property

from flopwatch_dashboard.components.chart import Message
from flopwatch_dashboard.pages.job import figures
from flopwatch_dashboard.pages.job.data import METRICS
from flopwatch_dashboard.pages.job.points import Points, points_of
from flopwatch_server.efficiency.schemas import RunSeries


@dataclass(frozen=True)
class Instrument:
    """Points later than `covers`, where 0 is the whole window; gaps are of the window always."""

    series: RunSeries
    power_limit_watts: float | None
    window: str
    covers: int

    @cached_property
    def points(self) -> Points:
        return points_of(self.series, METRICS)

    def message(self, before: "Instrument | None") -> Message:
        """The points from the first on that differs; `whole` tells that they are all there are."""
        first = 0 if before is None else self._first_other(before)
        return {
            "kind": "instrument",
            "points": asdict(self.points.since(first)),
            "whole": self.covers == 0 and first == 0,
            "range": figures.window_range(self.series),
            "window": self.window,
            **figures.marks(self.series, self.power_limit_watts),
        }

    def was_filled_since(self, before: "Instrument") -> bool:
        """Whether points have come where `before` told of a gap, too far back to be compared."""
        start, since = self.series.start, self._compared_since(before)
        return any(
            not any(now.start <= max(gap.start, start) and now.end >= gap.end
                    for now in self.series.gaps)
            for gap in before.series.gaps
            if start < gap.end and gap.start < since
        )  # fmt: skip

    def _compared_since(self, before: "Instrument") -> int:
        return max(self.covers, before.covers)

    def _first_other(self, before: "Instrument") -> int:
        """The position of the first point that `before` had not, or had otherwise."""
        if before.series.step_seconds != self.series.step_seconds or self.was_filled_since(before):
            return 0
        then = {time: position for position, time in enumerate(before.series.times)}
        since = self._compared_since(before)
        for position, time in enumerate(self.series.times):
            if time <= since:
                continue
            known = then.get(time)
            if known is None or before.points.column(known) != self.points.column(position):
                return position
        return len(self.series.times)
