"""Device operations and API calls of a report as canonical Arrow tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nsyspipe import schema
from nsyspipe.read import versions

if TYPE_CHECKING:
    import re
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from nsyspipe.read.report import Report
    from nsyspipe.read.strings import Strings

    Int64 = NDArray[np.int64]

__all__ = [
    "TIME_LIMIT",
    "Operations",
    "pid_of",
    "process_of",
    "process_of_thread",
    "read_launches",
    "read_operations",
]

# globalTid = 8 bits hardware, 8 VM, 24 process, 24 thread; without the thread it is the globalPid.
_THREAD_BITS = _PID_BITS = 0xFFFFFF
_PID_SHIFT = 24
_COMM_PREFIX = "nccl"

# No clock reaches this (73 years), and no sum or difference of two such times overflows.
TIME_LIMIT = 2**61

# Canonical column -> nsys's.
_OPERATION_COLUMNS = {
    "process_id": "globalPid",
    "start_ns": "start",
    "end_ns": "end",
    "device_id": "deviceId",
    "correlation_id": "correlationId",
}
_MEMSET_COLUMNS = _OPERATION_COLUMNS | {"bytes": "bytes"}
_COPY_COLUMNS = _MEMSET_COLUMNS | {"copy_kind": "copyKind"}


def process_of(global_tid: Int64) -> Int64:
    """Return the globalPid of each globalTid; exact for negative ids too."""
    return global_tid & np.int64(~_THREAD_BITS)


def process_of_thread(global_tid: int) -> int:
    """Return the globalPid of one globalTid."""
    return global_tid & ~_THREAD_BITS


def pid_of(global_pid: int) -> int:
    """Return the operating system's process id; right for negative ids too."""
    return (global_pid >> _PID_SHIFT) & _PID_BITS


@dataclass(frozen=True)
class Operations:
    """What ran on the devices.

    Attributes
    ----------
    kernels, copies
        `schema.KERNELS` and `schema.COPIES`.
    n_dropped
        Rows that ended before they started, or had no time.
    n_graphs
        CUDA graphs that were captured as a whole: their kernels cannot be told apart.
    has_names
        Whether any kernel's name is known; true without kernels.
    """

    kernels: pa.Table
    copies: pa.Table
    n_dropped: int
    n_graphs: int
    has_names: bool


def read_operations(
    report: Report, strings: Strings, comm_pattern: re.Pattern[str] | None
) -> Operations:
    """Read all device operations; a table that the lazy export left out has no rows."""
    kernels, bad_kernels, has_names = _read_kernels(report, strings, comm_pattern)
    graphs, bad_graphs = _valid_rows(report, versions.GRAPH, _OPERATION_COLUMNS)
    memcpys, bad_memcpys = _valid_rows(report, versions.MEMCPY, _COPY_COLUMNS)
    memsets, bad_memsets = _valid_rows(report, versions.MEMSET, _MEMSET_COLUMNS)
    graphs = schema.KERNELS.table(graphs | {"is_comm": _constant(graphs, value=False)})
    memsets |= {"copy_kind": _constant(memsets, schema.MEMSET_KIND)}
    copies = [schema.COPIES.table(memcpys), schema.COPIES.table(memsets)]
    return Operations(
        kernels=pa.concat_tables([kernels, graphs]),
        copies=pa.concat_tables(copies),
        n_dropped=bad_kernels + bad_graphs + bad_memcpys + bad_memsets,
        n_graphs=graphs.num_rows,
        has_names=has_names,
    )


def read_launches(report: Report) -> pa.Table | None:
    """Read the CUDA API calls as `schema.LAUNCHES`; None when they were not recorded."""
    columns = ("start", "globalTid", "correlationId")
    if not report.has(versions.RUNTIME, *columns):
        return None
    found = report.select(versions.RUNTIME, dict.fromkeys(columns, "int")).drop_null()
    process = process_of(found["globalTid"].to_numpy())
    return schema.LAUNCHES.table(
        {
            "process_id": process,
            "start_ns": found["start"],
            "correlation_id": found["correlationId"],
        }
    )


def _read_kernels(
    report: Report, strings: Strings, comm_pattern: re.Pattern[str] | None
) -> tuple[pa.Table, int, bool]:
    names = [name for name in ("shortName", "demangledName") if report.has(versions.KERNEL, name)]
    if report.has(versions.KERNEL) and not names:
        report.require(versions.KERNEL, "shortName")
    columns = _OPERATION_COLUMNS | {name: name for name in names}
    rows, n_dropped = _valid_rows(report, versions.KERNEL, columns)
    comm_ids = strings.ids_beginning(_COMM_PREFIX, ignore_case=True)
    is_comm, has_names = _constant(rows, value=False), True
    if names:
        used = pc.unique(rows[names[0]]).drop_null().to_numpy()
        has_names = not used.size or strings.lookup(used).null_count < used.size
    for name in names:
        is_comm = pc.or_(is_comm, _in_set(rows[name], comm_ids, strings, comm_pattern))
    return schema.KERNELS.table(rows | {"is_comm": is_comm}), n_dropped, has_names


def _in_set(
    ids: pa.ChunkedArray, comm_ids: Int64, strings: Strings, comm_pattern: re.Pattern[str] | None
) -> pa.ChunkedArray:
    if comm_pattern is not None:
        used = pc.unique(ids).drop_null().to_numpy()
        comm_ids = np.union1d(comm_ids, strings.ids_matching(comm_pattern, used))
    return pc.is_in(ids, value_set=pa.array(comm_ids))


def _valid_rows(
    report: Report, table: str, columns: Mapping[str, str]
) -> tuple[dict[str, pa.ChunkedArray], int]:
    """Read one table of operations; drop and count rows without a valid time.

    `columns` names the source of each canonical column; one that this export lacks is null. A
    missing process is the report's only one.
    """
    if not report.has(table):
        return {name: pa.chunked_array([], pa.int64()) for name in columns}, 0
    report.require(table, "start", "end")
    found = report.select(table, dict.fromkeys(columns.values(), "int"))
    n_rows = found.num_rows
    in_order = pc.greater_equal(found["end"], found["start"])
    in_range = pc.and_(pc.less(found["end"], TIME_LIMIT), pc.greater(found["start"], -TIME_LIMIT))
    valid = pc.fill_null(pc.and_(in_order, in_range), fill_value=False)
    if not pc.all(valid, min_count=0).as_py():
        found = found.filter(valid)
    rows = {name: found[source] for name, source in columns.items()}
    if rows["process_id"].null_count:
        rows["process_id"] = pc.fill_null(rows["process_id"], _only_process(report))
    return rows, n_rows - found.num_rows


def _constant(rows: Mapping[str, pa.ChunkedArray], value: int) -> pa.Array:
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
