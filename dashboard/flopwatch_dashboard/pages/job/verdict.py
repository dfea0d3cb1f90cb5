"""One sentence that says whether a job uses its GPUs, from its figures alone.

Thresholds: SM activity of 80 % or more is what NVIDIA's DCGM guide asks of effective use, under
50 % is likely ineffective; "well used" also needs tensor activity of 50 % or MFU of 40 %. Under
15 % is "low", as everywhere. Idle time counts from a tenth of what was allocated.
"""

from collections.abc import Sequence
from datetime import UTC, datetime

from dash.development.base_component import Component

from flopwatch_dashboard.components import clock
from flopwatch_dashboard.format import age, gpu_hours, percent, plural
from flopwatch_dashboard.words import gpus_in_words
from flopwatch_server.efficiency.schemas import Efficiency, Mfu, SeriesGap
from flopwatch_server.jobs.schemas import AllocationView, RunView

SM_WELL = 0.80
SM_BUSY = 0.50
SM_LOW = 0.15
TENSOR_WELL = 0.50
TENSOR_UNUSED = 0.02
MFU_WELL = 0.40
IDLE_SHARE = 0.10


def verdict(
    run: RunView, efficiency: Efficiency, idle: Sequence[AllocationView], mfu: Mfu | None,
    now: datetime,
) -> str:  # fmt: skip
    """The sentence. `idle` are the GPUs that stand idle now."""
    if run.started_at is None:
        return _waiting(run, now)
    sm = efficiency.means.get("sm_active")
    if efficiency.state_seconds.total and not efficiency.coverage and sm is None:
        return _without_samples(run)
    if idle:
        return _idle_now(run, efficiency, idle, now)
    states = efficiency.state_seconds
    known = states.total - states.unknown - states.shared
    if known and states.idle / known >= IDLE_SHARE:
        return (
            f"The {_gpus(run)} stood idle for {percent(states.idle / known)} of the time"
            f"{_so_far(run)}: "
            f"{gpu_hours(states.idle / 3600)} of {gpu_hours(states.total / 3600)} GPU-h."
        )
    if sm is None:
        return "SM activity is not measured here, so how well the job uses its GPUs is unknown."
    tensor = efficiency.means.get("tensor_active")
    return f"{_use(run, sm, tensor, mfu)}: {_facts(sm, tensor, mfu)}."


def _waiting(run: RunView, now: datetime) -> str:
    waited = age(((run.ended_at or now) - run.submitted_at).total_seconds())
    if run.ended_at is not None:
        became = run.state.replace("_", " ").lower()
        return f"The job never started: it waited {waited} in the queue and was {became}."
    wish = f" for {plural(run.gpus, 'GPU')}" if run.gpus else ""
    why = f"; the scheduler says {run.reason}" if run.reason and run.reason != "None" else ""
    return f"The job has waited{wish} for {waited}{why}."


def _without_samples(run: RunView) -> str:
    nodes = ", ".join(run.nodes[:3]) + (" and others" if len(run.nodes) > 3 else "")
    where = f" from {nodes}" if nodes else ""
    if not run.gpus:
        return "The job holds no GPU, so there is nothing to measure."
    is_or_was = "was" if run.ended_at else "is"
    return f"No samples{where} since the job started: {is_or_was} an agent running there?"


def _idle_now(
    run: RunView, efficiency: Efficiency, idle: Sequence[AllocationView], now: datetime
) -> str:
    now_held = efficiency.gpus_now
    held = now_held.active + now_held.low + now_held.idle + now_held.shared + now_held.unknown
    which = gpus_in_words(len(idle), max(held, len(idle)))
    since = [held.since for held in idle if held.since is not None]
    # As long as all of them: nobody is accused of more than is true of each.
    long = f" for {age((now - max(since)).total_seconds())}" if since else ""
    lost = efficiency.state_seconds.idle / 3600
    price = (
        f"; the job has lost {gpu_hours(lost)} GPU-h to idle GPUs so far" if lost >= 0.05 else ""
    )
    verb = "has" if len(idle) == 1 else "have"
    return f"{which} {verb} been idle{long}{price}."


def _use(run: RunView, sm: float, tensor: float | None, mfu: Mfu | None) -> str:
    train = mfu.train_mfu if mfu else None
    uses = "used" if run.ended_at else "uses"
    gpus = _gpus(run)
    if sm < SM_LOW:
        return f"The job hardly {uses} its {gpus}"
    if sm >= SM_WELL and ((tensor or 0) >= TENSOR_WELL or (train or 0) >= MFU_WELL):
        return f"The job {uses} its {gpus} well"
    if sm >= SM_BUSY and tensor is not None and tensor < TENSOR_UNUSED:
        one, many = ("was", "were") if run.ended_at else ("is", "are")
        gpus_are, their = (one, "its") if run.gpus == 1 else (many, "their")
        return f"The {gpus} {gpus_are} busy, but {their} tensor cores {many} unused"
    if sm < SM_BUSY:
        work = "worked" if run.ended_at else "works" if run.gpus == 1 else "work"
        return f"The {gpus} {work} less than half of the time"
    return f"The job {uses} part of what its {gpus} can do"


def _gpus(run: RunView) -> str:
    return "GPU" if run.gpus == 1 else "GPUs"


def _facts(sm: float, tensor: float | None, mfu: Mfu | None) -> str:
    facts = [f"SM active {percent(sm)}"]
    if tensor is not None:
        facts.append(f"tensor active {percent(tensor)}")
    if mfu is not None and mfu.train_mfu is not None:
        facts.append(f"MFU {percent(mfu.train_mfu)} while training")
    return ", ".join(facts)


def _so_far(run: RunView) -> str:
    return " so far" if run.ended_at is None else ""


def outlier(values: Sequence[float | None], share: float = 0.10) -> float | None:
    """The lowest of `values` if it is more than `share` below their median; else None."""
    known = sorted(value for value in values if value is not None)
    if len(known) < 3:
        return None
    median = known[len(known) // 2]
    return known[0] if known[0] < (1 - share) * median else None


def gap_text(gap: SeriesGap) -> list[Component | str]:
    """ "10:55 to 11:04: agent restart, 9 min without data"."""
    first, last = (datetime.fromtimestamp(moment, UTC) for moment in (gap.start, gap.end))
    why = f"{gap.cause}, " if gap.cause else ""
    return [clock(first), " to ", clock(last), f": {why}{age(gap.end - gap.start)} without data"]
