"""The machines of the simulated cluster: models of GPUs, and the kinds of nodes they sit in."""

from dataclasses import dataclass
from functools import cache

from flopwatch.gpus import PeakTable

GPUS_PER_NODE = 8
CPUS_PER_NODE = 96
HOST_MEMORY_MIB = 1_031_000.0
_PEAKS = PeakTable.load()
_GPM, _DCGM = "gpm", "dcgmi"


@dataclass(frozen=True, slots=True)
class GpuModel:
    """One model of GPU: what its driver and its data sheet say.

    `context_watts` is what an open CUDA context costs by keeping the clocks up. `source` is the
    collector that an agent reads its activity from.
    """

    name: str
    gres_type: str
    memory_mib: float
    power_limit_watts: float
    idle_watts: float
    context_watts: float
    boost_mhz: float
    idle_mhz: float
    source: str = _GPM

    def peak_flops(self, dtype: str) -> float:
        """Dense peak in FLOP/s, from the same table as everybody's; ValueError if unknown."""
        return _peak_flops(self.name, dtype)


@cache
def _peak_flops(name: str, dtype: str) -> float:
    gpu = _PEAKS.lookup(name)
    peak = gpu.peak_flops(dtype) if gpu else None
    if peak is None:
        raise ValueError(f"no peak of {dtype} is known for {name}")
    return peak


# fmt: off
#               driver's name            GRES      MiB      limit  idle  context W  boost, idle MHz
H100 = GpuModel("NVIDIA H100 80GB HBM3", "h100",  81_559.0, 700.0, 70.0, 42.0, 1980.0, 345.0)
H200 = GpuModel("NVIDIA H200",           "h200", 143_771.0, 700.0, 76.0, 43.0, 1980.0, 345.0)
A100 = GpuModel("NVIDIA A100-SXM4-80GB", "a100",  81_920.0, 400.0, 58.0, 26.0, 1410.0, 210.0, _DCGM)
L40S = GpuModel("NVIDIA L40S",           "l40s",  46_068.0, 350.0, 36.0, 44.0, 2520.0, 210.0, _DCGM)
# fmt: on


@dataclass(frozen=True, slots=True)
class Split:
    """How each GPU of a node is split into MIG instances, named by their GPU instance ids."""

    profile: str
    gpu_instances: tuple[int, ...]
    memory_mib: float


@dataclass(frozen=True, slots=True)
class NodeKind:
    """One kind of node; `split` None means whole GPUs."""

    gpu: GpuModel
    partitions: tuple[str, ...]
    split: Split | None = None

    @property
    def places(self) -> int:
        """How many GPUs or instances the scheduler can give away: its GRES ordinals."""
        return GPUS_PER_NODE * (len(self.split.gpu_instances) if self.split else 1)

    @property
    def memory_mib(self) -> float:
        """Memory of one of these."""
        return self.split.memory_mib if self.split else self.gpu.memory_mib


_TRAINING = NodeKind(H100, ("gpu",))
_MIXED = NodeKind(H100, ("gpu", "interactive"))
_HALVES = Split("3g.40gb", (1, 2), 40_448.0)

BLOCK: tuple[NodeKind, ...] = (
    _TRAINING,
    _TRAINING,
    _MIXED,
    _TRAINING,
    _TRAINING,
    _TRAINING,
    NodeKind(H200, ("large",)),
    NodeKind(A100, ("a100",)),
    NodeKind(H100, ("mig", "interactive"), _HALVES),
    NodeKind(L40S, ("l40s",)),
    _TRAINING,
    _TRAINING,
)
"""A cluster is made of blocks of these twelve nodes, the last one cut where the nodes end."""

NODES_PER_BLOCK = len(BLOCK)


def kind_of(node: int) -> NodeKind:
    """The kind of a node of the cluster, by its number from 0."""
    return BLOCK[node % NODES_PER_BLOCK]


def node_name(node: int) -> str:
    """Nodes count from gpu001, however many there are."""
    return f"gpu{node + 1:03d}"
