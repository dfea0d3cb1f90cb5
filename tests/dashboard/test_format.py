"""Numbers and words as the look writes them; expected texts are copied from it."""

import pytest

from flopwatch_dashboard import format as fmt


@pytest.mark.parametrize(
    ("fraction", "text"),
    [
        (0.33, "33 %"), (0.094, "9.4 %"), (0.0, "0 %"), (0.0004, "0 %"), (0.0006, "0.1 %"),
        (0.0995, "10 %"), (0.0994, "9.9 %"), (1.0, "100 %"), (None, "–"), (-0.033, "−3.3 %"),
    ],
)  # fmt: skip
def test_percent_has_a_decimal_only_below_ten(fraction: float | None, text: str) -> None:
    assert fmt.percent(fraction) == text


def test_mfu_always_has_one_decimal() -> None:
    assert fmt.percent_fine(0.249) == "24.9 %"
    assert fmt.percent_fine(None) == "–"


@pytest.mark.parametrize(
    ("hours", "text"), [(3772.4, "3,772"), (7.3, "7.3"), (9.96, "10"), (0.02, "0"), (None, "–")]
)
def test_gpu_hours_lose_their_decimal_from_ten_on(hours: float | None, text: str) -> None:
    assert fmt.gpu_hours(hours) == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (fmt.gibibytes(47206.4), "46.1 GiB"),
        (fmt.megahertz(1410.0), "1,410 MHz"),
        (fmt.watts(413.2), "413 W"),
        (fmt.kilowatts(346_000), "346 kW"),
        (fmt.kilowatts(2_400), "2.4 kW"),
        (fmt.kilowatt_hours(20.5 * 3.6e6), "20.5 kWh"),
        (fmt.kilowatt_hours(0.25 * 3.6e6), "0.25 kWh"),
        (fmt.celsius(62.4), "62 °C"),
        (fmt.teraflops(989.4e12), "989 TFLOP/s"),
        (fmt.teraflops(0.0123e12), "0.012 TFLOP/s"),
        (fmt.count(1204), "1,204"),
        (fmt.plural(1, "GPU"), "1 GPU"),
        (fmt.plural(0, "GPU"), "0 GPUs"),
    ],
)
def test_a_value_is_told_with_its_unit(text: str, expected: str) -> None:
    assert text == expected


@pytest.mark.parametrize(
    "text",
    [fmt.gibibytes(None), fmt.megahertz(None), fmt.watts(None), fmt.kilowatts(None),
     fmt.kilowatt_hours(None), fmt.celsius(None), fmt.teraflops(None), fmt.count(None),
     fmt.slurm_elapsed(None)],
)  # fmt: skip
def test_what_is_missing_is_a_dash_and_never_zero(text: str) -> None:
    assert text == "–"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (6, "6 s"), (59.4, "59 s"), (200, "3 min 20 s"), (240, "4 min"), (540, "9 min"),
        (700, "11 min"), (3600, "1 h 00 min"), (5 * 3600 + 120, "5 h 02 min"),
        (17 * 3600 + 52 * 60, "17 h 52 min"), (26 * 3600 + 45 * 60, "26 h 45 min"),
        (3 * 86400 + 4 * 3600, "3 d 4 h"), (-2, "0 s"),
    ],
)  # fmt: skip
def test_ages_are_told_in_two_units_at_most(seconds: float, text: str) -> None:
    assert fmt.age(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(2 * 86400 + 22 * 3600 + 18 * 60, "2-22:18"), (18 * 3600 + 24 * 60 + 59, "18:24"),
     (42 * 60, "0:42"), (0, "0:00")],
)  # fmt: skip
def test_elapsed_time_reads_as_in_slurm(seconds: float, text: str) -> None:
    assert fmt.slurm_elapsed(seconds) == text


@pytest.mark.parametrize(
    ("model", "text"),
    [
        ("NVIDIA H100 80GB HBM3", "H100"), ("NVIDIA A100-SXM4-80GB", "A100"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"), ("NVIDIA GH200 480GB", "GH200"),
        ("Tesla V100-SXM2-16GB", "V100"), (None, ""),
    ],
)  # fmt: skip
def test_a_table_has_room_for_the_number_of_a_model(model: str | None, text: str) -> None:
    assert fmt.short_model(model) == text
