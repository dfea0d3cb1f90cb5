"""The cast: what kinds of jobs the simulated cluster runs, and on which of a block's GPUs.

A block is six nodes; a larger cluster repeats it with other people and other times. Every running
job is younger than two hours, so that a history of two hours shows each from its first minute.
"""

from dataclasses import dataclass

from flopwatch_simulation.physics import BOOST_CLOCK_MHZ, FREE, Load

NODES_PER_BLOCK = 6
GPUS_PER_NODE = 8
LONG_CYCLE_SECONDS = 7200
SHORT_CYCLE_SECONDS = 1200

Places = tuple[tuple[int, tuple[int, ...]], ...]
"""(node of the block, its GRES ordinals), in the order of ranks."""


@dataclass(frozen=True, slots=True)
class Pause:
    """Every `period` seconds all GPUs of the job stall for `seconds` (multiples of 10)."""

    phase: str
    period: int
    seconds: int


@dataclass(frozen=True, slots=True)
class Training:
    """What the job's hook reports: train MFU as a fraction of the dtype's dense peak."""

    mfu: float
    dtype: str
    step_seconds: float


@dataclass(frozen=True, slots=True)
class Character:
    """One kind of job. `odd_ranks` do `odd_load` instead of `load`, or nothing.

    `key` names it in the ledger of truth. `endings` are drawn from for every run. A character
    without `places` waits in the queue for `wanted_gpus` and is given up in the end.
    """

    key: str
    names: tuple[str, ...]
    people: tuple[tuple[str, str], ...]
    places: Places
    load: Load = FREE
    odd_ranks: frozenset[int] = frozenset()
    odd_load: Load = FREE
    training: Training | None = None
    pause: Pause | None = None
    partition: str = "gpu"
    qos: str = "normal"
    endings: tuple[str, ...] = ("COMPLETED",)
    cycle_seconds: int = LONG_CYCLE_SECONDS
    busy_share: tuple[float, float] = (0.90, 0.95)
    time_limit_seconds: int = 7200
    cpus_per_gpu: int = 12
    cpu_share: float = 0.25
    host_memory_mib_per_gpu: float = 60_000.0
    array_tasks: int = 0
    wanted_gpus: int = 0
    reason: str = "Resources"

    @property
    def gpu_count(self) -> int:
        """GPUs allocated, or wanted by a job that only waits."""
        return sum(len(ordinals) for _, ordinals in self.places) or self.wanted_gpus

    def load_of(self, rank: int) -> Load:
        """What the GPU of this rank does."""
        return self.odd_load if rank in self.odd_ranks else self.load


_ALL = tuple(range(GPUS_PER_NODE))
_TUNED = Load(
    sm=0.91, occupancy=0.36, tensor=0.50, dram=0.44, fp32=0.09, fp16=0.02, memory_mib=69_400,
    pcie_tx=0.4e9, pcie_rx=0.9e9, nvlink=118e9,
)  # fmt: skip

CAST: tuple[Character, ...] = (
    Character(
        key="tuned language model",
        names=("llama3-8b-pretrain", "moe-8x3b-pretrain", "polyglot-7b-pretrain"),
        people=(("mkovacs", "nlp"), ("ychen", "nlp"), ("adiallo", "nlp")),
        places=((0, _ALL), (1, _ALL)),
        load=_TUNED,
        training=Training(mfu=0.41, dtype="bfloat16", step_seconds=4.2),
        qos="high",
        cpu_share=0.22,
        host_memory_mib_per_gpu=112_000.0,
    ),
    Character(
        key="starved loader",
        names=("imagenet22k-vit-l", "openimages-clip", "video-mae-k700"),
        people=(("sokafor", "vision"), ("lmoreau", "vision")),
        places=((2, (0, 1, 2, 3)),),
        load=Load(
            sm=0.66,
            occupancy=0.30,
            tensor=0.16,
            dram=0.33,
            fp32=0.10,
            fp16=0.05,
            stalled=0.5,
            memory_mib=38_700,
            pcie_tx=0.1e9,
            pcie_rx=2.6e9,
            nvlink=6e9,
        ),
        training=Training(mfu=0.072, dtype="bfloat16", step_seconds=1.9),
        cpus_per_gpu=4,
        cpu_share=0.97,
    ),
    Character(
        key="single precision",
        names=("unet-segmentation", "resnet152-histology", "deeplab-tissue"),
        people=(("tnakamura", "medimg"), ("epark", "medimg")),
        places=((2, (4, 5)),),
        load=Load(
            sm=0.86,
            occupancy=0.47,
            dram=0.37,
            fp32=0.43,
            memory_mib=52_100,
            pcie_tx=0.1e9,
            pcie_rx=0.7e9,
            nvlink=4e9,
        ),
        training=Training(mfu=0.31, dtype="float32", step_seconds=0.62),
        endings=("COMPLETED", "COMPLETED", "FAILED"),
    ),
    Character(
        key="idle notebook",
        names=("jupyter", "jupyterlab", "vscode-tunnel"),
        people=(("pgarcia", "biology"), ("rsingh", "biology"), ("hlind", "climate")),
        places=((2, (6,)),),
        load=Load(memory_mib=2_310),
        partition="interactive",
        qos="interactive",
        endings=("TIMEOUT", "TIMEOUT", "CANCELLED"),
        busy_share=(0.94, 0.94),
        time_limit_seconds=6768,
        cpu_share=0.01,
        host_memory_mib_per_gpu=9_000.0,
    ),
    Character(
        key="partly idle",
        names=("gpt2-finetune", "whisper-finetune", "bert-large-distill"),
        people=(("jwalker", "speech"), ("fbianchi", "speech")),
        places=((3, _ALL),),
        load=Load(
            sm=0.82,
            occupancy=0.34,
            tensor=0.40,
            dram=0.48,
            fp32=0.09,
            memory_mib=61_800,
            pcie_tx=0.2e9,
            pcie_rx=0.5e9,
            nvlink=22e9,
        ),
        odd_ranks=frozenset({5, 6, 7}),
        training=Training(mfu=0.33, dtype="bfloat16", step_seconds=1.1),
        endings=("COMPLETED", "CANCELLED"),
    ),
    Character(
        key="straggler",
        names=("sd3-train", "dit-xl-train", "flux-lora-sweep"),
        people=(("nvolkova", "genai"), ("cmbeki", "genai")),
        places=((4, (0, 1, 2, 3)),),
        load=Load(
            sm=0.71,
            occupancy=0.31,
            tensor=0.31,
            dram=0.37,
            fp32=0.08,
            memory_mib=66_200,
            pcie_tx=0.2e9,
            pcie_rx=0.6e9,
            nvlink=41e9,
        ),
        odd_ranks=frozenset({2}),
        odd_load=Load(
            sm=0.93,
            occupancy=0.40,
            tensor=0.41,
            dram=0.38,
            fp32=0.10,
            memory_mib=66_200,
            pcie_tx=0.2e9,
            pcie_rx=0.6e9,
            nvlink=41e9,
            clock_mhz=round(0.75 * BOOST_CLOCK_MHZ),
            throttled=0.8,
            extra_celsius=36.0,
        ),
        training=Training(mfu=0.27, dtype="bfloat16", step_seconds=2.4),
    ),
    Character(
        key="memory-bound",
        names=("gnn-ogbn-papers", "dlrm-criteo", "graph-transformer"),
        people=(("zyilmaz", "chem"), ("bhoffmann", "chem")),
        places=((4, (4, 5)),),
        load=Load(
            sm=0.77,
            occupancy=0.58,
            tensor=0.025,
            dram=0.78,
            fp32=0.12,
            memory_mib=71_900,
            pcie_tx=0.3e9,
            pcie_rx=0.8e9,
            nvlink=9e9,
        ),
        endings=("COMPLETED", "OUT_OF_MEMORY"),
    ),
    Character(
        key="checkpoint stalls",
        names=("weather-fourcastnet", "climax-finetune", "era5-diffusion"),
        people=(("hlind", "climate"), ("osato", "climate")),
        places=((5, (0, 1, 2, 3)),),
        load=Load(
            sm=0.85,
            occupancy=0.37,
            tensor=0.38,
            dram=0.46,
            fp32=0.11,
            memory_mib=64_500,
            pcie_tx=0.5e9,
            pcie_rx=0.7e9,
            nvlink=33e9,
        ),
        training=Training(mfu=0.32, dtype="bfloat16", step_seconds=1.6),
        pause=Pause(phase="checkpoint", period=600, seconds=60),
    ),
    Character(
        key="short sweep",
        names=("hparam-sweep", "ablation-grid"),
        people=(("dfischer", "robotics"), ("akim", "robotics")),
        places=((5, (4,)),),
        load=Load(
            sm=0.48,
            occupancy=0.26,
            tensor=0.12,
            dram=0.29,
            fp32=0.09,
            memory_mib=14_800,
            pcie_tx=0.1e9,
            pcie_rx=0.4e9,
        ),
        endings=("COMPLETED", "COMPLETED", "COMPLETED", "COMPLETED", "FAILED"),
        cycle_seconds=SHORT_CYCLE_SECONDS,
        busy_share=(0.70, 0.92),
        time_limit_seconds=3600,
        array_tasks=12,
    ),
    Character(
        key="waiting for resources",
        names=("llama3-70b-sft", "mixtral-dpo"),
        people=(("ychen", "nlp"), ("adiallo", "nlp")),
        places=(),
        wanted_gpus=32,
        endings=("CANCELLED",),
    ),
    Character(
        key="waiting for priority",
        names=("protein-folding-msa", "cryoem-refine"),
        people=(("rsingh", "biology"), ("pgarcia", "biology")),
        places=(),
        wanted_gpus=8,
        reason="Priority",
        endings=("CANCELLED",),
    ),
)
