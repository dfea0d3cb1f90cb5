"""The cast of the simulated cluster: what kinds of jobs it runs, and on which of a block's GPUs.

Three tables, each built on the one before: LOADS says what a GPU shows, CAST who makes it do so,
LAYOUT where. Every running job is younger than two hours, so that a history of two hours shows
each from its first minute.
"""

from dataclasses import replace

from flopwatch_simulation.character import (
    MEDIUM_CYCLE_SECONDS,
    SHORT_CYCLE_SECONDS,
    Character,
    Interlude,
    Places,
    Training,
)
from flopwatch_simulation.physics import Load

# fmt: off
LOADS: dict[str, Load] = {
    #                         sm  occup. tensor  dram  fp32  fp16  fp64   MiB    pcie tx, rx nvlink
    "language model":   Load(0.91, 0.36, 0.53,  0.44, 0.09, 0.02, 0.00,  69_400, 0.4, 0.9, 118.0),
    "vision model":     Load(0.66, 0.30, 0.16,  0.33, 0.10, 0.05, 0.00,  38_700, 0.1, 1.6,   6.0),
    "single precision": Load(0.86, 0.47, 0.00,  0.37, 0.43, 0.00, 0.00,  52_100, 0.1, 0.7,   4.0),
    "open kernel":      Load(0.00, 0.00, 0.00,  0.00, 0.00, 0.00, 0.00,   2_310),
    "fine-tune":        Load(0.82, 0.34, 0.40,  0.48, 0.09, 0.00, 0.00,  61_800, 0.2, 0.5,  22.0),
    "waiting ranks":    Load(0.71, 0.31, 0.31,  0.37, 0.08, 0.00, 0.00,  66_200, 0.2, 0.6,  41.0),
    "slow rank":        Load(0.93, 0.40, 0.41,  0.38, 0.10, 0.00, 0.00,  66_200, 0.2, 0.6,  41.0),
    "graph":            Load(0.77, 0.58, 0.025, 0.78, 0.12, 0.00, 0.00,  71_900, 0.3, 0.8,   9.0),
    "all-reduce":       Load(0.55, 0.12, 0.11,  0.22, 0.05, 0.00, 0.00,  63_000, 0.3, 0.4, 145.0),
    "weather":          Load(0.85, 0.37, 0.38,  0.46, 0.11, 0.00, 0.00,  64_500, 0.5, 0.7,  33.0),
    "policy update":    Load(0.84, 0.35, 0.44,  0.45, 0.09, 0.00, 0.00, 118_000, 0.3, 0.5,  52.0),
    "decoding":         Load(0.42, 0.18, 0.07,  0.66, 0.04, 0.00, 0.00, 118_000, 0.2, 0.2,  12.0),
    "small model":      Load(0.60, 0.22, 0.10,  0.24, 0.12, 0.00, 0.00,   7_400, 0.1, 0.3),
    "half a GPU":       Load(0.42, 0.24, 0.10,  0.22, 0.08, 0.00, 0.00,  17_500),
    "sweep":            Load(0.48, 0.26, 0.12,  0.29, 0.09, 0.00, 0.00,  14_800, 0.1, 0.4),
    "tiny kernels":     Load(0.21, 0.08, 0.03,  0.12, 0.06, 0.00, 0.00,   9_100, 0.1, 0.2),
    "odd shapes":       Load(0.69, 0.33, 0.08,  0.34, 0.14, 0.02, 0.00,  31_000, 0.1, 0.5),
    "double precision": Load(0.74, 0.41, 0.00,  0.33, 0.06, 0.00, 0.31,  28_400, 0.2, 0.4,   3.0),
    "too much":         Load(0.80, 0.34, 0.37,  0.43, 0.10, 0.00, 0.00,  80_600, 0.3, 0.6),
}

CAST: dict[str, Character] = {
    "tuned language model": Character(
        ("llama3-8b-pretrain", "moe-8x3b-pretrain", "polyglot-7b-pretrain"), ("nlp",),
        LOADS["language model"], "tensor-heavy compute", "well used",
        training=Training(mfu=0.41, dtype="bfloat16", step_seconds=4.2),
        qos="high", cpu_share=0.22, host_mib_per_gpu=112_000.0,
    ),
    "starved loader": Character(
        ("imagenet22k-vit-l", "openimages-clip", "video-mae-k700"), ("vision",),
        replace(LOADS["vision model"], stalled=0.5), "mixed", "input starvation",
        training=Training(mfu=0.072, dtype="bfloat16", step_seconds=1.9),
        cpus_per_gpu=4, cpu_share=0.97,
    ),
    "single precision": Character(
        ("unet-segmentation", "resnet152-histology", "deeplab-tissue"), ("medimg",),
        LOADS["single precision"], "compute-heavy", "single precision without tensor cores",
        training=Training(mfu=0.31, dtype="float32", step_seconds=0.62),
        endings=("COMPLETED", "COMPLETED", "FAILED"),
    ),
    "idle notebook": Character(
        ("jupyter", "jupyterlab", "vscode-tunnel"), ("biology", "climate"),
        LOADS["open kernel"], "idle", "idle allocation",
        partition="interactive", qos="interactive",
        endings=("TIMEOUT", "TIMEOUT", "CANCELLED"),
        busy_share=(0.94, 0.94), time_limit_seconds=6768,
        cpu_share=0.01, host_mib_per_gpu=9_000.0,
    ),
    "partly idle": Character(
        ("gpt2-finetune", "whisper-finetune", "bert-large-distill"), ("speech",),
        LOADS["fine-tune"], "tensor compute", "some GPUs idle",
        odd_ranks=frozenset({5, 6, 7}),
        training=Training(mfu=0.33, dtype="bfloat16", step_seconds=1.1),
        endings=("COMPLETED", "CANCELLED"),
    ),
    "straggler": Character(
        ("sd3-train", "dit-xl-train", "flux-lora-sweep"), ("genai",),
        LOADS["waiting ranks"], "tensor compute", "slow GPU",
        odd_ranks=frozenset({2}),
        odd_load=replace(LOADS["slow rank"], clock_share=0.75, throttled=0.8, extra_celsius=36.0),
        training=Training(mfu=0.27, dtype="bfloat16", step_seconds=2.4),
    ),
    "memory-bound": Character(
        ("gnn-ogbn-papers", "dlrm-criteo", "graph-transformer"), ("chem",),
        LOADS["graph"], "compute-active", "memory-bound",
        endings=("COMPLETED", "OUT_OF_MEMORY"),
    ),
    "communication-bound": Character(
        ("gpt-tp8-small-layers", "ddp-tiny-buckets"), ("astro",),
        LOADS["all-reduce"], "compute-active", "communication-bound",
        training=Training(mfu=0.09, dtype="bfloat16", step_seconds=0.8),
        partition="a100", endings=("COMPLETED", "CANCELLED"),
    ),
    "checkpoint stalls": Character(
        ("weather-fourcastnet", "climax-finetune", "era5-diffusion"), ("climate",),
        LOADS["weather"], "tensor compute", "checkpoint stalls",
        training=Training(mfu=0.32, dtype="bfloat16", step_seconds=1.6),
        interlude=Interlude("checkpoint", 600, 60, replace(LOADS["weather"], stalled=1.0)),
    ),
    "rollouts": Character(
        ("grpo-math-7b", "ppo-code-7b", "rlhf-helpful"), ("nlp",),
        LOADS["policy update"], "tensor compute", "none",
        training=Training(mfu=0.34, dtype="bfloat16", step_seconds=3.1),
        interlude=Interlude("generation", 300, 180, LOADS["decoding"], forward_mfu=0.03),
        partition="large", host_mib_per_gpu=115_000.0,
    ),
    "GPU too big": Character(
        ("distilbert-intent", "tabular-mlp"), ("teaching",),
        replace(LOADS["small model"], stalled=0.87), "low utilization", "GPU larger than needed",
        crew=1, partition="large", cpus_per_gpu=6, cpu_share=0.3, host_mib_per_gpu=18_000.0,
    ),
    "MIG service": Character(
        ("embedding-service", "rerank-batch"), ("speech", "vision"),
        LOADS["half a GPU"], "mixed", "none",
        partition="mig", cpus_per_gpu=5, host_mib_per_gpu=24_000.0,
    ),
    "MIG notebook": Character(
        ("jupyter", "course-notebook"), ("teaching",),
        LOADS["open kernel"], "idle", "idle allocation",
        partition="interactive", qos="interactive", endings=("TIMEOUT",),
        busy_share=(0.94, 0.94), time_limit_seconds=6768,
        cpus_per_gpu=5, cpu_share=0.01, host_mib_per_gpu=6_000.0,
    ),
    "short sweep": Character(
        ("hparam-sweep", "ablation-grid"), ("robotics",),
        LOADS["sweep"], "mixed", "time limit far above need",
        endings=("COMPLETED", "COMPLETED", "COMPLETED", "COMPLETED", "FAILED"),
        cycle_seconds=SHORT_CYCLE_SECONDS, busy_share=(0.70, 0.92), time_limit_seconds=3600,
        array_tasks=12,
    ),
    "out of memory": Character(
        ("lora-70b-one-gpu", "long-context-sft"), ("biology",),
        LOADS["too much"], "tensor compute", "out of memory",
        endings=("OUT_OF_MEMORY",), cycle_seconds=MEDIUM_CYCLE_SECONDS, busy_share=(0.30, 0.70),
    ),
    "out of time": Character(
        ("segment-whole-slides", "retrain-all-folds"), ("medimg",),
        LOADS["odd shapes"], "compute-active", "time limit reached",
        endings=("TIMEOUT",), busy_share=(0.75, 0.75), time_limit_seconds=5400,
    ),
    "spread out": Character(
        ("t5-xl-two-nodes", "mt5-adapters"), ("nlp",),
        LOADS["fine-tune"], "tensor compute", "spread over too many nodes",
        training=Training(mfu=0.30, dtype="bfloat16", step_seconds=1.7),
    ),
    "tiny kernels": Character(
        ("rnn-forecast", "neural-ode"), ("physics",),
        LOADS["tiny kernels"], "busy, low SM use", "launch-bound",
        partition="l40s", cpus_per_gpu=8, cpu_share=0.15,
    ),
    "odd shapes": Character(
        ("swin-257", "mixer-odd-vocab"), ("vision",),
        LOADS["odd shapes"], "compute-active", "weak tensor use",
        partition="l40s", endings=("COMPLETED", "CANCELLED"),
    ),
    "double precision": Character(
        ("pinn-navier-stokes", "gp-regression"), ("physics",),
        LOADS["double precision"], "FP64 compute", "unexpected double precision",
        training=Training(mfu=0.14, dtype="float64", step_seconds=0.9),
    ),
    "waiting for resources": Character(
        ("llama3-70b-sft", "mixtral-dpo"), ("nlp",),
        endings=("CANCELLED",), wanted_gpus=32,
    ),
    "waiting for priority": Character(
        ("protein-folding-msa", "cryoem-refine"), ("biology",),
        endings=("CANCELLED",), wanted_gpus=8, reason="Priority",
    ),
}
# fmt: on

_ALL = tuple(range(8))

LAYOUT: tuple[tuple[str, Places], ...] = (
    ("tuned language model", ((0, _ALL), (1, _ALL))),
    ("starved loader", ((2, (0, 1, 2, 3)),)),
    ("single precision", ((2, (4, 5)),)),
    ("idle notebook", ((2, (6,)),)),
    ("partly idle", ((3, _ALL),)),
    ("straggler", ((4, (0, 1, 2, 3)),)),
    ("memory-bound", ((4, (4, 5)),)),
    ("short sweep", ((4, (6,)),)),
    ("checkpoint stalls", ((5, (0, 1, 2, 3)),)),
    ("out of memory", ((5, (4,)),)),
    ("rollouts", ((6, (0, 1, 2, 3)),)),
    ("GPU too big", ((6, (4,)),)),
    ("communication-bound", ((7, _ALL),)),
    ("MIG service", ((8, (0,)),)),
    ("MIG service", ((8, (1,)),)),
    ("MIG service", ((8, (6,)),)),
    ("MIG notebook", ((8, (3,)),)),
    ("MIG notebook", ((8, (10,)),)),
    ("tiny kernels", ((9, (0,)),)),
    ("odd shapes", ((9, (1, 2)),)),
    ("spread out", ((10, (0, 1, 2, 3)), (11, (0, 1, 2, 3)))),
    ("double precision", ((10, (4, 5)),)),
    ("out of time", ((11, (4, 5)),)),
    ("waiting for resources", ()),
    ("waiting for priority", ()),
)
"""Seats: the GPUs of a block's nodes on which jobs of one character follow one another."""
