"""Numbers and words as screens show them; the one place that turns a value into text.

Missing is a dash, never 0. Times of day are written by the browser, in its own zone
(components/time.py).
"""

import re

DASH = "–"
MINUS = "−"
_MIB_PER_GIB = 1024
_JOULES_PER_KWH = 3.6e6
_MODEL_NUMBER = re.compile(r"(RTX )?\b[A-Z]*\d+\w*")


def percent(fraction: float | None) -> str:
    """ "33 %" from 10 on, "9.4 %" below, "0 %" for a true zero and what would read "0.0 %"."""
    if fraction is None:
        return DASH
    value = 100 * fraction
    if abs(value) < 0.05:
        return "0 %"
    return f"{_signed(value, 0 if abs(value) >= 9.95 else 1)} %"


def percent_fine(fraction: float | None) -> str:
    """ "24.9 %": MFU is told with one decimal always."""
    return DASH if fraction is None else f"{_signed(100 * fraction, 1)} %"


def count(value: float | None) -> str:
    """ "1,204"."""
    return DASH if value is None else _signed(value, 0)


def gpu_hours(hours: float | None) -> str:
    """ "3,772" from 10 on, "7.3" below, "0" for what would read "0.0"."""
    if hours is None:
        return DASH
    if abs(hours) < 0.05:
        return "0"
    return _signed(hours, 0 if abs(hours) >= 9.95 else 1)


def gibibytes(mebibytes: float | None) -> str:
    """ "46.1 GiB" from MiB."""
    return DASH if mebibytes is None else f"{mebibytes / _MIB_PER_GIB:,.1f} GiB"


def watts(power_watts: float | None) -> str:
    """ "413 W"."""
    return DASH if power_watts is None else f"{_signed(power_watts, 0)} W"


def kilowatts(power_watts: float | None) -> str:
    """ "346 kW" from 10 kW on, "2.4 kW" below."""
    if power_watts is None:
        return DASH
    value = power_watts / 1000
    return f"{_signed(value, 0 if value >= 9.95 else 1)} kW"


def kilowatt_hours(energy_joules: float | None) -> str:
    """ "20.5 kWh"; two decimals below 1, so that a short job does not read as nothing."""
    if energy_joules is None:
        return DASH
    value = energy_joules / _JOULES_PER_KWH
    return f"{value:,.{2 if value < 0.995 else 1}f} kWh"


def megahertz(clock_mhz: float | None) -> str:
    """ "1,410 MHz"."""
    return DASH if clock_mhz is None else f"{_signed(clock_mhz, 0)} MHz"


def celsius(temperature_c: float | None) -> str:
    """ "62 °C"."""
    return DASH if temperature_c is None else f"{_signed(temperature_c, 0)} °C"


def teraflops(flops_per_second: float | None) -> str:
    """ "989 TFLOP/s" from 10 on, "9.4 TFLOP/s" below, three digits below 1."""
    if flops_per_second is None:
        return DASH
    value = flops_per_second / 1e12
    digits = 0 if value >= 9.95 else 1 if value >= 0.95 else 3
    return f"{value:,.{digits}f} TFLOP/s"


def age(seconds: float) -> str:
    """ "6 s", "3 min 20 s", "17 h 52 min", "3 d 4 h": how long something lasts."""
    whole = max(0, round(seconds))
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    days, day_hours = divmod(hours, 24)
    if whole < 60:
        return f"{whole} s"
    if hours == 0:
        return f"{minutes} min {rest:02d} s" if minutes < 10 and rest else f"{minutes} min"
    if days >= 2:
        return f"{days} d {day_hours} h"
    return f"{hours} h {minutes:02d} min"


def slurm_elapsed(seconds: float | None) -> str:
    """ "2-22:18", "18:24", "0:42": days, hours and minutes as Slurm's users read them."""
    if seconds is None:
        return DASH
    hours, minutes = divmod(int(seconds) // 60, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days}-{hours:02d}:{minutes:02d}"
    return f"{hours}:{minutes:02d}"


def axis_time(seconds: int) -> int:
    """Milliseconds since 1970 for a chart's time axis; the browser shows them in its own zone."""
    return seconds * 1000


def model_name(model: str | None) -> str:
    """ "H100 80GB HBM3" of "NVIDIA H100 80GB HBM3"."""
    return (model or "").removeprefix("NVIDIA ")


def short_model(model: str | None) -> str:
    """ "H100" of "NVIDIA H100 80GB HBM3", "RTX 4090" of "NVIDIA GeForce RTX 4090"."""
    found = _MODEL_NUMBER.search(model or "")
    return found[0] if found else model_name(model)


def plural(number: int, word: str) -> str:
    """ "1 GPU", "8 GPUs"."""
    return f"{count(number)} {word}{'' if number == 1 else 's'}"


def _signed(value: float, digits: int) -> str:
    text = f"{value:,.{digits}f}"
    return text.replace("-", MINUS)
