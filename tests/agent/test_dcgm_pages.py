"""Pages of dcgm-exporters as people posted them: read by hand into a table, then by the parser."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flopwatch_agent.collectors import Value
from flopwatch_agent.collectors.dcgm import Place, Table, number_of
from flopwatch_agent.collectors.dcgm_exporter import parse_page

FOLDER = Path(__file__).parent / "fixtures/dcgm"
Rows = dict[Place, dict[str, Value]]


def gpu(number: int, gpu_instance: int | None = None) -> Place:
    """The made-up UUIDs of the fixtures: their number stands in them twice."""
    return f"GPU-f10000{number:02x}-f10b-4a7c-8000-0000000000{number:02x}", gpu_instance


# Every value that a page tells of a metric of ours. What stands in no row is not told.
PAGES: dict[str, Rows] = {
    "01-t4-busy-dcgm4": {
        gpu(0x00): {
            "sm_clock_mhz": 660, "temperature_c": 74, "power_watts": 68.244,
            "gpu_utilization": 0.91, "memory_used_mib": 5120, "engine_active": 0.156205,
            "tensor_active": 0.005822, "dram_active": 0.092781, "pcie_tx": 4791810,
            "pcie_rx": 6935930,
        },
    },
    # The whole page twice, with the same values.
    "02-l4-idle-full-dcgm4": {
        gpu(0x01): {
            "sm_clock_mhz": 210, "temperature_c": 31, "power_watts": 16.365, "gpu_utilization": 0,
            "memory_used_mib": 0, "engine_active": 0, "tensor_active": 0, "dram_active": 0,
            "pcie_tx": 112603, "pcie_rx": 17544,
        },
    },
    # A vGPU: no power and no profiling fields, which is not the same as 0.
    "04-vgpu-a100-40c-no-prof": {
        gpu(0x03): {"sm_clock_mhz": 1410, "gpu_utilization": 0, "memory_used_mib": 0},
    },
    # Three instances of one GPU under its UUID; no memory rows at all.
    "06-h100-mig-k8s-excerpt": {
        gpu(0x07, 7): {"engine_active": 0},
        gpu(0x07, 8): {"engine_active": 0},
        gpu(0x07, 9): {"engine_active": 0},
    },
    "07-v100-3.x-no-pcibus-excerpt": {gpu(0x0A): {"gpu_utilization": 0}},
    # A space after the comma, and labels that are empty. The blank is of a metric we don't keep.
    "09-blank-sentinel-int64": {gpu(0x0E): {"sm_clock_mhz": 139}},
    # Both are told as they are: that they contradict each other is the server's to see.
    "11-rtx5000-util100-prof0": {gpu(0x10): {"gpu_utilization": 1, "engine_active": 0}},
    "13-a100-nvlink-zero": {gpu(number): {"nvlink_tx": 0} for number in range(0x14, 0x18)},
    # Counts that the exporter makes by itself, under names that DCGM has not.
    "14-exp-counters": {},
    # GPU 1e has two jobs and therefore two rows of 0.4: its activity is 0.4.
    "17-hpc-job-mapping-MADE-UP": {
        gpu(0x1D): {"sm_active": 0.912597},
        gpu(0x1E): {"sm_active": 0.4},
        gpu(0x1F): {"sm_active": 0},
        gpu(0x20, 1): {"sm_active": 0.25},
        gpu(0x20, 2): {"sm_active": 0},
    },
}  # fmt: skip
BINDINGS = "16-h100-pydcgm-blank-then-real"


def read(name: str) -> str:
    return (FOLDER / f"{name}.txt").read_text()


def rows(table: Table) -> Rows:
    return {place: point.values for place, point in table.points.items()}


def page(*lines: str) -> Table:
    return parse_page("\n".join(lines))


def row(value: str, name: str = "DCGM_FI_PROF_SM_ACTIVE", labels: str = 'UUID="GPU-1"') -> str:
    return f"{name}{{{labels}}} {value}"


def only(table: Table) -> Value | None:
    """The one SM activity of the one GPU."""
    return table.points[("GPU-1", None)].values.get("sm_active")


@pytest.mark.parametrize("name", PAGES)
def test_a_page_says_what_stands_in_it(name: str) -> None:
    table = parse_page(read(name))
    told = rows(table)
    assert set(told) == set(PAGES[name])
    for place, values in PAGES[name].items():
        assert told[place] == pytest.approx(values)
    assert (table.bad, table.dropped, table.contradicted) == (0, 0, 0)


def test_every_fixture_is_in_the_table() -> None:
    assert {path.stem for path in FOLDER.glob("*.txt")} == {*PAGES, BINDINGS}


def test_values_of_the_bindings_are_blanks_without_a_watch_and_figures_with_one() -> None:
    """Not a page: DCGM's values as its Python bindings give them, so as a page would print them."""
    _, head, *lines = read(BINDINGS).splitlines()
    told = [dict(zip(head.split(), line.split(), strict=True)) for line in lines]
    names = head.split()[4:]
    for device in told[:2]:
        assert {number_of(device[name]) for name in names} == {"absent"}
        assert number_of(device["power_usage"]) in (69.437, 72.917)
    first, second = told[2:]
    assert [number_of(first[name]) for name in names] == pytest.approx(
        [1.7514509299667577e-09, 0.054007117442023134, 0.0, 0.9125968658836753,
         0.24450015849762033, 0.2793637431083633, 0.21368455905985453, 67358889, 873509672,
         4991556833, 4991558873]
    )  # fmt: skip
    assert number_of(second["nvlink_rx_bytes"]) == 0
    # An activity of a billionth is one, and no blank.
    assert number_of(first["fp64_active"]) != "absent"


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("2147483632", "absent"), ("2147483633", "absent"), ("2147483634", "unsupported"),
        ("2147483635", "no permission"), ("2147483631", 2147483631.0),
        ("2147483636", 2147483636.0),
        ("9223372036854775792", "absent"), ("9223372036854775793", "absent"),
        ("9223372036854775794", "unsupported"), ("9223372036854775795", "no permission"),
        ("140737488355328", "absent"), ("140737488355328.000000", "absent"),
        ("140737488355329.000000", "absent"), ("140737488355330.000000", "unsupported"),
        ("140737488355331.000000", "no permission"), ("1.40737488355330e+14", "unsupported"),
        # Through a float or JavaScript the last digits are lost, and with them the reason.
        ("9223372036854776000", "absent"), ("9.223372036854776e+18", "absent"),
        # A counter may pass a blank.
        ("140737488355332", 140737488355332.0), ("15152422938", 15152422938.0),
        ("NaN", "implausible"), ("+Inf", "implausible"), ("-inf", "implausible"),
        ("0.000000", 0.0), ("-1", -1.0),
    ],
)  # fmt: skip
def test_blanks_are_reasons_and_all_else_is_a_number(text: str, meaning: Value) -> None:
    assert number_of(text) == meaning


@pytest.mark.parametrize(
    ("value", "told"),
    [("1.000000", 1.0), ("1.0000005", 1.0), ("1.01", "implausible"), ("-0.1", "implausible"),
     ("NaN", "implausible"), ("1e400", "implausible")],
)  # fmt: skip
def test_a_ratio_is_from_0_to_1_or_dropped_and_counted(value: str, told: Value) -> None:
    table = page(row(value))
    assert only(table) == told
    assert table.dropped == (told == "implausible")


def test_garbage_of_utilization_is_dropped_and_never_cut_to_100() -> None:
    table = page(row("4294967295", "DCGM_FI_DEV_GPU_UTIL"))
    assert rows(table) == {("GPU-1", None): {"gpu_utilization": "implausible"}}
    assert table.dropped == 1


@pytest.mark.parametrize(
    ("old", "new", "metric"),
    [
        ("DCGM_FI_PROF_GR_ENGINE_ACTIVE", "DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO", "engine_active"),
        ("DCGM_FI_PROF_SM_ACTIVE", "DCGM_FI_PROF_SM_UTIL_RATIO", "sm_active"),
        ("DCGM_FI_PROF_SM_OCCUPANCY", "DCGM_FI_PROF_SM_OCCUPANCY_RATIO", "sm_occupancy"),
        ("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "DCGM_FI_PROF_TENSOR_UTIL_RATIO", "tensor_active"),
        ("DCGM_FI_PROF_DRAM_ACTIVE", "DCGM_FI_PROF_DRAM_UTIL_RATIO", "dram_active"),
        ("DCGM_FI_PROF_PIPE_FP64_ACTIVE", "DCGM_FI_PROF_FP64_UTIL_RATIO", "fp64_active"),
        ("DCGM_FI_PROF_PIPE_FP32_ACTIVE", "DCGM_FI_PROF_FP32_UTIL_RATIO", "fp32_active"),
        ("DCGM_FI_PROF_PIPE_FP16_ACTIVE", "DCGM_FI_PROF_FP16_UTIL_RATIO", "fp16_active"),
        ("dcgm_fi_prof_sm_active", "DCGM_FI_PROF_SM_UTIL_RATIO", "sm_active"),
    ],
)
def test_names_of_all_times_mean_the_same_field(old: str, new: str, metric: str) -> None:
    for name in (old, new):
        assert rows(page(row("0.5", name))) == {("GPU-1", None): {metric: 0.5}}


def test_a_name_whose_scale_changed_from_version_to_version_is_not_believed() -> None:
    """GPU_UTIL_RATIO was 0 to 100 (field 203) in DCGM 4.6 and is 0 to 1 (field 1613) in 4.7."""
    assert rows(page(row("1", "DCGM_FI_DEV_GPU_UTIL_RATIO"))) == {}


def test_rates_are_bytes_a_second_as_they_stand() -> None:
    nvlink = 'gpu_uuid="GPU-1",model_name="H100"'
    table = page(
        row("67358889", "DCGM_FI_PROF_PCIE_TX_BYTES"),
        row("873509672", "DCGM_FI_PROF_PCIE_RX_BYTES"),
        row("4991556833", "DCGM_FI_PROF_NVLINK_TX_BYTES", nvlink),
        row("4991558873", "DCGM_FI_PROF_NVLINK_RX_BYTES", nvlink),
    )
    assert rows(table) == {
        ("GPU-1", None): {"pcie_tx": 67358889, "pcie_rx": 873509672, "nvlink_tx": 4991556833,
                          "nvlink_rx": 4991558873},
    }  # fmt: skip


@pytest.mark.parametrize(
    "labels",
    [
        'gpu="0",UUID="GPU-1",device="nvidia0"',
        'gpu="0",uuid="GPU-1",device="nvidia0"',
        'gpu="7",gpu_uuid="GPU-1",model_name="A100",Hostname="localhost"',
        'gpu="0", UUID="GPU-1" , hostname="other",exported_pod="a",pod="",',
        'UUID="GPU-1",err_msg="a \\"quoted\\" word, with } and = in it"',
    ],
)
def test_labels_of_all_generations_name_the_same_gpu(labels: str) -> None:
    assert only(page(row("0.5", labels=labels))) == 0.5


@pytest.mark.parametrize("label", ["nvlink", "nvswitch", "cpu", "cpucore"])
def test_a_row_of_a_part_or_of_something_else_is_not_the_gpus(label: str) -> None:
    assert rows(page(row("5", "DCGM_FI_PROF_NVLINK_TX_BYTES", f'{label}="1",UUID="GPU-1"'))) == {}


@pytest.mark.parametrize(
    "line",
    [
        "DCGM_FI_PROF_DRAM_ACTIVE{UUID=\"GPU-1\"} ERROR - FAILED TO CONVERT TO STRING",
        'DCGM_FI_PROF_DRAM_ACTIVE{UUID="GPU-1"} N/A',
        'DCGM_FI_PROF_DRAM_ACTIVE{UUID="GPU-1"}',
        'DCGM_FI_PROF_DRAM_ACTIVE{UUID="GPU-1" 0.5',
        'DCGM_FI_PROF_DRAM_ACTIVE{UUID=GPU-1} 0.5',
        'DCGM_FI_PROF_DRAM_ACTIVE{gpu="0"} 0.5',
        'DCGM_FI_PROF_DRAM_ACTIVE{UUID="GPU-1",GPU_I_ID="one"} 0.5',
        "<html>",
        "\x00\x01",
    ],
)  # fmt: skip
def test_a_bad_line_costs_that_line_and_is_counted(line: str) -> None:
    table = page(row("0.25"), line, row("0.75", labels='UUID="GPU-2"'))
    assert rows(table) == {
        ("GPU-1", None): {"sm_active": 0.25},
        ("GPU-2", None): {"sm_active": 0.75},
    }
    assert table.bad == 1
    assert table.first_bad == line


def test_a_timestamp_after_the_value_is_no_fault() -> None:
    assert only(page(row("0.5 1700000000000"))) == 0.5


def test_copies_are_one_value_and_contradictions_are_none() -> None:
    assert only(page(row("0.5"), row("0.5"))) == 0.5
    table = page(row("0.5"), row("0.6"), row("0.5"))
    assert only(table) == "implausible"
    assert table.contradicted == 2


def test_a_value_beside_a_blank_counts_in_either_order() -> None:
    blank = row("140737488355330")
    assert only(page(blank, row("0.5"))) == only(page(row("0.5"), blank)) == 0.5


def test_the_last_xid_is_a_code_and_zero_is_none() -> None:
    for name in ("DCGM_FI_DEV_XID_ERRORS", "DCGM_FI_DEV_XID_ERROR"):
        assert page(row("79", name)).points[("GPU-1", None)].xid == 79
    assert page(row("0", "DCGM_FI_DEV_XID_ERRORS")).points == {}


def test_only_told_values_change_the_fingerprint() -> None:
    before = page(row("0.5")).fingerprint
    assert page("# HELP x", row("0.5"), "up 1").fingerprint == before
    assert page(row("0.6")).fingerprint != before
    energy = row("2", "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION")
    assert page(row("0.5"), energy).fingerprint != before


_WHOLE = [line for line in read("01-t4-busy-dcgm4").splitlines() if not line.startswith("#")]


@given(st.data())
def test_no_page_raises_and_no_broken_line_loses_another(data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(_WHOLE) - 1))
    line = _WHOLE[place]
    start = data.draw(st.integers(0, len(line)))
    end = data.draw(st.integers(start, len(line)))
    junk = data.draw(st.text(max_size=20).filter(lambda text: "\n" not in text))
    broken = line[:start] + junk + line[end:]
    others = _WHOLE[:place] + _WHOLE[place + 1 :]
    expected = parse_page("\n".join(others))
    told = parse_page("\n".join([*_WHOLE[:place], broken, *_WHOLE[place + 1 :]]))
    own = {metric for _, metric, _ in parse_page(line).metrics()}
    for where, metric, value in expected.metrics():
        # The broken line may now speak of another metric, and contradict that one.
        if metric not in own and told.contradicted == 0:
            assert told.points[where].values[metric] == value
    assert told.bad <= 1


@given(st.text())
def test_no_text_raises(text: str) -> None:
    parse_page(text)
