"""Puts everything the agent learnt in an interval into one batch."""

import math
from array import array
from collections.abc import Iterable, Mapping

from flopwatch.metrics import COLUMNS, SAMPLE_PERIOD_SECONDS
from flopwatch.wire import (
    AttributedReport,
    Batch,
    Device,
    Epoch,
    Event,
    Evidence,
    Gap,
    HostUsage,
    LocalRun,
    Missing,
    Samples,
    Source,
    encode_batch,
)
from flopwatch_agent.inventory import Key
from flopwatch_agent.sampler import Interval
from flopwatch_agent.spool import SpooledBatch


class BatchBuilder:
    """One batch in the making. Devices are named by their place in it."""

    def __init__(self, node: str, epoch: Epoch, devices: dict[Key, Device], gaps: list[Gap]):
        self.index = {key: place for place, key in enumerate(devices)}
        self._values = array("f")
        self._batch = Batch(
            node,
            epoch,
            devices=list(devices.values()),
            samples=Samples(columns=list(COLUMNS)),
            gaps=list(gaps),
        )

    def add_interval(self, key: Key, interval: Interval) -> None:
        """Add a row and what happened; where too few readings came, the gap that this leaves."""
        if key not in self.index:
            return
        self._batch.events += [
            Event(self.index[key], float(each.second), each.kind, each.value, each.detail)
            for each in interval.happenings
        ]
        if interval.covered:
            self._batch.samples.device.append(self.index[key])
            self._batch.samples.time.append(interval.end)
            self._values.extend(_number(interval, metric) for metric in COLUMNS)
        elif interval.readings:
            self.add_gap(
                Gap(
                    interval.end - SAMPLE_PERIOD_SECONDS,
                    interval.end,
                    f"only {interval.readings} readings",
                    self.index[key],
                )
            )

    def add_gap(self, gap: Gap) -> None:
        """Add what is lost for good."""
        self._batch.gaps.append(gap)

    def add_missing(self, changes: Iterable[Missing]) -> None:
        """Add metrics that lost or regained their value."""
        self._batch.missing += changes

    def add_sources(self, changes: Iterable[Source]) -> None:
        """Add devices whose activity comes from another collector now."""
        self._batch.sources += changes

    def add_evidence(self, evidence: Iterable[Evidence]) -> None:
        """Add signs of who holds which GPU."""
        self._batch.evidence += evidence

    def add_reports(self, reports: Iterable[AttributedReport]) -> None:
        """Add what training processes told."""
        self._batch.reports += reports

    def add_host(self, usages: Iterable[HostUsage]) -> None:
        """Add CPU and memory of the node and of its jobs."""
        self._batch.host += usages

    def add_local_runs(self, runs: Iterable[LocalRun]) -> None:
        """Add the runs of a machine without a scheduler."""
        self._batch.local_runs += runs

    def add_capabilities(self, found: Mapping[str, str]) -> None:
        """Add what can be seen on the node."""
        self._batch.capabilities |= found

    def finish(self) -> SpooledBatch:
        """The encoded batch as the spool takes it."""
        times = self._batch.samples.time
        span = (min(times) - SAMPLE_PERIOD_SECONDS, max(times)) if times else (0, 0)
        gaps = [gap for gap in self._batch.gaps if gap.device is None]
        return SpooledBatch(encode_batch(self._batch, self._values), span, gaps)


def _number(interval: Interval, metric: str) -> float:
    value = interval.values.get(metric)
    return value if isinstance(value, float) else math.nan
