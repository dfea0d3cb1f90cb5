"""GPU models and what they can do at most: the peaks behind every MFU.

The table `gpu-peaks.csv` holds dense peaks of data sheets, one row a model, each with its source.
A site may add or override rows by a file with the same columns. An empty cell means that no
trustworthy figure is known: then there is no MFU, never the figure of a similar GPU.
"""

import csv
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path

BUILT_IN_TABLE = Path(__file__).with_name("gpu-peaks.csv")

_TERA = 1e12
_GIGA = 1e9

# Matmuls of a dtype run at the first of these columns that the GPU has. A GPU without FP64 tensor
# cores multiplies in its FP64 units; float32 means matmuls that may not use TF32.
_COLUMNS_BY_DTYPE: dict[str, tuple[str, ...]] = {
    "float64": ("tflops_fp64_tensor", "tflops_fp64"),
    "float32": ("tflops_fp32",),
    "tf32": ("tflops_tf32",),
    "bfloat16": ("tflops_bf16",),
    "float16": ("tflops_fp16",),
    "float8_e4m3fn": ("tflops_fp8",),
    "float8_e4m3fnuz": ("tflops_fp8",),
    "float8_e5m2": ("tflops_fp8",),
    "float8_e5m2fnuz": ("tflops_fp8",),
    "float4_e2m1fn_x2": ("tflops_fp4",),
    "int8": ("tops_int8",),
    "uint8": ("tops_int8",),
}
_PEAK_COLUMNS = frozenset(column for columns in _COLUMNS_BY_DTYPE.values() for column in columns)
_NUMBER_COLUMNS = _PEAK_COLUMNS | {"memory_gb", "mem_bw_gbs"}
_TEXT_COLUMNS = frozenset({"name_pattern", "vendor", "arch", "source"})


class PeakTableError(ValueError):
    """A peak table is wrong; the message names the file, the line and the column."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU model. What is not known of it is None.

    `memory_gb` is in units of 10^9 bytes as vendors print it; `memory_bandwidth` is bytes/s.
    """

    name_pattern: re.Pattern[str]
    memory_gb: float | None = None
    memory_bandwidth: float | None = None
    source: str = ""
    peaks: Mapping[str, float] = field(default_factory=dict)

    def peak_flops(self, dtype: str) -> float | None:
        """Dense matmul peak in FLOP/s for a dtype as PyTorch names it, or "tf32"; else None."""
        for column in _COLUMNS_BY_DTYPE.get(dtype, ()):
            if column in self.peaks:
                return self.peaks[column] * _TERA
        return None


@dataclass(frozen=True, slots=True)
class PeakTable:
    """GPU models in order of precedence."""

    gpus: tuple[Gpu, ...]

    @classmethod
    def load(cls, site_file: Path | None = None) -> "PeakTable":
        """Read the built-in table, with the rows of a site's own file before it.

        A site file needs the column `name_pattern` and any of the others. Raise PeakTableError
        if a file is wrong, OSError if it can't be read.
        """
        site_gpus = tuple(_read(site_file)) if site_file else ()
        return cls((*site_gpus, *_read(BUILT_IN_TABLE)))

    def lookup(self, model_name: str) -> Gpu | None:
        """The first GPU whose pattern is found in the driver's name of the model; else None."""
        return next((gpu for gpu in self.gpus if gpu.name_pattern.search(model_name)), None)


def _read(path: Path) -> Iterator[Gpu]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        rows = csv.DictReader(file, strict=True)
        columns = rows.fieldnames or []
        if "name_pattern" not in columns:
            raise PeakTableError(f"{path}, line 1: the column name_pattern is missing")
        for column in columns:
            if column not in _NUMBER_COLUMNS | _TEXT_COLUMNS:
                raise PeakTableError(f"{path}, line 1: unknown column {column!r}")
        try:
            for row in rows:
                yield _gpu(row, f"{path}, line {rows.line_num}")
        except csv.Error as error:
            raise PeakTableError(f"{path}, line {rows.line_num}: {error}") from error


def _gpu(row: dict[str, str | None], where: str) -> Gpu:
    if None in row:
        raise PeakTableError(f"{where}: more cells than columns")
    pattern = (row["name_pattern"] or "").strip()
    if not pattern:
        raise PeakTableError(f"{where}, column name_pattern: empty")
    try:
        name_pattern = re.compile(pattern)
    except re.error as error:
        raise PeakTableError(f"{where}, column name_pattern: {error}") from error
    numbers = {
        column: _number(text.strip(), f"{where}, column {column}")
        for column, text in row.items()
        if column in _NUMBER_COLUMNS and text and text.strip()
    }
    bandwidth = numbers.get("mem_bw_gbs")
    return Gpu(
        name_pattern,
        memory_gb=numbers.get("memory_gb"),
        memory_bandwidth=None if bandwidth is None else bandwidth * _GIGA,
        source=(row.get("source") or "").strip(),
        peaks={column: value for column, value in numbers.items() if column in _PEAK_COLUMNS},
    )


def _number(text: str, where: str) -> float:
    try:
        value = float(text)
    except ValueError as error:
        raise PeakTableError(f"{where}: {text!r} is not a number") from error
    if not isfinite(value) or value <= 0:
        raise PeakTableError(f"{where}: {text!r} is not a positive number")
    return value
