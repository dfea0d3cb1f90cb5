"""MFU as published: `published-mfu.csv` holds shapes, throughputs and the utilization that papers
and project pages print for them, each with its source."""

import csv
from pathlib import Path

import pytest

from flopwatch.gpus import PeakTable
from flopwatch.mfu import Work, ideal_seconds, job_mfu, train_mfu

PUBLISHED = list(csv.DictReader(Path(__file__).with_name("published-mfu.csv").open()))


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> PeakTable:
    """With the one accelerator of the published rows that is no GPU."""
    site = tmp_path_factory.mktemp("site") / "peaks.csv"
    site.write_text("name_pattern,tflops_bf16\n^TPU v4$,275\n")
    return PeakTable.load(site)


def flops_per_second(row: dict[str, str]) -> float:
    """Model FLOPs per second of the whole job, by the formula its source uses."""
    if row["formula"] == "printed":
        return float(row["tflops_per_chip"]) * 1e12 * int(row["chips"])
    layers, length, hidden = int(row["layers"]), int(row["length"]), int(row["hidden"])
    if row["formula"] == "palm":  # PaLM, appendix B
        attention = 12 * layers * int(row["attention_width"]) * length
        return (6 * float(row["parameters"]) + attention) * float(row["tokens_per_second"])
    logits = int(row["vocabulary"]) / (12 * hidden * layers)  # arXiv 2205.05198
    flops = 72 * int(row["batch"]) * layers * length * hidden**2
    return flops * (1 + length / (6 * hidden) + logits) / float(row["step_seconds"])


@pytest.mark.parametrize("row", PUBLISHED, ids=[row["model"] for row in PUBLISHED])
def test_published_utilization_comes_out(row: dict[str, str], table: PeakTable) -> None:
    chips = int(row["chips"])
    gpu = table.lookup(row["device_name"])
    rank = Work({"bfloat16": flops_per_second(row) / chips}, train_seconds=1.0, gpu=gpu)
    mfu = train_mfu([rank] * chips)
    assert mfu is not None
    assert 100 * mfu == pytest.approx(
        float(row["published_percent"]), abs=float(row["tolerance_points"])
    )


def test_work_in_two_dtypes_is_added_up_as_time(table: PeakTable) -> None:
    h100 = table.lookup("NVIDIA H100 80GB HBM3")
    assert h100 is not None
    # 989.5 and 1979 TFLOPS: half a second in bf16, a quarter in fp8.
    work = {"bfloat16": 494.75e12, "float8_e4m3fn": 494.75e12}
    assert ideal_seconds(work, h100) == pytest.approx(0.75)
    assert train_mfu([Work(work, 1.5, h100)]) == pytest.approx(0.5)


def test_unlike_ranks_are_weighted_by_their_own_peaks_and_times(table: PeakTable) -> None:
    h100, a100 = table.lookup("NVIDIA H100 80GB HBM3"), table.lookup("NVIDIA A100-SXM4-80GB")
    ranks = [Work({"bfloat16": 989.5e12}, 2.0, h100), Work({"bfloat16": 312e12}, 6.0, a100)]
    assert train_mfu(ranks) == pytest.approx(2 / 8)
    assert job_mfu(ranks, allocated_seconds=20.0) == pytest.approx(2 / 20)


def test_unknown_gpu_or_peak_gives_no_mfu_never_a_neighbours(table: PeakTable) -> None:
    t4 = table.lookup("Tesla T4")
    assert train_mfu([Work({"bfloat16": 1e12}, 1.0, None)]) is None
    assert train_mfu([Work({"bfloat16": 1e12}, 1.0, t4)]) is None
    assert train_mfu([Work({"bfloat16": 0.0, "float16": 6.5e12}, 1.0, t4)]) == pytest.approx(0.1)


def test_one_rank_that_is_unknown_makes_the_whole_job_unknown(table: PeakTable) -> None:
    known = Work({"float16": 6.5e12}, 1.0, table.lookup("Tesla T4"))
    unknown = Work({"float16": 6.5e12}, 1.0, None)
    assert train_mfu([known, unknown]) is None
    assert job_mfu([known, unknown], allocated_seconds=10.0) is None


def test_no_ranks_or_no_time_gives_no_mfu(table: PeakTable) -> None:
    t4 = table.lookup("Tesla T4")
    assert train_mfu([]) is None
    assert job_mfu([], allocated_seconds=10.0) is None
    assert train_mfu([Work({"float16": 1.0}, 0.0, t4)]) is None
