"""Rows of the tables of device operations: typed, with a valid time and a process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nsyspipe.read import versions

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from nsyspipe.read.report import Report

    Int64 = NDArray[np.int64]

__all__ = [
    "OPERATION_COLUMNS",
    "TIME_LIMIT",
    "constant",
    "overlapping",
    "pid_of",
    "process_of",
    "process_of_thread",
    "valid_rows",
]

# globalTid = 8 bits hardware, 8 VM, 24 process, 24 thread; without the thread it is the globalPid.
_THREAD_BITS = _PID_BITS = 0xFFFFFF
_PID_SHIFT = 24

# No clock reaches this (73 years), and no sum or difference of two such times overflows.
TIME_LIMIT = 2**61

# Canonical column -> nsys's.
OPERATION_COLUMNS = {
    "process_id": "globalPid",
    "start_ns": "start",
    "end_ns": "end",
    "device_id": "deviceId",
    "correlation_id": "correlationId",
}


def process_of(global_tid: Int64) -> Int64:
    """Return the globalPid of each globalTid; exact for negative ids too."""
    return global_tid & np.int64(~_THREAD_BITS)


def process_of_thread(global_tid: int) -> int:
    """Return the globalPid of one globalTid."""
    return global_tid & ~_THREAD_BITS


def pid_of(global_pid: int) -> int:
    """Return the operating system's process id; right for negative ids too."""
    return (global_pid >> _PID_SHIFT) & _PID_BITS


def valid_rows(
    report: Report,
    table: str,
    columns: Mapping[str, str],
    derived: Mapping[str, str] | None = None,
    *,
    beside: Callable[[pa.Table], pa.Table] | None = None,
    where: str | None = None,
) -> tuple[dict[str, pa.ChunkedArray], int]:
    """Read one table of operations; drop and count rows without a valid time.

    `columns` names the source of each canonical column; one that this export lacks is null. A
    missing process is the report's only one. `derived` are SQL expressions by canonical column;
    `beside` adds columns to all rows as they stand in the table. `where` is an SQL condition.
    """
    derived = derived or {}
    if not report.has(table):
        return {name: pa.chunked_array([], pa.int64()) for name in (*columns, *derived)}, 0
    report.require(table, "start", "end")
    found = report.select(
        table, dict.fromkeys(columns.values(), "int"), derived=derived, where=where
    )
    found = beside(found) if beside else found
    n_rows = found.num_rows
    in_order = pc.greater_equal(found["end"], found["start"])
    in_range = pc.and_(pc.less(found["end"], TIME_LIMIT), pc.greater(found["start"], -TIME_LIMIT))
    valid = pc.fill_null(pc.and_(in_order, in_range), fill_value=False)
    if not pc.all(valid, min_count=0).as_py():
        found = found.filter(valid)
    rows = {name: found[source] for name, source in columns.items()}
    more = found.column_names[len(dict.fromkeys(columns.values())) :]
    rows |= {name: found[name] for name in more}
    if rows["process_id"].null_count:
        rows["process_id"] = pc.fill_null(rows["process_id"], _only_process(report))
    return rows, n_rows - found.num_rows


def overlapping(span: tuple[int, int] | None) -> str | None:
    """Return the SQL condition for rows that run in a span ``[first, last)``, or begin in it; none for None."""
    if span is None:
        return None
    first, last = span
    return f'"start" < {last} AND ("end" > {first} OR "start" = {first})'


def constant(rows: Mapping[str, pa.ChunkedArray], value: int) -> pa.Array:
    """Return a column of one value, as long as the others."""
    return pa.array(np.full(len(rows["start_ns"]), value))


def _only_process(report: Report) -> int:
    """Return the process whose threads called CUDA or NVTX, if there is just one; else 0."""
    for table in (versions.RUNTIME, versions.NVTX):
        if report.has(table, "globalTid"):
            threads = pc.unique(report.select(table, {"globalTid": "int"})["globalTid"]).drop_null()
            processes = np.unique(process_of(threads.to_numpy()))
            if processes.size == 1:
                return int(processes[0])
    return 0
