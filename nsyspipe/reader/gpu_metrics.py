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
    # The number of the last row takes no time, unlike a count of all rows.
    n_rows = report.number(GPU_METRICS, "max(rowid)") or 0
    if not n_rows:
        return NO_COUNTERS
    memory_bytes = machine_memory()
    # 0 if it is not known.
    if memory_bytes and n_rows * _ROW_BYTES > memory_bytes // _MEMORY_SHARE:
        return Counters(problems=(problem("too-many-counters", n=n_rows),))
    try:
        return _read(report, facts)
    except DamagedReportError:
        return Counters(problems=(problem("counters-unreadable"),))


def _read(report: Report, facts: ReportFacts) -> Counters:
    """Read the counters of all GPUs, sorted by GPU, and the problems with their values."""
    columns = _named_columns(report)
    if not columns:
        return Counters(problems=(problem("counters-without-names"),))
    bandwidth_of_gpu = _memory_bandwidths(report)
    table = _select(report, columns)
    samples_of_columns = _split(table, columns)
    # By GPU and counter. Several columns may count parts of one counter.
    series_by_gpu: dict[int, dict[str, list[Series]]] = {}
    n_wrong = 0
    for column, samples in zip(columns, samples_of_columns, strict=True):
        cleaned = _cleaned(samples, is_clock=column.name == CLOCK)
        n_wrong += cleaned.n_wrong
        if cleaned.series.times.size:
            gpu_id = column.type_id & _GPU_BITS
            series_by_counter = series_by_gpu.setdefault(gpu_id, {})
            series_by_counter.setdefault(column.name, []).append(cleaned.series)
    problems = (problem("counter-values-wrong", n=n_wrong),) if n_wrong else ()
    gpus = []
    for gpu_id, series_by_counter in sorted(series_by_gpu.items()):
        gpus.append(_gpu_counters(gpu_id, series_by_counter, facts, bandwidth_of_gpu))
    return Counters(tuple(gpus), problems)


def _gpu_counters(
    gpu_id: int,
    series_by_counter: Mapping[str, list[Series]],
    facts: ReportFacts,
    bandwidth_of_gpu: Mapping[int, int],
) -> GpuCounters:
    """Return the counters of one GPU, each the sum of the series that count parts of it."""
    totals: dict[str, Series] = {}
    for name in COUNTERS:
        if name in series_by_counter:
            totals[name] = total_of(series_by_counter[name])
    identity = facts.gpu_identities.get(gpu_id, GpuIdentity())
    model = facts.gpu_names.get(gpu_id)
    bandwidth = bandwidth_of_gpu.get(gpu_id)
    return GpuCounters(gpu_id, identity, model, bandwidth, _sharing_times(totals))


def _sharing_times(series_of_counter: Mapping[str, Series]) -> dict[str, Series]:
    """Return series that share the array of times of the first one, which takes less memory.

    A series with other times keeps its own.
    """
    sharing: dict[str, Series] = {}
    first_times: Int64 | None = None
    for name, series in series_of_counter.items():
        if first_times is None:
            first_times = series.times
        has_same_times = np.array_equal(first_times, series.times)
        sharing[name] = Series(first_times, series.values) if has_same_times else series
    return sharing


def _named_columns(report: Report) -> list[_Column]:
    """Return the columns of the counters that are read, sorted by GPU and metric.

    The report numbers and names them. The result is empty if it has no names, or far too many.
    """
    kinds = {"typeId": "int", "metricId": "int", "metricName": "text"}
    if not report.has(GPU_METRIC_NAMES, *kinds):
        return []
    if report.count(GPU_METRIC_NAMES) > _MAX_NAMES:
        return []
    columns: dict[tuple[int, int], _Column] = {}
    for row in report.few(GPU_METRIC_NAMES, kinds):
        name = counter_of(row["metricName"])
        type_id = row["typeId"]
        metric_id = row["metricId"]
        if name is None or type_id is None or metric_id is None:
            continue
        if 0 <= metric_id <= _MAX_METRIC_ID:
            columns.setdefault((type_id, metric_id), _Column(type_id, metric_id, name))
    all_type_ids = sorted({column.type_id for column in columns.values()})
    type_ids_read = all_type_ids[:_MAX_GPUS]
    return [column for _, column in sorted(columns.items()) if column.type_id in type_ids_read]


def counter_of(metric_name: str) -> str | None:
    """Return the counter that a name of nsys stands for, None if it is not read."""
    for name, pattern in _PATTERNS.items():
        if pattern.fullmatch(metric_name):
            return name
    return None


def _memory_bandwidths(report: Report) -> dict[int, int]:
    """Return the bandwidth of the memory of each GPU, in bytes per second, by GPU id."""
    bandwidths: dict[int, int] = {}
    for row in report.few(GPU, {"id": "int", "memoryBandwidth": "int"}):
        gpu_id = row["id"]
        bandwidth = row["memoryBandwidth"] or 0
        is_possible = 0 < bandwidth < TIME_LIMIT
        if gpu_id is not None and is_possible:
            bandwidths[gpu_id] = bandwidth
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
    """Return the samples of each counter, in the order of `columns`.

    It is not known of which counter a row with a null is. All these rows count as nulls of the
    first counter.
    """
    rows = table
    if any(column.null_count for column in table.columns):
        rows = table.drop_null()
    n_rows_with_null = table.num_rows - rows.num_rows
    counter_of_row = _counters_of_rows(rows, columns)
    # A sort of small numbers is fast, and keeps the order of rows.
    rows_by_counter = np.argsort(counter_of_row, kind="stable")
    times = rows["timestamp"].to_numpy()[rows_by_counter]
    values = rows["value"].to_numpy()[rows_by_counter]
    # The last count is that of rows without a counter.
    n_rows_of_counter = np.bincount(counter_of_row, minlength=len(columns) + 1)[:-1]
    end_of_counter = np.cumsum(n_rows_of_counter)
    first_of_counter = end_of_counter - n_rows_of_counter
    samples = [
        _Samples(times[first:end], values[first:end], n_nulls=0)
        for first, end in zip(first_of_counter, end_of_counter, strict=True)
    ]
    samples[0] = samples[0]._replace(n_nulls=n_rows_with_null)
    return samples


def _counters_of_rows(rows: pa.Table, columns: Sequence[_Column]) -> NDArray[np.uint16]:
    """Return the position among `columns` of the counter of each row.

    For a row without a counter, it is the number of columns.
    """
    type_ids_of_columns = np.array([column.type_id for column in columns])
    metric_ids_of_columns = np.array([column.metric_id for column in columns])
    # A type and a metric are known by their positions among these sorted ids.
    type_ids = np.unique(type_ids_of_columns)
    metric_ids = np.unique(metric_ids_of_columns)
    # The counter by type and metric. The last row and the last column are for unknown ids, which
    # have no counter.
    shape = (type_ids.size + 1, metric_ids.size + 1)
    counter_of_pair = np.full(shape, len(columns), np.uint16)
    type_of_column = _positions_among(type_ids, type_ids_of_columns)
    metric_of_column = _positions_among(metric_ids, metric_ids_of_columns)
    counter_of_pair[type_of_column, metric_of_column] = np.arange(len(columns))
    type_of_row = _positions_among(type_ids, rows["typeId"].to_numpy())
    metric_of_row = _positions_among(metric_ids, rows["metricId"].to_numpy())
    return counter_of_pair[type_of_row, metric_of_row]


def _positions_among(known: Int64, values: Int64) -> Int64:
    """Return the position of each value among sorted known values.

    For a value that is not known, it is the number of known values.
    """
    place = np.searchsorted(known, values)
    # A value above all known ones is compared with the last of them, which differs.
    known_at_place = known[np.minimum(place, known.size - 1)]
    return np.where(known_at_place == values, place, known.size)


class _Cleaned(NamedTuple):
    """The samples of one counter that can be right."""

    series: Series
    n_wrong: int


def _cleaned(samples: _Samples, *, is_clock: bool) -> _Cleaned:
    """Leave out samples at impossible times, and clamp impossible values.

    Samples of both kinds count as wrong, and so do samples without a time or value. If a sum over
    the whole time could overflow, all samples are left out, and all of them count as wrong. Clocks
    in Hz are converted to MHz.
    """
    times = samples.times
    is_possible = (times > -TIME_LIMIT) & (times < TIME_LIMIT)
    values = samples.values
    n_wrong = samples.n_nulls + int(np.count_nonzero(~is_possible))
    if n_wrong:
        times = times[is_possible]
        values = values[is_possible]
    if is_clock:
        is_in_hz = values >= _MIN_CLOCK_HZ
        # Half of the divisor is added to round to the nearest number.
        values_in_mhz = (values + _HZ_PER_MHZ // 2) // _HZ_PER_MHZ
        values = np.where(is_in_hz, values_in_mhz, values)
    max_value = _MAX_CLOCK_MHZ if is_clock else _MAX_PERCENT
    clamped = np.clip(values, 0, max_value)
    n_wrong += int(np.count_nonzero(clamped != values))
    # The limits above let clocks fit into 32 bits, and percentages into 8 bits.
    narrow_values: Any = clamped.astype(np.int32 if is_clock else np.uint8)
    series = Series.of(times, narrow_values)
    may_overflow = times.size > 0 and _span_ns(series) * max_value >= _MAX_INTEGRAL
    if may_overflow:
        no_samples = Series(times[:0], narrow_values[:0])
        # Not `n_wrong` plus all samples, because it has some of them already.
        return _Cleaned(no_samples, samples.n_nulls + samples.times.size)
    return _Cleaned(series, n_wrong)


def _span_ns(series: Series) -> int:
    """Return the time from the first sample to the end of the last, exactly."""
    # Python's integers do not overflow.
    first_ns = int(series.times[0])
    last_ns = int(series.times[-1])
    return last_ns - first_ns + series.period_ns
