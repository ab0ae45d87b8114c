"""CUDA calls that allocate, free or map memory of a GPU: how many each step has, and how long."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nsyspipe.analysis.attribution import filled
from nsyspipe.analysis.breakdown import DeviceTime
from nsyspipe.analysis.intervals import FOREVER, IntervalSet, Slices, union
from nsyspipe.analysis.steps import Members, Windows
from nsyspipe.model.table import Flags, Int64
from nsyspipe.model.typed_tables import MemoryCallsOfReportTable

# Columns of `schema.STEPS` that are made from these calls.
MEMORY_CALL_COLUMNS = (
    "n_allocs",
    "n_frees",
    "n_failed_allocs",
    "alloc_bytes",
    "freed_bytes",
    "alloc_host_ns",
)

_ALWAYS = IntervalSet(np.array([-FOREVER]), np.array([FOREVER]))


def host_periods(members: Members, windows: Windows) -> IntervalSet:
    """Return the period of the host that belongs to each window, on the clock of the host.

    A period lasts from the start of the step range of its window to the start of the next range
    that has a window. The last period ends with its range. The window of a capture without steps
    has no step range, and its period has no end.
    """
    is_whole_capture = members.starts.size < len(windows)
    if is_whole_capture:
        return _ALWAYS
    starts = members.starts[windows.member]
    last_member = windows.member[-1:]
    last_end = members.ends[last_member]
    ends = np.append(starts[1:], last_end)
    return IntervalSet(starts, ends)


def count_memory_calls(
    calls: MemoryCallsOfReportTable | None, periods: IntervalSet
) -> dict[str, Int64 | None]:
    """Count the calls that start in each period of the host: `MEMORY_CALL_COLUMNS`.

    `calls` are `canonical.MEMORY_CALLS` of a process, None if not recorded. An allocation that is
    known to have failed allocated nothing. A value is negative in a period in which it is not
    known, and a column is None if it is not known at all.
    """
    if calls is None:
        return dict.fromkeys(MEMORY_CALL_COLUMNS)
    starts = calls["start_ns"].to_numpy()
    slices = Slices.within(starts, periods.starts, periods.ends)
    is_alloc = calls["is_alloc"].to_numpy()
    is_free = calls["is_free"].to_numpy()
    columns: dict[str, Int64 | None] = {}
    columns["n_allocs"] = _sums(slices, is_alloc)
    columns["n_frees"] = _sums(slices, is_free)
    columns["n_failed_allocs"] = _known_sums(slices, is_alloc, calls["is_failed"])
    has_allocated = is_alloc & ~_have_failed(calls)
    columns["alloc_bytes"] = _known_sums(slices, has_allocated, calls["bytes"])
    columns["freed_bytes"] = _known_sums(slices, is_free, calls["bytes"])
    columns["alloc_host_ns"] = _times(calls).lengths(periods.starts, periods.ends)
    return columns


def _have_failed(calls: MemoryCallsOfReportTable) -> Flags:
    """Tell which calls are known to have failed."""
    has_failed = pc.fill_null(calls["is_failed"], fill_value=False)
    flags: Flags = has_failed.to_numpy()
    return flags


def _times(calls: MemoryCallsOfReportTable, offset_ns: int = 0) -> IntervalSet:
    """Return when the host is in any of the calls, later by some time."""
    starts = calls["start_ns"].to_numpy()
    ends = calls["end_ns"].to_numpy()
    times = union(starts, ends)
    return times.shifted(offset_ns)


def _sums(slices: Slices, values: Flags | Int64) -> Int64:
    """Return the sum of the values of each slice."""
    totals = np.cumsum(values, dtype=np.int64)
    total_before = np.append(0, totals)
    sums = total_before[slices.last]
    sums -= total_before[slices.first]
    return sums


def _known_sums(slices: Slices, is_counted: Flags, column: pa.ChunkedArray) -> Int64:
    """Return the sum of the counted values of each slice, -1 if one of these is not known."""
    integers = column.cast(pa.int64())
    values = filled(integers, 0)
    counted_values = np.where(is_counted, values, 0)
    is_unknown = pc.is_null(column).to_numpy()
    is_unknown &= is_counted
    sums = _sums(slices, counted_values)
    n_unknown = _sums(slices, is_unknown)
    return np.where(n_unknown > 0, -1, sums)


def exposed_memory_calls(
    calls: MemoryCallsOfReportTable | None, device: DeviceTime, offset_ns: int
) -> Int64 | None:
    """Return how long the device of a rank runs nothing while the host is in one of some calls.

    The lengths are in ns in each window. `calls` are those that allocate, free or map memory, None
    if not recorded. Then the result is None, too. The clock of the device is later than that of the
    host by `offset_ns`.
    """
    if calls is None:
        return None
    times = _times(calls, offset_ns)
    without_kernels = device.exposed(times)
    idle_times = without_kernels.without(device.memory)
    return device.windows.covered(idle_times)
