"""Model FLOPs Utilization: the definitions, as pure functions.

MFU is the work a model needs over the work its GPUs could have done in the same time (PaLM,
arXiv 2204.02311, appendix B): forward and backward matmuls, attention as the full square even
where a mask is causal, no recomputation. Work in several dtypes is put on one scale by time: each
dtype's FLOPs over that dtype's dense peak is the time an ideal GPU would take, and the sum of these
times over the real time is the utilization. With one dtype this is PaLM's formula.

* *train MFU*: real time is the time between optimizer steps.
* *job MFU*: real time is all the time in which GPUs were allocated: start-up, evaluation,
  checkpoints and stalls included. The same FLOPs stand above the line.

A value is a fraction: 0.5 is 50 %. A value over 1 is possible only if an input is wrong or a
GPU boosts over its nominal clock; it is for the caller to flag, so it is not clipped here.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from flopwatch.gpus import Gpu


@dataclass(frozen=True, slots=True)
class Work:
    """What one rank has trained: its local FLOPs by dtype, the seconds between its optimizer
    steps, and the GPU that did it (None where the model of GPU is not known)."""

    flops_by_dtype: Mapping[str, float]
    train_seconds: float
    gpu: Gpu | None


def ideal_seconds(flops_by_dtype: Mapping[str, float], gpu: Gpu) -> float | None:
    """Seconds in which the GPU could do this work at its dense peaks.

    None if the peak of a dtype in use is not known; a dtype without work asks for no peak.
    """
    total = 0.0
    for dtype, flops in flops_by_dtype.items():
        if flops == 0:
            continue
        peak = gpu.peak_flops(dtype)
        if peak is None:
            return None
        total += flops / peak
    return total


def train_mfu(ranks: Iterable[Work]) -> float | None:
    """MFU of a job between optimizer steps: ideal over real seconds, each summed over ranks.

    None if no rank reports, a rank's GPU or peak is not known, or no time has passed.
    """
    ranks = list(ranks)
    return job_mfu(ranks, sum(rank.train_seconds for rank in ranks))


def job_mfu(ranks: Iterable[Work], allocated_seconds: float) -> float | None:
    """MFU of a job over all the time its GPUs were allocated, summed over those GPUs.

    None if no rank reports, a rank's GPU or peak is not known, or no time has passed.
    """
    ideals: list[float] = []
    for rank in ranks:
        ideal = ideal_seconds(rank.flops_by_dtype, rank.gpu) if rank.gpu else None
        if ideal is None:
            return None
        ideals.append(ideal)
    return sum(ideals) / allocated_seconds if ideals and allocated_seconds > 0 else None
