"""MFU of a run from the cumulative reports of its training processes."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from itertools import groupby

from flopwatch import mfu
from flopwatch.gpus import PeakTable
from flopwatch_server.efficiency.schemas import Mfu, MfuPoint
from flopwatch_server.telemetry.models import HookCounter

MOST_PLAUSIBLE = 1.0
"""An MFU above this needs a wrong input (a peak, a device name) or a clock above the nominal."""


def of_run(
    reports: Sequence[HookCounter], allocated_seconds: float | None, peaks: PeakTable
) -> Mfu:
    """MFU of a run from the newest report of each process (one at least).

    A training that was started again within the run has several processes a rank: they add up.
    `allocated_seconds` is all allocated GPU time so far, None where it is not known.
    """
    work = [_work(report, peaks) for report in reports]
    reason = _why_none(reports, peaks)
    train = None if reason else mfu.train_mfu(work)
    job = None if reason or not allocated_seconds else mfu.job_mfu(work, allocated_seconds)
    last = max(reports, key=lambda report: report.received_at)
    flops = _flops_by_dtype(reports)
    seconds = sum(report.train_seconds for report in reports)
    dtype = max(flops, key=lambda name: flops[name], default=None)
    name = Counter(report.device_name for report in reports).most_common(1)[0][0]
    gpu = peaks.lookup(name)
    return Mfu(
        train_mfu=train,
        job_mfu=job,
        train_share=job / train if job and train else None,
        reason=reason,
        note=_note(reports, train, last.world_size),
        convention=last.convention,
        ranks=len({report.rank for report in reports}),
        steps=_most_steps(reports),
        step_seconds=_step_seconds(reports),
        flops_per_second=sum(flops.values()) / seconds if seconds and flops else None,
        peak_flops=gpu.peak_flops(dtype) if gpu and dtype else None,
        dtype=dtype,
        device_name=name,
        reported_at=last.received_at,
    )


def by_step(
    rows: Iterable[tuple[datetime, HookCounter]],
    read_from: datetime,
    start: datetime,
    peaks: PeakTable,
) -> list[MfuPoint]:
    """Train MFU of each step that ends after `start`, from differences of cumulative counters.

    `rows` are (end of the step, last report of a process in it), by process and time, later than
    `read_from`, which lies some steps before `start`. A process that began after it counts from
    zero; of an older one the first row is only what the next is compared with.
    """
    work: dict[datetime, list[mfu.Work]] = {}
    unknown: set[datetime] = set()
    for _, process in groupby(rows, key=lambda row: (row[1].node_id, row[1].boot, row[1].rank)):
        before: HookCounter | None = None
        for time, report in process:
            is_whole = before is not None or _began_at(report) >= read_from.timestamp()
            if time > start and is_whole:
                if _why_none([report], peaks):
                    unknown.add(time)
                work.setdefault(time, []).append(_difference(report, before, peaks))
            before = report
    return [
        MfuPoint(
            time=int(time.timestamp()),
            train_mfu=None if time in unknown else mfu.train_mfu(work[time]),
        )
        for time in sorted(work)
    ]


def _began_at(report: HookCounter) -> float:
    """In seconds since 1970, since a process may claim to run for longer than dates reach."""
    return report.received_at.timestamp() - report.elapsed_seconds


def _difference(report: HookCounter, before: HookCounter | None, peaks: PeakTable) -> mfu.Work:
    if before is None:
        return _work(report, peaks)
    flops = {
        dtype: count - before.train_flops.get(dtype, 0.0)
        for dtype, count in report.train_flops.items()
    }
    seconds = report.train_seconds - before.train_seconds
    return mfu.Work(flops, seconds, peaks.lookup(report.device_name))


def _work(report: HookCounter, peaks: PeakTable) -> mfu.Work:
    return mfu.Work(report.train_flops, report.train_seconds, peaks.lookup(report.device_name))


def _why_none(reports: Sequence[HookCounter], peaks: PeakTable) -> str | None:
    for report in reports:
        if report.reason:
            return report.reason
    for report in reports:
        gpu = peaks.lookup(report.device_name)
        for dtype, flops in report.train_flops.items():
            if flops and (gpu is None or gpu.peak_flops(dtype) is None):
                return f"peak of {report.device_name} for {dtype} is not known"
    if not any(report.train_seconds for report in reports):
        return "no optimizer step reported yet"
    return None


def _note(reports: Sequence[HookCounter], train: float | None, world_size: int) -> str | None:
    notes = []
    ranks = len({report.rank for report in reports})
    if ranks < world_size:
        notes.append(f"{ranks} of {world_size} ranks report")
    if train is not None and train > MOST_PLAUSIBLE:
        notes.append(
            f"a train MFU of {train:.0%} is implausible: check the peak of {reports[0].device_name}"
        )
    return "; ".join(notes) or None


def _flops_by_dtype(reports: Sequence[HookCounter]) -> Mapping[str, float]:
    total: dict[str, float] = {}
    for report in reports:
        for dtype, flops in report.train_flops.items():
            total[dtype] = total.get(dtype, 0.0) + flops
    return {dtype: flops for dtype, flops in total.items() if flops}


def _most_steps(reports: Sequence[HookCounter]) -> int:
    steps: Counter[int] = Counter()
    for report in reports:
        steps[report.rank] += report.steps
    return max(steps.values())


def _step_seconds(reports: Sequence[HookCounter]) -> float | None:
    steps = sum(report.steps for report in reports)
    return sum(report.train_seconds for report in reports) / steps if steps else None
