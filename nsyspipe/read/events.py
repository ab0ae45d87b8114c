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
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from nsyspipe.read.report import Report
    from nsyspipe.read.strings import Strings

    Int64 = NDArray[np.int64]

__all__ = [
    "TIME_LIMIT",
    "Operations",
    "process_of",
    "process_of_thread",
    "read_launches",
    "read_operations",
]

# globalTid = 8 bits hardware, 8 VM, 24 process, 24 thread; without the thread it is the globalPid.
_THREAD_BITS = 0xFFFFFF
_COMM_PREFIX = "nccl"

# No clock reaches this (73 years), and no sum or difference of two such times overflows.
TIME_LIMIT = 2**61

# Canonical column -> nsys's.
_OPERATION_COLUMNS: dict[str, str | None] = {
    "process_id": "globalPid",
    "start_ns": "start",
    "end_ns": "end",
    "device_id": "deviceId",
    "correlation_id": "correlationId",
}
_MEMSET_COLUMNS = _OPERATION_COLUMNS | {"copy_kind": None, "bytes": "bytes"}
_COPY_COLUMNS = _OPERATION_COLUMNS | {
    "copy_kind": "copyKind",
    "bytes": "bytes",
}


def process_of(global_tid: Int64) -> Int64:
    """Return the globalPid of each globalTid; exact for negative ids too."""
    return global_tid & np.int64(~_THREAD_BITS)


def process_of_thread(global_tid: int) -> int:
    """Return the globalPid of one globalTid."""
    return global_tid & ~_THREAD_BITS


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
    comm_ids = strings.ids_beginning(_COMM_PREFIX, ignore_case=True)
    kernels, bad_kernels, names_known = _read_kernels(report, strings, comm_ids, comm_pattern)
    graphs, bad_graphs = _read_rows(report, versions.GRAPH, schema.KERNELS, _OPERATION_COLUMNS)
    memcpys, bad_memcpys = _read_rows(report, versions.MEMCPY, schema.COPIES, _COPY_COLUMNS)
    memsets, bad_memsets = _read_rows(report, versions.MEMSET, schema.COPIES, _MEMSET_COLUMNS)
    memsets = memsets.set_column(
        memsets.schema.get_field_index("copy_kind"),
        memsets.schema.field("copy_kind"),
        pa.array(np.full(memsets.num_rows, schema.MEMSET_KIND)),
    )
    return Operations(
        kernels=pa.concat_tables([kernels, graphs]),
        copies=pa.concat_tables([memcpys, memsets]),
        n_dropped=bad_kernels + bad_graphs + bad_memcpys + bad_memsets,
        n_graphs=graphs.num_rows,
        has_names=names_known,
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
    report: Report, strings: Strings, comm_ids: Int64, comm_pattern: re.Pattern[str] | None
) -> tuple[pa.Table, int, bool]:
    names = [name for name in ("shortName", "demangledName") if report.has(versions.KERNEL, name)]
    if report.has(versions.KERNEL) and not names:
        report.require(versions.KERNEL, "shortName")

    known = [True]

    def classify(found: pa.Table) -> pa.ChunkedArray:
        used = pc.unique(found[names[0]]).drop_null().to_numpy()
        known[0] = not used.size or strings.lookup(used).null_count < used.size
        is_comm = _in_set(found[names[0]], comm_ids, strings, comm_pattern)
        for name in names[1:]:
            is_comm = pc.or_(is_comm, _in_set(found[name], comm_ids, strings, comm_pattern))
        return is_comm

    table, n_dropped = _read_rows(
        report, versions.KERNEL, schema.KERNELS, _OPERATION_COLUMNS, extra=names, is_comm=classify
    )
    return table, n_dropped, known[0]


def _in_set(
    ids: pa.ChunkedArray, comm_ids: Int64, strings: Strings, comm_pattern: re.Pattern[str] | None
) -> pa.ChunkedArray:
    if comm_pattern is not None:
        used = pc.unique(ids).drop_null().to_numpy()
        comm_ids = np.union1d(comm_ids, strings.ids_matching(comm_pattern, used))
    return pc.is_in(ids, value_set=pa.array(comm_ids))


def _read_rows(
    report: Report,
    table: str,
    target: schema.TableSchema,
    columns: Mapping[str, str | None],
    *,
    extra: Sequence[str] = (),
    is_comm: Callable[[pa.Table], pa.ChunkedArray] | None = None,
) -> tuple[pa.Table, int]:
    """Read one table of operations into a canonical one; drop and count rows without a valid time.

    `columns` names the source of each target column; one without a source, or that this export
    lacks, is null. `is_comm` computes that column. A missing process is the report's only one.
    """
    if not report.has(table):
        return target.empty(), 0
    report.require(table, "start", "end")
    wanted = [source for source in columns.values() if source] + list(extra)
    found = report.select(table, dict.fromkeys(wanted, "int"))
    n_rows = found.num_rows
    in_order = pc.greater_equal(found["end"], found["start"])
    in_range = pc.and_(pc.less(found["end"], TIME_LIMIT), pc.greater(found["start"], -TIME_LIMIT))
    valid = pc.fill_null(pc.and_(in_order, in_range), fill_value=False)
    if not pc.all(valid, min_count=0).as_py():
        found = found.filter(valid)
    arrays = {
        name: found[source] if source else pa.nulls(found.num_rows, pa.int64())
        for name, source in columns.items()
    }
    if arrays["process_id"].null_count:
        arrays["process_id"] = pc.fill_null(arrays["process_id"], _only_process(report))
    if "is_comm" in target.names:
        arrays["is_comm"] = (
            is_comm(found) if is_comm else pa.array(np.zeros(found.num_rows, np.bool_))
        )
    return target.table(arrays), n_rows - found.num_rows


def _only_process(report: Report) -> int:
    """Return the process whose threads called CUDA or NVTX, if there is just one; else 0."""
    for table in (versions.RUNTIME, versions.NVTX):
        if report.has(table, "globalTid"):
            threads = pc.unique(report.select(table, {"globalTid": "int"})["globalTid"]).drop_null()
            processes = np.unique(process_of(threads.to_numpy()))
            if processes.size == 1:
                return int(processes[0])
    return 0
