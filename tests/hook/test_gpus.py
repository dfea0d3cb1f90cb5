"""Names of devices as drivers print them find their row, or none."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from flopwatch.gpus import PeakTable, PeakTableError
from flopwatch.hook.device import describe_device


@pytest.fixture(scope="module")
def table() -> PeakTable:
    return PeakTable.load()


# Dense bf16 peaks in TFLOPS of the vendors' data sheets.
@pytest.mark.parametrize(
    ("name", "bf16_tflops"),
    [
        ("NVIDIA H100 80GB HBM3", 989.5),
        ("NVIDIA H100 PCIe", 756.5),
        ("NVIDIA H100 NVL", 835.5),
        ("NVIDIA H200", 989.5),
        ("NVIDIA H200 NVL", 835.5),
        ("NVIDIA GH200 480GB", 989.5),
        ("NVIDIA GH200 144G HBM3e", 989.5),
        ("NVIDIA A100-SXM4-40GB", 312),
        ("NVIDIA A100-SXM4-80GB", 312),
        ("A100-SXM4-80GB", 312),
        ("NVIDIA A100-PCIE-40GB", 312),
        ("NVIDIA A100 80GB PCIe", 312),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", 312),
        ("NVIDIA B200", 2250),
        ("NVIDIA GB200", 2500),
        ("NVIDIA B300 SXM6 AC", 2250),
        ("NVIDIA GB300", 2500),
        ("NVIDIA L40S", 362.05),
        ("NVIDIA L40", 181.05),
        ("NVIDIA L4", 121),
        ("NVIDIA A10", 125),
        ("NVIDIA A10G", 70),
        ("NVIDIA GeForce RTX 4090", 165.2),
        ("NVIDIA RTX 6000 Ada Generation", 364.2),
        ("AMD Instinct MI300X OAM", 1307.4),
        ("AMD Instinct MI250X", 191.5),
    ],
)
def test_name_of_a_device_finds_its_peak(name: str, bf16_tflops: float, table: PeakTable) -> None:
    gpu = table.lookup(name)
    assert gpu is not None
    assert gpu.peak_flops("bfloat16") == pytest.approx(bf16_tflops * 1e12)


@pytest.mark.parametrize(
    "name",
    [
        "CPU",
        "",
        "NVIDIA H1000",
        "NVIDIA L40SX",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "GRID A100-10C",
        "NVIDIA GeForce RTX 3080 Ti Laptop GPU",
    ],
)
def test_laptop_virtual_and_unknown_devices_find_nothing(name: str, table: PeakTable) -> None:
    assert table.lookup(name) is None


def test_an_empty_cell_is_unknown(table: PeakTable) -> None:
    v100, h100 = table.lookup("Tesla V100-SXM2-32GB"), table.lookup("NVIDIA H100 80GB HBM3")
    assert v100 is not None
    assert h100 is not None
    assert v100.peak_flops("float16") == 125e12
    assert v100.peak_flops("bfloat16") is None
    assert v100.peak_flops("tf32") is None
    assert h100.peak_flops("float4_e2m1fn_x2") is None
    assert h100.peak_flops("complex64") is None


def test_every_dtype_has_its_own_peak(table: PeakTable) -> None:
    h100 = table.lookup("NVIDIA H100 80GB HBM3")
    assert h100 is not None
    tflops = {
        "float64": 67,
        "float32": 67,
        "tf32": 494.5,
        "bfloat16": 989.5,
        "float16": 989.5,
        "float8_e4m3fn": 1979,
        "float8_e5m2": 1979,
        "int8": 1979,
    }
    assert {d: h100.peak_flops(d) for d in tflops} == {d: t * 1e12 for d, t in tflops.items()}
    assert h100.memory_gb == 80
    assert h100.memory_bandwidth == 3350e9


def test_a_site_file_comes_first_and_may_be_short(tmp_path: Path) -> None:
    site = tmp_path / "peaks.csv"
    site.write_text("name_pattern,tflops_fp32\n^CPU$,0.5\nH100,1\n")
    table = PeakTable.load(site)
    cpu, h100, a100 = map(table.lookup, ["CPU", "NVIDIA H100 PCIe", "NVIDIA A100 80GB PCIe"])
    assert cpu is not None
    assert h100 is not None
    assert a100 is not None
    assert cpu.peak_flops("float32") == 0.5e12
    assert cpu.memory_gb is None
    assert h100.peak_flops("float32") == 1e12
    assert h100.peak_flops("bfloat16") is None
    assert a100.peak_flops("bfloat16") == 312e12


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model,tflops_bf16\nH100,1\n", "line 1: the column name_pattern is missing"),
        ("name_pattern,tflops_bf61\nH100,1\n", "line 1: unknown column 'tflops_bf61'"),
        ("name_pattern,tflops_bf16\nA,1\nB,fast\n", "line 3, column tflops_bf16: 'fast'"),
        ("name_pattern,tflops_bf16\nA,nan\n", "line 2, column tflops_bf16: 'nan'"),
        ("name_pattern,tflops_bf16\nA,0\n", "line 2, column tflops_bf16: '0'"),
        ("name_pattern,tflops_bf16\n(A,1\n", "line 2, column name_pattern: "),
        ("name_pattern,tflops_bf16\n,1\n", "line 2, column name_pattern: empty"),
        ("name_pattern,tflops_bf16\nA,1,2\n", "line 2: more cells than columns"),
        ("", "line 1: the column name_pattern is missing"),
    ],
)
def test_a_wrong_site_file_is_named_with_line_and_column(
    text: str, message: str, tmp_path: Path
) -> None:
    site = tmp_path / "peaks.csv"
    site.write_text(text)
    with pytest.raises(PeakTableError) as error:
        PeakTable.load(site)
    assert str(error.value).startswith(f"{site}, {message}")


def test_of_the_instances_that_a_launcher_lists_the_process_sees_the_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    properties = SimpleNamespace(name="NVIDIA H100 80GB HBM3 MIG 1g.10gb", uuid="0-1")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-7f3a,MIG-90bc")
    assert describe_device(torch.device("cuda", 0)) == (properties.name, "MIG-7f3a")
