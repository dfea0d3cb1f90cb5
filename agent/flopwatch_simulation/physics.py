"""What a GPU shows while it does something: one row of a sample, each column fit for the others.

A load describes the busy 1 Hz sub-samples of an interval and the share of those that stall; means,
extremes, power, clocks and temperature follow from them. Figures are of an H100 SXM (700 W, 80 GB).
"""

from dataclasses import dataclass

MODEL = "NVIDIA H100 80GB HBM3"
MEMORY_MIB = 81559.0
POWER_LIMIT_WATTS = 700.0
IDLE_WATTS = 70.0
CONTEXT_WATTS = 42.0
"""What an open CUDA context costs by keeping the clocks up."""

BOOST_CLOCK_MHZ = 1980.0
IDLE_CLOCK_MHZ = 345.0
PEAK_FLOPS = {"bfloat16": 989.5e12, "float32": 67e12}
"""Dense peaks of NVIDIA's data sheet, in FLOP/s."""

INTERVAL_SECONDS = 10
STALLED_ENGINE = 0.02
ENGINE_BUSY = 0.985
WAVE_DEPTH = 0.03
"""How far a job's slow wave swings around its mean."""

# Watts at full activity of each unit, fitted by eye to published draws: about 600 W for a tuned
# language model, 440 W for single precision.
_WATTS = {"sm": 190.0, "tensor": 430.0, "dram": 160.0, "fp32": 260.0, "fp16": 100.0, "fp64": 450.0}
_MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Load:
    """What one GPU does in its busy sub-samples. Ratios are fractions, traffic is bytes/s.

    `stalled` is the mean share of sub-samples in which the engine waits; `throttled` the share in
    which heat holds the clock down.
    """

    sm: float = 0.0
    occupancy: float = 0.0
    tensor: float = 0.0
    dram: float = 0.0
    fp64: float = 0.0
    fp32: float = 0.0
    fp16: float = 0.0
    stalled: float = 0.0
    memory_mib: float = 0.0
    pcie_tx: float = 0.0
    pcie_rx: float = 0.0
    nvlink: float = 0.0
    clock_mhz: float = BOOST_CLOCK_MHZ
    throttled: float = 0.0
    extra_celsius: float = 0.0

    @property
    def has_context(self) -> bool:
        """Whether a process holds the GPU open."""
        return self.memory_mib > 0


FREE = Load(clock_mhz=IDLE_CLOCK_MHZ)


def noise(key: int) -> int:
    """64 well mixed bits of `key` (splitmix64, Steele et al. 2014): noise without a state."""
    mixed = (key + 0x9E3779B97F4A7C15) & _MASK
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
    return mixed ^ (mixed >> 31)


def sample_row(load: Load, bits: int, wave: float, paused: bool) -> list[float]:
    """One interval's values in the order of `flopwatch.metrics.COLUMNS`.

    `bits` is 64 bits of noise; `wave` in [-1, 1] is the job's slow wave; `paused` means that the
    job stalls for the whole interval, as while it saves a checkpoint.
    """
    noise_1 = (bits & 0xFFFF) / 32768 - 1
    noise_2 = (bits >> 16 & 0xFFFF) / 32768 - 1
    noise_3 = (bits >> 32 & 0xFFFF) / 32768 - 1
    noise_4 = (bits >> 48) / 32768 - 1
    if load.sm == 0:
        return _resting_row(load, noise_1, noise_2)
    stalls = 10 if paused else _stalled_subsamples(load.stalled, noise_2)
    busy = (10 - stalls) / 10
    level = 1 + WAVE_DEPTH * wave + 0.015 * noise_1
    sm_busy = load.sm * level
    sm = sm_busy * busy
    tensor = load.tensor * level * (1 + 0.01 * noise_3) * busy
    dram = load.dram * (1 + 0.02 * noise_3) * busy
    fp32, fp16, fp64 = load.fp32 * level * busy, load.fp16 * level * busy, load.fp64 * level * busy
    engine = ENGINE_BUSY * busy + STALLED_ENGINE * (1 - busy)
    power = _power(load, sm, tensor, dram, fp32, fp16, fp64) * (1 + 0.01 * noise_4)
    spread = 0.02 + 0.015 * abs(noise_4)
    traffic = busy * (1 + 0.05 * noise_4)
    return [
        engine, sm, load.occupancy * level * busy, tensor, dram, fp64, fp32, fp16,
        round(busy + (1 - busy) * STALLED_ENGINE, 2),
        round(load.memory_mib * (1 + 0.001 * noise_2)),
        power, power * INTERVAL_SECONDS,
        load.clock_mhz if load.throttled == 0 else load.clock_mhz + round(20 * noise_2),
        _celsius(power, load, noise_3),
        load.pcie_tx * traffic, load.pcie_rx * traffic,
        load.nvlink * traffic, load.nvlink * traffic,
        round(load.throttled * 10 + noise_3) / 10 if load.throttled else 0.0,
        stalls / 10,
        0.0 if stalls else sm_busy * (1 - spread),
        0.0 if stalls == 10 else min(1.0, sm_busy * (1 + spread)),
        10.0, 1.0,
    ]  # fmt: skip


def mean_activity(ratio: float, load: Load, paused_share: float) -> float:
    """What the mean of a ratio is in the long run, stalls and pauses included."""
    return ratio * (1 - load.stalled) * (1 - paused_share)


def _resting_row(load: Load, noise_1: float, noise_2: float) -> list[float]:
    """All activity is exactly 0; a process that holds a context keeps its memory and the clocks."""
    power = (IDLE_WATTS + (CONTEXT_WATTS if load.has_context else 0.0)) * (1 + 0.015 * noise_1)
    return [
        0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0,
        load.memory_mib, power, power * INTERVAL_SECONDS, load.clock_mhz,
        _celsius(power, load, noise_2), 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 10.0, 1.0,
    ]  # fmt: skip


def _stalled_subsamples(share: float, noise_2: float) -> int:
    return min(9, max(1, round(10 * share + 2.2 * noise_2))) if share else 0


def _power(
    load: Load, sm: float, tensor: float, dram: float, fp32: float, fp16: float, fp64: float
) -> float:
    working = (
        _WATTS["sm"] * sm + _WATTS["tensor"] * tensor + _WATTS["dram"] * dram
        + _WATTS["fp32"] * fp32 + _WATTS["fp16"] * fp16 + _WATTS["fp64"] * fp64
    )  # fmt: skip
    slowdown = load.clock_mhz / BOOST_CLOCK_MHZ  # dynamic power falls with clock and voltage
    return min(POWER_LIMIT_WATTS * 0.985, IDLE_WATTS + CONTEXT_WATTS + working * slowdown**2)


def _celsius(power: float, load: Load, noise_3: float) -> float:
    return float(round(28 + 0.062 * power + load.extra_celsius + noise_3))
