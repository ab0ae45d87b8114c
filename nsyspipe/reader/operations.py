"""Device operations of a report: kernels (a sample with shapes), copies, and CUDA graphs that were captured as a whole."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nsyspipe.model import canonical
from nsyspipe.reader import report as versions

if TYPE_CHECKING:
    import re
    from collections.abc import Callable, Mapping

    from nsyspipe.model.types import Int64
    from nsyspipe.reader.calls import Strings
    from nsyspipe.reader.report import Report


# globalTid = 8 bits hardware, 8 VM, 24 process, 24 thread; without the thread it is the globalPid.
_THREAD_BITS = _PID_BITS = 0xFFFFFF
_PID_SHIFT = 24

# No clock reaches this (73 years), and no sum or difference of two such times overflows.
TIME_LIMIT = 2**61

# Canonical column -> nsys's.
_COLUMNS = {
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
    found = report.select(table, dict.fromkeys(columns.values(), "int"), derived=derived, where=where)
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


_COMM_PREFIX = "nccl"
_OVERLAPPING = '"start" < {last} AND ("end" > {first} OR "start" = {first})'
_KERNEL_COLUMNS = _COLUMNS | {"stream_id": "streamId"}

# Launch dimensions, each packed into one integer by SQL: a column costs more than a shift.
_SHAPES = {
    "grid": "gridX | (gridY << 32) | (gridZ << 48)",
    "block": "blockX | (blockY << 11) | (blockZ << 22)",
}
_SHAPE_COLUMNS = ("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ")
# So are device and stream of many kernels.
_PLACE = {"place": "(deviceId << 32) | streamId"}
_PLACE_COLUMNS = {"device_id": "deviceId", "stream_id": "streamId"}
# Dimensions only serve to compare equal kernels, for which this many are enough.
_MOST_SHAPES = 50_000


def _name_columns(report: Report) -> list[str]:
    return [name for name in ("shortName", "demangledName") if report.has(versions.KERNEL, name)]


def _names(ids: pa.ChunkedArray, strings: Strings) -> dict[int, str]:
    used = pc.unique(ids).drop_null().to_numpy()
    pairs = zip(used.tolist(), strings.lookup(used).to_pylist(), strict=True)
    return {number: text for number, text in pairs if text is not None}


def _table(
    rows: dict[str, pa.ChunkedArray],
    name_column: str | None,
    strings: Strings,
    comm_pattern: re.Pattern[str] | None,
) -> pa.Table:
    if name_column is None:
        nothing = {"name_id": rows["start_ns"], "is_comm": constant(rows, value=False)}
        return canonical.KERNELS.table(rows | nothing)
    comm_ids = strings.ids_beginning(_COMM_PREFIX, ignore_case=True)
    sources = [name for name in ("shortName", "demangledName") if name in rows]
    flags = [_in_set(rows[name], comm_ids, strings, comm_pattern) for name in sources]
    is_comm = pc.or_(*flags) if len(flags) > 1 else flags[0]
    return canonical.KERNELS.table(rows | {"name_id": rows[name_column], "is_comm": is_comm})


def _read_rows(report: Report, columns: dict[str, str]) -> tuple[dict[str, pa.ChunkedArray], int]:
    """Read the kernels' columns, with the shapes of all of them, or of a sample if there are many."""
    if not report.has(versions.KERNEL, *_SHAPE_COLUMNS):
        return valid_rows(report, versions.KERNEL, columns, dict.fromkeys(_SHAPES, "NULL"))
    if (report.number(versions.KERNEL, "max(rowid)") or 0) <= _MOST_SHAPES:
        return valid_rows(report, versions.KERNEL, columns, _SHAPES)
    return _packed_rows(report, columns, functools.partial(_with_shapes, report))


def _packed_rows(
    report: Report,
    columns: dict[str, str],
    beside: Callable[[pa.Table], pa.Table] | None = None,
    where: str | None = None,
) -> tuple[dict[str, pa.ChunkedArray], int]:
    """Read device and stream as one column, unless one of them may be null."""
    if report.has(versions.KERNEL, *_PLACE_COLUMNS.values()):
        fewer = {name: one for name, one in columns.items() if name not in _PLACE_COLUMNS}
        rows, n_dropped = valid_rows(report, versions.KERNEL, fewer, _PLACE, beside=beside, where=where)
        place = rows.pop("place")
        if not place.null_count:
            rows["device_id"] = pc.shift_right(place, 32)
            rows["stream_id"] = pc.bit_wise_and(place, 2**32 - 1)
            return rows, n_dropped
    return valid_rows(report, versions.KERNEL, columns, beside=beside, where=where)


def _read_graphs(report: Report, where: str | None = None) -> tuple[pa.Table, int]:
    """Read the CUDA graphs that were captured as a whole, each as one compute kernel, and count what was dropped."""
    rows, n_dropped = valid_rows(report, versions.GRAPH, _KERNEL_COLUMNS, where=where)
    unknown = pa.nulls(len(rows["start_ns"]), pa.int64())
    rows |= {
        "name_id": constant(rows, canonical.GRAPH_NAME_ID),
        "grid": unknown,
        "block": unknown,
        "is_comm": constant(rows, value=False),
    }
    return canonical.KERNELS.table(rows), n_dropped


def _with_shapes(report: Report, found: pa.Table) -> pa.Table:
    """Add the packed dimensions of the kernels in the middle of a large table, null for the others."""
    n_rows = found.num_rows
    first = (n_rows - _MOST_SHAPES) // 2
    wanted = f"rowid > {first} AND rowid <= {first + _MOST_SHAPES}"
    sample = report.select(versions.KERNEL, {"start": "int"}, derived=_SHAPES, where=wanted)
    # Row numbers count the rows from 1, unless some were deleted.
    is_aligned = sample["start"].equals(found["start"].slice(first, _MOST_SHAPES))
    for name in _SHAPES:
        rest = [pa.nulls(first, pa.int64()), pa.nulls(n_rows - first - _MOST_SHAPES, pa.int64())]
        chunks = [rest[0], *sample[name].chunks, rest[1]]
        column = pa.chunked_array(chunks) if is_aligned else pa.nulls(n_rows, pa.int64())
        found = found.append_column(name, column)
    return found


def _in_set(
    ids: pa.ChunkedArray, comm_ids: Int64, strings: Strings, comm_pattern: re.Pattern[str] | None
) -> pa.ChunkedArray:
    if comm_pattern is not None:
        used = pc.unique(ids).drop_null().to_numpy()
        comm_ids = np.union1d(comm_ids, strings.ids_matching(comm_pattern, used))
    return pc.is_in(ids, value_set=pa.array(comm_ids))


_SET_COLUMNS = {"bytes": "bytes"}
_COPY_COLUMNS = _SET_COLUMNS | {"copy_kind": "copyKind"}


@dataclass(frozen=True)
class Operations:
    """What ran on the devices."""

    # kernels, copies: `canonical.KERNELS` and `canonical.COPIES`
    kernels: pa.Table
    copies: pa.Table
    n_dropped: int  # rows that ended before they started, or had no time
    n_graphs: int  # CUDA graphs that were captured as a whole: their kernels cannot be told apart
    has_names: bool  # whether any kernel's name is known; true without kernels
    names: dict[int, str]  # text of every `name_id` among the kernels
    # nsys's column that the kernels' names come from; None when there is none
    name_column: str | None


def read_operations(report: Report, strings: Strings, comm_pattern: re.Pattern[str] | None) -> Operations:
    """Read all device operations; a table that the lazy export left out has no rows."""
    sources = _name_columns(report)
    if report.has(versions.KERNEL) and not sources:
        report.require(versions.KERNEL, "shortName")
    rows, bad_kernels = _read_rows(report, _KERNEL_COLUMNS | {name: name for name in sources})
    names: dict[int, str] = {}
    column = None
    for column in reversed(sources):  # demangled names may be left out
        if names := _names(rows[column], strings):
            break
    kernels = _table(rows, column, strings, comm_pattern)
    graphs, bad_graphs = _read_graphs(report)
    memcpys, bad_memcpys = valid_rows(report, versions.MEMCPY, _COLUMNS | _COPY_COLUMNS)
    memsets, bad_memsets = valid_rows(report, versions.MEMSET, _COLUMNS | _SET_COLUMNS)
    memsets |= {"copy_kind": constant(memsets, canonical.MEMSET_KIND)}
    copies = [canonical.COPIES.table(memcpys), canonical.COPIES.table(memsets)]
    return Operations(
        kernels=pa.concat_tables([kernels, graphs]),
        copies=pa.concat_tables(copies),
        n_dropped=bad_kernels + bad_graphs + bad_memcpys + bad_memsets,
        n_graphs=graphs.num_rows,
        names=names,
        name_column=column,
        has_names=not kernels.num_rows or bool(names),
    )


def read_operations_again(
    report: Report,
    strings: Strings,
    comm_pattern: re.Pattern[str] | None,
    name_column: str | None,
    span: tuple[int, int] | None,
) -> tuple[pa.Table, pa.Table, pa.Table, dict[int, str]]:
    """Read kernels (without shapes, graphs last), copies, memsets, and the text of every name id among the kernels.

    `span` limits them to those that run in ``[first, last)`` of report time, ns, or begin in it. Copies have a
    ``stream_id`` too, memsets no ``copy_kind``. The name column is that of the first reading.
    """
    where = None if span is None else _OVERLAPPING.format(first=span[0], last=span[1])
    columns = _KERNEL_COLUMNS | {name: name for name in _name_columns(report)}
    rows, _ = _packed_rows(report, columns, where=where)
    rows |= dict.fromkeys(_SHAPES, pa.nulls(len(rows["start_ns"]), pa.int64()))
    names = {} if name_column is None else _names(rows[name_column], strings)
    kernels = [_table(rows, name_column, strings, comm_pattern), _read_graphs(report, where)[0]]
    memcpys, _ = valid_rows(report, versions.MEMCPY, _KERNEL_COLUMNS | _COPY_COLUMNS, where=where)
    memsets, _ = valid_rows(report, versions.MEMSET, _KERNEL_COLUMNS | _SET_COLUMNS, where=where)
    return pa.concat_tables(kernels), pa.table(memcpys), pa.table(memsets), names
