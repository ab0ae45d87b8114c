"""Hardware counters of GPUs, which nsys samples with ``--gpu-metrics-devices``.

A report can have the counters of GPUs of other reports, because only one nsys of a host can count.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from msgspec import Struct
from numpy.typing import NDArray

from nsyspipe.analysis.counters import Lag, Series, total_of
from nsyspipe.errors import DamagedReportError
from nsyspipe.model.problems import Problem, problem
from nsyspipe.model.table import Int64
from nsyspipe.reader.facts import GpuIdentity, ReportFacts
from nsyspipe.reader.report import (
    GPU,
    GPU_METRIC_NAMES,
    GPU_METRICS,
    TIME_LIMIT,
    Report,
    machine_memory,
)

# The counters that are read, by their names in reports of any GPU. Several names are summed up:
# requests and responses are different packets of one link.
_COUNTERS = {
    "sm_active": r"SMs? Active \[Throughput %\]",
    "tensor_active": r"Tensor Active(?: / FP16 Active)? \[Throughput %\]",
    "dram_read": r"(?:DRAM|VRAM) Read (?:Bandwidth|Throughput) \[Throughput %\]",
    "dram_write": r"(?:DRAM|VRAM) Write (?:Bandwidth|Throughput) \[Throughput %\]",
    "nvlink_rx": r"NVLink RX (?:(?:Requests|Responses) User Data|Bandwidth|Throughput) "
    r"\[Throughput %\]",
    "nvlink_tx": r"NVLink TX (?:(?:Requests|Responses) User Data|Bandwidth|Throughput) "
    r"\[Throughput %\]",
    "pcie_rx": r"PCIe RX Throughput \[Throughput %\]",
    "pcie_tx": r"PCIe TX Throughput \[Throughput %\]",
    "gpc_clock": r"GPC Clock Frequency \[MHz\]",
}
_PATTERNS = {name: re.compile(text, re.IGNORECASE) for name, text in _COUNTERS.items()}
CLOCK = "gpc_clock"
COUNTERS = (*_COUNTERS,)
_MAX_PERCENT = 100
_MAX_CLOCK_MHZ = 100_000
# A larger number is a frequency in Hz, whatever its name says.
_MIN_CLOCK_HZ = 1_000_000
_HZ_PER_MHZ = 1_000_000
# The largest integral of a counter, so that no sum overflows.
_MAX_INTEGRAL = 2**62
# The low byte of a typeId is the GPU.
_GPU_BITS = 255
_MAX_METRIC_ID = 65_535
# More GPUs or names than any host has. What is beyond is not read.
_MAX_GPUS = 64
_MAX_NAMES = 20_000
# Bytes that a row takes while it is read, and the share of the memory that counters may take.
_ROW_BYTES = 64
_MEMORY_SHARE = 4


class GpuCounters(Struct, frozen=True):
    """The sampled counters of one GPU, in report time."""

    gpu_id: int
    identity: GpuIdentity
    model: str | None
    # The rate at which its memory counts as 100 %. None if it is not known.
    memory_bytes_per_s: int | None
    # By name, as in `COUNTERS`: whole per cent, and MHz for the clock.
    series: dict[str, Series]


class Counters(Struct, frozen=True):
    """The counters of one report."""

    gpus: tuple[GpuCounters, ...] = ()
    problems: tuple[Problem, ...] = ()
    # Behind the kernels of the report. None if no kernel shows it.
    lag: Lag | None = None


NO_COUNTERS = Counters()


class _Column(NamedTuple):
    """A counter of one GPU as the report numbers it."""

    type_id: int
    metric_id: int
    name: str


def read_counters(report: Report, facts: ReportFacts) -> Counters:
    """Read the counters of the GPUs of a report. There are none if nsys did not count."""
    if not report.has(GPU_METRICS, "timestamp", "typeId", "metricId", "value"):
        return NO_COUNTERS
    n_rows = report.number(GPU_METRICS, "max(rowid)") or 0
    if not n_rows:
        return NO_COUNTERS
    memory = machine_memory()
    if memory and n_rows * _ROW_BYTES > memory // _MEMORY_SHARE:
        return Counters(problems=(problem("too-many-counters", n=n_rows),))
    try:
        return _read(report, facts)
    except DamagedReportError:
        return Counters(problems=(problem("counters-unreadable"),))


def _read(report: Report, facts: ReportFacts) -> Counters:
    columns = _named_columns(report)
    if not columns:
        return Counters(problems=(problem("counters-without-names"),))
    bandwidths = _memory_bandwidths(report)
    table = _select(report, columns)
    samples = _split(table, columns)
    gpus: dict[int, dict[str, list[Series]]] = {}
    n_wrong = 0
    for column, rows in zip(columns, samples, strict=True):
        cleaned = _cleaned(rows, is_clock=column.name == CLOCK)
        n_wrong += cleaned.n_wrong
        if cleaned.series.times.size:
            series_of_gpu = gpus.setdefault(column.type_id & _GPU_BITS, {})
            series_of_gpu.setdefault(column.name, []).append(cleaned.series)
    problems = (problem("counter-values-wrong", n=n_wrong),) if n_wrong else ()
    counted = tuple(
        _gpu_counters(gpu_id, gpus[gpu_id], facts, bandwidths) for gpu_id in sorted(gpus)
    )
    return Counters(counted, problems)


def _gpu_counters(
    gpu_id: int,
    series: Mapping[str, list[Series]],
    facts: ReportFacts,
    bandwidths: Mapping[int, int],
) -> GpuCounters:
    totals: dict[str, Series] = {}
    for name in COUNTERS:
        if name in series:
            totals[name] = total_of(series[name])
    identity = facts.gpu_identities.get(gpu_id, GpuIdentity())
    model = facts.gpu_names.get(gpu_id)
    return GpuCounters(gpu_id, identity, model, bandwidths.get(gpu_id), _sharing_times(totals))


def _sharing_times(series: Mapping[str, Series]) -> dict[str, Series]:
    """Let counters with the same times share them, which takes less memory."""
    shared: dict[str, Series] = {}
    times: Int64 | None = None
    for name, each in series.items():
        is_shared = times is not None and np.array_equal(times, each.times)
        if times is None:
            times = each.times
        shared[name] = Series(times, each.values) if is_shared else each
    return shared


def _named_columns(report: Report) -> list[_Column]:
    """Return the counters that are read, by the names that the report gives them."""
    texts = {"typeId": "int", "metricId": "int", "metricName": "text"}
    if not report.has(GPU_METRIC_NAMES, *texts):
        return []
    if report.count(GPU_METRIC_NAMES) > _MAX_NAMES:
        return []
    columns: dict[tuple[int, int], _Column] = {}
    for row in report.few(GPU_METRIC_NAMES, texts):
        name = counter_of(row["metricName"])
        type_id = row["typeId"]
        metric_id = row["metricId"]
        if name is None or type_id is None or metric_id is None:
            continue
        if 0 <= metric_id <= _MAX_METRIC_ID:
            columns.setdefault((type_id, metric_id), _Column(type_id, metric_id, name))
    type_ids = sorted({column.type_id for column in columns.values()})[:_MAX_GPUS]
    return [column for _, column in sorted(columns.items()) if column.type_id in type_ids]


def counter_of(metric_name: str) -> str | None:
    """Return the counter that a name of nsys stands for, None if it is not read."""
    for name, pattern in _PATTERNS.items():
        if pattern.fullmatch(metric_name):
            return name
    return None


def _memory_bandwidths(report: Report) -> dict[int, int]:
    bandwidths: dict[int, int] = {}
    for row in report.few(GPU, {"id": "int", "memoryBandwidth": "int"}):
        bandwidth = row["memoryBandwidth"]
        if row["id"] is not None and bandwidth is not None and 0 < bandwidth < TIME_LIMIT:
            bandwidths[row["id"]] = bandwidth
    return bandwidths


def _select(report: Report, columns: Iterable[_Column]) -> pa.Table:
    """Return the rows of some counters, in one scan."""
    metric_ids = sorted({column.metric_id for column in columns})
    ids = ", ".join(map(str, metric_ids))
    kinds = dict.fromkeys(("timestamp", "typeId", "metricId", "value"), "int")
    return report.select(GPU_METRICS, kinds, where=f"metricId IN ({ids})")


class _Samples(NamedTuple):
    """The rows of one counter, in any order."""

    times: Int64
    values: Int64
    # Rows that have no time or no value.
    n_nulls: int


def _split(table: pa.Table, columns: Sequence[_Column]) -> list[_Samples]:
    """Return the rows of each counter."""
    n_rows = table.num_rows
    if any(column.null_count for column in table.columns):
        table = table.drop_null()
    code = _codes_of_rows(table, columns)
    # A sort of small numbers is fast, and keeps the order of rows.
    order = np.argsort(code, kind="stable")
    counts = np.bincount(code, minlength=len(columns) + 1)
    ends = np.cumsum(counts)
    times = table["timestamp"].to_numpy()[order]
    values = table["value"].to_numpy()[order]
    n_nulls = n_rows - table.num_rows
    samples = []
    for first, end in zip(ends - counts, ends[:-1], strict=False):
        samples.append(_Samples(times[first:end], values[first:end], n_nulls))
        # Rows without a value may have no counter either, so they count once.
        n_nulls = 0
    return samples


def _codes_of_rows(table: pa.Table, columns: Sequence[_Column]) -> NDArray[np.uint16]:
    """Return the place of the counter of each row, the number of counters for no counter."""
    type_ids = np.unique([column.type_id for column in columns])
    metric_ids = np.unique([column.metric_id for column in columns])
    # The place of each counter by the places of its GPU and of its metric. There is one more
    # place for other GPUs, and for other metrics.
    code = np.full((type_ids.size + 1, metric_ids.size + 1), len(columns), np.uint16)
    for place, column in enumerate(columns):
        at_type = np.searchsorted(type_ids, column.type_id)
        at_metric = np.searchsorted(metric_ids, column.metric_id)
        code[at_type, at_metric] = place
    type_of_row = _places(type_ids, table["typeId"].to_numpy())
    metric_of_row = _places(metric_ids, table["metricId"].to_numpy())
    return code[type_of_row, metric_of_row]


def _places(known: Int64, values: Int64) -> Int64:
    """Return the place of each value among the known ones, their number for other values."""
    place = np.searchsorted(known, values)
    nearest = known[np.minimum(place, known.size - 1)]
    return np.where(nearest == values, place, known.size)


class _Cleaned(NamedTuple):
    """The samples of one counter that can be right."""

    series: Series
    n_wrong: int


def _cleaned(samples: _Samples, *, is_clock: bool) -> _Cleaned:
    """Leave out samples at impossible times, and clamp impossible values."""
    times = samples.times
    is_possible = (times > -TIME_LIMIT) & (times < TIME_LIMIT)
    values = samples.values
    n_wrong = samples.n_nulls + int(np.count_nonzero(~is_possible))
    if n_wrong:
        times = times[is_possible]
        values = values[is_possible]
    if is_clock:
        is_hz = values >= _MIN_CLOCK_HZ
        in_mhz = (values + _HZ_PER_MHZ // 2) // _HZ_PER_MHZ
        values = np.where(is_hz, in_mhz, values)
    limit = _MAX_CLOCK_MHZ if is_clock else _MAX_PERCENT
    clamped = np.clip(values, 0, limit)
    n_wrong += int(np.count_nonzero(clamped != values))
    narrow: Any = clamped.astype(np.int32 if is_clock else np.uint8)
    series = Series.of(times, narrow)
    if times.size and _span_ns(series) * limit >= _MAX_INTEGRAL:
        return _Cleaned(Series(times[:0], narrow[:0]), n_wrong + times.size)
    return _Cleaned(series, n_wrong)


def _span_ns(series: Series) -> int:
    """Return the time from the first sample to the end of the last, exactly."""
    first = int(series.times[0])
    last = int(series.times[-1])
    return last - first + series.period_ns
