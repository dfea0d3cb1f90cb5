"""What a GPU shows while it does something: one row of a sample, each column fit for the others.

A load describes the busy 1 Hz sub-samples of an interval and the share of those that stall; means,
extremes, power, clocks and temperature follow from them and from the model of GPU. Everything is
plain Python, so that it runs where only the agent is installed.
"""

from dataclasses import dataclass

from flopwatch_simulation.hardware import H100, GpuModel

INTERVAL_SECONDS = 10
STALLED_ENGINE = 0.02
ENGINE_BUSY = 0.985
WAVE_DEPTH = 0.03
"""How far a job's slow wave swings around its mean."""

# Watts of an H100 at full activity of each unit, fitted by eye to published draws: about 600 W for
# a tuned language model, 440 W for single precision. Other models scale with their limit.
_WATTS = {"sm": 190.0, "tensor": 430.0, "dram": 160.0, "fp32": 260.0, "fp16": 100.0, "fp64": 450.0}
_STALLS_SPREAD = 2.2
_GIGA = 1e9
_MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Load:
    """What one GPU does in its busy sub-samples. Ratios are fractions, traffic is 10^9 bytes/s.

    `stalled` is the mean share of sub-samples in which the engine waits, `throttled` the share in
    which heat holds the clock down, `clock_share` the clock over the boost clock.
    """

    sm: float = 0.0
    occupancy: float = 0.0
    tensor: float = 0.0
    dram: float = 0.0
    fp32: float = 0.0
    fp16: float = 0.0
    fp64: float = 0.0
    memory_mib: float = 0.0
    pcie_tx: float = 0.0
    pcie_rx: float = 0.0
    nvlink: float = 0.0
    stalled: float = 0.0
    clock_share: float = 1.0
    throttled: float = 0.0
    extra_celsius: float = 0.0

    @property
    def has_context(self) -> bool:
        """Whether a process holds the GPU open."""
        return self.memory_mib > 0

    @property
    def rests(self) -> bool:
        """Whether nothing runs on it at all."""
        return self.sm == 0


FREE = Load()


def noise(key: int) -> int:
    """64 well mixed bits of `key` (splitmix64, Steele et al. 2014): noise without a state."""
    mixed = (key + 0x9E3779B97F4A7C15) & _MASK
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
    return mixed ^ (mixed >> 31)


def sample_row(gpu: GpuModel, load: Load, bits: int, wave: float) -> tuple[float, ...]:
    """One interval's values in the order of `flopwatch.metrics.COLUMNS`.

    `bits` is 64 bits of noise; `wave` in [-1, 1] is the job's slow wave.
    """
    noise_1 = (bits & 0xFFFF) / 32768 - 1
    noise_2 = (bits >> 16 & 0xFFFF) / 32768 - 1
    if load.rests:
        return _resting_row(gpu, load, noise_1, noise_2)
    noise_3 = (bits >> 32 & 0xFFFF) / 32768 - 1
    noise_4 = (bits >> 48) / 32768 - 1
    stalls = _stalls(load.stalled, noise_2, (bits >> 24 & 0xFFFF) / 65536) if load.stalled else 0
    busy = (10 - stalls) / 10
    level = 1 + WAVE_DEPTH * wave + 0.015 * noise_1
    sm_busy = load.sm * level
    sm = sm_busy * busy
    tensor = load.tensor * level * (1 + 0.01 * noise_3) * busy
    dram = load.dram * (1 + 0.02 * noise_3) * busy
    fp32, fp16, fp64 = load.fp32 * level * busy, load.fp16 * level * busy, load.fp64 * level * busy
    power = _power(gpu, load, sm, tensor, dram, fp32, fp16, fp64) * (1 + 0.01 * noise_4)
    spread = 0.02 + 0.015 * abs(noise_4)
    traffic = _GIGA * busy * (1 + 0.05 * noise_4)
    clock = gpu.boost_mhz * load.clock_share
    return (
        ENGINE_BUSY * busy + STALLED_ENGINE * (1 - busy),
        sm, load.occupancy * level * busy, tensor, dram, fp64, fp32, fp16,
        round(busy + (1 - busy) * STALLED_ENGINE, 2),
        round(load.memory_mib * (1 + 0.001 * noise_2)),
        power, power * INTERVAL_SECONDS,
        clock if load.throttled == 0 else clock + round(20 * noise_2),
        _celsius(gpu, power, load, noise_3),
        load.pcie_tx * traffic, load.pcie_rx * traffic,
        load.nvlink * traffic, load.nvlink * traffic,
        round(load.throttled * 10 + noise_3) / 10 if load.throttled else 0.0,
        stalls / 10,
        0.0 if stalls else sm_busy * (1 - spread),
        0.0 if stalls == 10 else min(1.0, sm_busy * (1 + spread)),
        10.0, 1.0,
    )  # fmt: skip


def _resting_row(gpu: GpuModel, load: Load, noise_1: float, noise_2: float) -> tuple[float, ...]:
    """All activity is exactly 0; a process that holds a context keeps its memory and the clocks."""
    watts = gpu.idle_watts + (gpu.context_watts if load.has_context else 0.0)
    power = watts * (1 + 0.015 * noise_1)
    clock = gpu.boost_mhz if load.has_context else gpu.idle_mhz
    return (
        0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0,
        load.memory_mib, power, power * INTERVAL_SECONDS, clock,
        _celsius(gpu, power, load, noise_2), 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 10.0, 1.0,
    )  # fmt: skip


def _stalls(share: float, noise_2: float, dice: float) -> int:
    """How many of ten sub-samples stall: from 0 to 10, and `share` of them in the long run."""
    mean = 10 * share
    spread = min(_STALLS_SPREAD, mean, 10 - mean)
    return int(mean + spread * noise_2 + dice)


def _power(
    gpu: GpuModel, load: Load, sm: float, tensor: float, dram: float, fp32: float, fp16: float,
    fp64: float,
) -> float:  # fmt: skip
    working = (
        _WATTS["sm"] * sm + _WATTS["tensor"] * tensor + _WATTS["dram"] * dram
        + _WATTS["fp32"] * fp32 + _WATTS["fp16"] * fp16 + _WATTS["fp64"] * fp64
    )  # fmt: skip
    scale = (gpu.power_limit_watts - gpu.idle_watts) / (H100.power_limit_watts - H100.idle_watts)
    # Dynamic power falls with clock and voltage.
    watts = gpu.idle_watts + gpu.context_watts + working * scale * load.clock_share**2
    return min(gpu.power_limit_watts * 0.985, watts)


def _celsius(gpu: GpuModel, power: float, load: Load, noise_3: float) -> float:
    warmth = 0.062 * power * H100.power_limit_watts / gpu.power_limit_watts
    return float(round(28 + warmth + load.extra_celsius + noise_3))
