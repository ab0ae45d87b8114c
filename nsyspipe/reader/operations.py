"""GPU operations of a report: kernels, copies and CUDA graphs.

The first reading reads all of them. A second reading reads those in a span of time, with the calls
that launched them and the ranges around the calls.
"""

import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct
from msgspec.structs import replace

from nsyspipe.analysis.attribution import filled
from nsyspipe.analysis.comm_calls import COPY_KINDS, Called, rows_of_launches, with_called
from nsyspipe.analysis.intervals import run_starts
from nsyspipe.model import canonical
from nsyspipe.model.comm_kernels import (
    NCCL_PREFIX,
    is_communication,
    library_of,
    looks_like_communication,
)
from nsyspipe.model.names import kernel_label
from nsyspipe.model.table import Int64
from nsyspipe.model.typed_tables import (
    CalledOfReportTable,
    KernelsOfReportTable,
)
from nsyspipe.model.user_paths import AnyPath
from nsyspipe.reader.calls import Strings, read_launches, read_strings
from nsyspipe.reader.ranges import read_ranges_again
from nsyspipe.reader.report import (
    GRAPH,
    KERNEL,
    MEMCPY,
    MEMSET,
    NVTX,
    RUNTIME,
    TIME_LIMIT,
    Columns,
    FileState,
    Report,
    Zones,
    bounds_of,
    open_report,
    process_of,
    repeated,
)

# Columns of nsys by canonical column.
_COLUMNS = {
    "process_id": "globalPid",
    "start_ns": "start",
    "end_ns": "end",
    "device_id": "deviceId",
    "correlation_id": "correlationId",
}
_STREAM = {"stream_id": "streamId"}
_BYTES = {"bytes": "bytes"}
_COPY_KIND = {"copy_kind": "copyKind"}
_NAMES = ("shortName", "demangledName")

# Launch dimensions, which SQL packs into one integer each, because reading a column costs more time
# than a shift.
_SHAPES = {
    "grid": "gridX | (gridY << 32) | (gridZ << 48)",
    "block": "blockX | (blockY << 11) | (blockZ << 22)",
}
SHAPE_COLUMNS = ("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ")
# Device and stream, packed like launch dimensions if there are many kernels.
_PLACE = {"place": "(deviceId << 32) | streamId"}
# Dimensions are only used to compare equal kernels. This many are enough for that.
_MAX_SHAPES = 50_000
# The SQL of a thread of the only process of a table; null if there are several.
_THREAD_OF_ONLY_PROCESS = "iif(min(globalTid >> 24) = max(globalTid >> 24), min(globalTid), NULL)"
# More short names are not looked up row by row, but read as a column.
_MAX_NAMES_LOOKED_UP = 10_000


def _read(
    report: Report,
    table: str,
    columns: Mapping[str, str],
    *,
    derived: Columns | None = None,
    where: str | None = None,
) -> pa.Table:
    """Read the rows of a table of operations that meet the SQL condition `where`, or all rows.

    `columns` has nsys's column by canonical name. `derived` has the SQL of further columns by name,
    which follow. Columns that the export does not have are null. A missing table has no rows.
    """
    names = [*columns, *(derived or {})]
    if not report.has(table):
        no_rows = pa.array([], pa.int64())
        return pa.table(dict.fromkeys(names, no_rows))
    report.require(table, "start", "end")
    kinds = dict.fromkeys(columns.values(), "int")
    rows = report.select(table, kinds, derived=derived, where=where)
    return rows.rename_columns(names)


def _valid(report: Report, all_rows: pa.Table) -> tuple[pa.Table, int]:
    """Return the rows with a valid time, and how many others were dropped.

    A missing process id is replaced by that of the report's only process.
    """
    rows = all_rows
    if not rows.num_rows:
        return _with(rows, process_id=None), 0
    is_valid = _have_valid_times(all_rows)
    # A filter copies the rows, which most reports do not need.
    if not pc.all(is_valid).as_py():
        rows = all_rows.filter(is_valid)
    n_dropped = all_rows.num_rows - rows.num_rows
    rows = _with_known_process(report, rows)
    # Both are None without rows.
    least_id, greatest_id = bounds_of(rows["process_id"])
    has_at_most_one_process = least_id == greatest_id
    if has_at_most_one_process:
        # A column of one value takes less memory.
        rows = _with(rows, process_id=least_id)
    return rows, n_dropped


def _have_valid_times(rows: pa.Table) -> pa.ChunkedArray:
    """Tell which operations do not end before they start, at times that a clock reaches."""
    start = rows["start_ns"]
    end = rows["end_ns"]
    is_in_order = pc.greater_equal(end, start)
    is_below_limit = pc.less(end, TIME_LIMIT)
    is_above_limit = pc.greater(start, -TIME_LIMIT)
    is_in_limits = pc.and_(is_below_limit, is_above_limit)
    is_valid = pc.and_(is_in_order, is_in_limits)
    return pc.fill_null(is_valid, fill_value=False)


def _with_known_process(report: Report, rows: pa.Table) -> pa.Table:
    """Replace missing process ids by that of the report's only process, or by 0."""
    process_ids = rows["process_id"]
    if not process_ids.null_count:
        return rows
    known_process_ids = pc.fill_null(process_ids, _only_process(report))
    return _with(rows, process_id=known_process_ids)


def _only_process(report: Report) -> int:
    """Return the process whose threads called CUDA or NVTX, if there is only one; else 0."""
    for table in (RUNTIME, NVTX):
        if report.has(table, "globalTid"):
            thread = report.number(table, _THREAD_OF_ONLY_PROCESS)
            if thread is not None:
                return process_of(thread)
    return 0


def _with(rows: pa.Table, **columns: object) -> pa.Table:
    """Append columns, in place of those with the same names.

    A column may be given as the one value of all rows: a number, a bool or None.
    """
    n_rows = rows.num_rows
    for name, values in columns.items():
        column = values
        if values is None or isinstance(values, int):
            column = repeated(values, n_rows)
        if name in rows.column_names:
            rows = rows.drop_columns([name])
        rows = rows.append_column(name, column)
    return rows


def _read_kernels(
    report: Report, *, has_shapes: bool, where: str | None = None
) -> tuple[pa.Table, int]:
    """Read the kernels with a valid time, and count the rows that were dropped.

    The shape of a kernel is its ``grid`` and ``block``. Without `has_shapes`, the shapes are null.
    If there are many kernels, only a sample of them has shapes. `has_shapes` must be false if there
    is a condition `where`, because the sample is taken from all kernels.
    """
    names = {name: name for name in _NAMES if report.has(KERNEL, name)}
    columns = _COLUMNS | _STREAM | names
    reads_shapes = has_shapes and report.has(KERNEL, *SHAPE_COLUMNS)
    are_many = _last_row(report, KERNEL) > _MAX_SHAPES
    rows = _read_many_kernels(report, columns, where) if are_many else None
    if rows is None:
        # There are few kernels, or the way for many kernels is not possible.
        all_shapes = _SHAPES if reads_shapes and not are_many else None
        rows = _read(report, KERNEL, columns, derived=all_shapes, where=where)
    if not reads_shapes:
        rows = _with(rows, grid=None, block=None)
    elif are_many:
        rows = _with_sample(report, rows)
    return _valid(report, rows)


def _last_row(report: Report, table: str) -> int:
    """Return the largest row number of a table; 0 if there is none."""
    if not report.has(table):
        return 0
    return report.number(table, "max(rowid)") or 0


def _read_many_kernels(report: Report, columns: Columns, where: str | None) -> pa.Table | None:
    """Read kernels, but fewer columns of the file, which saves time if there are many kernels.

    The columns of device and stream are read as one column of numbers, the place, and split again.
    If all kernels are read (without `where`), short names are looked up by demangled name. None if
    one of these two ways is not possible.
    """
    if not report.has(KERNEL, "deviceId", "streamId"):
        return None
    has_both_names = report.has(KERNEL, *_NAMES)
    looks_up_short_names = has_both_names and where is None
    columns_not_read = {"device_id", "stream_id"}
    if looks_up_short_names:
        short_name, _ = _NAMES
        columns_not_read.add(short_name)
    columns_read = {
        name: source for name, source in columns.items() if name not in columns_not_read
    }
    rows = _read(report, KERNEL, columns_read, derived=_PLACE, where=where)
    place = rows["place"]
    if place.null_count:
        return None
    device = pc.shift_right(place, 32)
    stream = pc.bit_wise_and(place, 2**32 - 1)
    rows = _with(rows, device_id=device, stream_id=stream)
    return _with_short_names(report, rows) if looks_up_short_names else rows


def _with_short_names(report: Report, rows: pa.Table) -> pa.Table | None:
    """Add the short name of each kernel; None if the short names cannot be looked up.

    nsys makes short names of demangled names. Therefore the first kernel with a demangled name has
    the short name of all kernels with that name. `rows` are all kernels in their order.
    """
    short_name, demangled_name = _NAMES
    names = rows[demangled_name]
    encoded = names.combine_chunks().dictionary_encode()
    distinct_names = encoded.dictionary
    if names.null_count or len(distinct_names) > _MAX_NAMES_LOOKED_UP:
        return None
    # Arrow numbers names in the order of their first kernels: 0 0 1 0 2. So the greatest number up
    # to each kernel, 0 0 1 1 2, changes at the first kernel of each name.
    name_of_kernel = encoded.indices
    greatest_name_so_far = np.maximum.accumulate(name_of_kernel.to_numpy())
    first_kernel_of_name = run_starts(greatest_name_so_far)
    # SQLite numbers the rows of a table from 1, unless rows were deleted.
    row_numbers = ", ".join(map(str, (first_kernel_of_name + 1).tolist()))
    kinds = dict.fromkeys(_NAMES, "int")
    first_kernels = report.select(KERNEL, kinds, where=f"rowid IN ({row_numbers})")
    first_kernels = first_kernels.combine_chunks()
    # If rows were deleted, these are other kernels, and their names differ.
    if first_kernels[demangled_name].to_pylist() != distinct_names.to_pylist():
        return None
    short_names = first_kernels[short_name].take(name_of_kernel)
    return _with(rows, shortName=short_names)


def _with_sample(report: Report, rows: pa.Table) -> pa.Table:
    """Add the shapes of `_MAX_SHAPES` kernels in the middle of the table; null for all others.

    `rows` are all kernels in the order of the table, and more than `_MAX_SHAPES`. If rows were
    deleted from the table, all shapes are null.
    """
    n_unsampled = rows.num_rows - _MAX_SHAPES
    n_before = n_unsampled // 2
    n_after = n_unsampled - n_before
    # SQLite numbers the rows of a table from 1, unless rows were deleted.
    where = f"rowid > {n_before} AND rowid <= {n_before + _MAX_SHAPES}"
    sample = report.select(KERNEL, {"start": "int"}, derived=_SHAPES, where=where)
    expected_starts = rows["start_ns"].slice(n_before, _MAX_SHAPES)
    if not sample["start"].equals(expected_starts):
        return _with(rows, grid=None, block=None)
    chunks_before = repeated(None, n_before).chunks
    chunks_after = repeated(None, n_after).chunks
    for name in _SHAPES:
        shapes = pa.chunked_array([*chunks_before, *sample[name].chunks, *chunks_after])
        rows = rows.append_column(name, shapes)
    return rows


def _read_graphs(report: Report, where: str | None = None) -> tuple[pa.Table, int]:
    """Read the CUDA graphs that were captured as a whole, as kernels, and count dropped rows."""
    all_rows = _read(report, GRAPH, _COLUMNS | _STREAM, where=where)
    rows, n_dropped = _valid(report, all_rows)
    rows = _with(rows, name_id=canonical.GRAPH_NAME_ID, grid=None, block=None, is_comm=False)
    return canonical.KERNELS.table(rows), n_dropped


def _texts(ids: pa.ChunkedArray, strings: Strings) -> dict[int, str]:
    """Return the text of each distinct string id; ids without a text are left out."""
    distinct_ids = pc.unique(ids).drop_null().to_numpy()
    ids_and_texts = strings.pairs(distinct_ids)
    return {string_id: text for string_id, text in ids_and_texts if text is not None}


def _kernels(
    rows: pa.Table,
    name_column: str | None,
    names: Mapping[int, str],
    strings: Strings,
    comm_pattern: re.Pattern[str] | None,
) -> tuple[pa.Table, bool]:
    """Return `canonical.KERNELS`, and whether the user's pattern matches any kernel.

    A kernel is communication if one of its names begins like the names of NCCL, matches
    `comm_pattern`, or is a name of another library that communicates. `name_column` has the ids of
    the names that nsyspipe shows, and `names` has their texts. If it is None, no kernel has a name.
    """
    if name_column is None:
        rows = _with(rows, name_id=None, is_comm=False)
        return canonical.KERNELS.table(rows), False
    # A kernel may have a short and a demangled name, and one of them may not be shown.
    id_columns = [rows[name] for name in _NAMES if name in rows.column_names]
    matching_ids = _matching_ids(id_columns, strings, comm_pattern)
    library_ids = _library_ids(names)
    nccl_ids = strings.ids_beginning(NCCL_PREFIX, ignore_case=True)
    comm_ids = [*nccl_ids, *matching_ids, *library_ids]
    is_comm_by_name = [np.isin(filled(ids), comm_ids) for ids in id_columns]
    is_comm = functools.reduce(np.logical_or, is_comm_by_name)
    name_ids = rows[name_column]
    rows = _with(rows, name_id=name_ids, is_comm=pa.array(is_comm))
    return canonical.KERNELS.table(rows), bool(matching_ids)


def _library_ids(names: Mapping[int, str]) -> list[int]:
    """Return the ids of kernel names that are those of a library of communication."""
    labels = _labels(names)
    return [name_id for name_id, label in labels.items() if library_of(label) is not None]


def _labels(names: Mapping[int, str]) -> dict[int, str]:
    """Return the label of each kernel name by id."""
    return {name_id: kernel_label(text) for name_id, text in names.items()}


def _matching_ids(
    id_columns: Sequence[pa.ChunkedArray], strings: Strings, pattern: re.Pattern[str] | None
) -> list[int]:
    """Return the ids in some columns whose texts a pattern matches."""
    if pattern is None:
        return []
    texts: dict[int, str] = {}
    for ids in id_columns:
        texts |= _texts(ids, strings)
    return [string_id for string_id, text in texts.items() if pattern.search(text)]


def _uncounted(kernels: KernelsOfReportTable, names: Mapping[int, str]) -> tuple[str, ...]:
    """Return the labels of kernels that look like communication and do not count as such, sorted.

    `names` has the text of each name id.
    """
    label_of_name = _labels(names)
    suspect_names = [name_id for name_id, label in label_of_name.items() if _is_suspect(label)]
    if not suspect_names:
        return ()
    name_of_kernel = filled(kernels["name_id"])
    is_comm = kernels["is_comm"].to_numpy()
    is_uncounted = ~is_comm & np.isin(name_of_kernel, suspect_names)
    uncounted_names = np.unique(name_of_kernel[is_uncounted])
    uncounted_labels = {label_of_name[name_id] for name_id in uncounted_names.tolist()}
    return tuple(sorted(uncounted_labels))


def _is_suspect(label: str) -> bool:
    """Tell whether a label looks like communication, but is not known to be of it."""
    return looks_like_communication(label) and not is_communication(label)


class Operations(Struct, frozen=True):
    """The operations that ran on the GPUs."""

    # `canonical.KERNELS`
    kernels: pa.Table
    # `canonical.COPIES`
    copies: pa.Table
    # Rows that ended before they started, or had no time.
    n_dropped: int
    # CUDA graphs that were captured as a whole, so that their kernels are not known.
    n_graphs: int
    # Whether the name of any kernel is known; true without kernels.
    has_names: bool
    # Whether the user's pattern matches a kernel; false without a pattern.
    has_named_comm: bool
    # Labels of kernels that look like communication and do not count as such.
    uncounted: tuple[str, ...]
    # Texts of the values of `name_id` among the kernels.
    names: dict[int, str]
    # The column of nsys that the names of kernels come from.
    name_column: str | None
    # The zones of time of large tables of which no row was dropped.
    zones: Mapping[str, Zones]


def read_operations(
    report: Report, strings: Strings, comm_pattern: re.Pattern[str] | None
) -> Operations:
    """Read all operations of the GPUs; a table that a lazy export left out has no rows.

    `comm_pattern` is the user's pattern for names of kernels that are communication. Raises
    `MissingColumnError` if kernels have no column of names, or operations no times.
    """
    has_name_column = any(report.has(KERNEL, name) for name in _NAMES)
    if report.has(KERNEL) and not has_name_column:
        # This raises the error.
        report.require(KERNEL, _NAMES[0])
    rows, n_dropped_kernels = _read_kernels(report, has_shapes=True)
    name_column, names = _kernel_names(rows, strings)
    kernels, has_named_comm = _kernels(rows, name_column, names, strings, comm_pattern)
    graphs, n_dropped_graphs = _read_graphs(report)
    copies = _read_copies(report)
    zones = _zones(report, KERNEL, rows)
    zones |= copies.zones
    n_dropped = n_dropped_kernels + n_dropped_graphs + copies.n_dropped
    uncounted = _uncounted(kernels, names)
    has_names = bool(names) or kernels.num_rows == 0
    return Operations(
        kernels=pa.concat_tables([kernels, graphs]),
        copies=copies.table,
        n_dropped=n_dropped,
        n_graphs=graphs.num_rows,
        uncounted=uncounted,
        names=names,
        name_column=name_column,
        has_names=has_names,
        has_named_comm=has_named_comm,
        zones=zones,
    )


class _Copies(NamedTuple):
    """The copies and memsets of a report."""

    # `canonical.COPIES`
    table: pa.Table
    n_dropped: int
    # The zones of the memcpys.
    zones: dict[str, Zones]


def _read_copies(report: Report) -> _Copies:
    """Read the memcpys and memsets with a valid time. Only memcpys, often many, have zones."""
    columns = _COLUMNS | _BYTES
    memcpy_rows = _read(report, MEMCPY, columns | _COPY_KIND)
    memcpys, n_dropped_memcpys = _valid(report, memcpy_rows)
    memset_rows = _read(report, MEMSET, columns)
    memsets, n_dropped_memsets = _valid(report, memset_rows)
    memsets = _with(memsets, copy_kind=canonical.MEMSET_KIND)
    tables = map(canonical.COPIES.table, (memcpys, memsets))
    copies = pa.concat_tables(tables)
    n_dropped = n_dropped_memcpys + n_dropped_memsets
    zones = _zones(report, MEMCPY, memcpys)
    return _Copies(copies, n_dropped, zones)


def _zones(report: Report, table: str, rows: pa.Table) -> dict[str, Zones]:
    """Return the zones of time of a table of operations."""
    return report.zones(table, rows["start_ns"], rows["end_ns"])


def _kernel_names(rows: pa.Table, strings: Strings) -> tuple[str | None, dict[int, str]]:
    """Return the column that the names of kernels come from, and the texts of its ids.

    This is the column of demangled names, or that of short names if the export lacks the texts of
    demangled names. None if there is no column of names.
    """
    demangled_first = reversed(_NAMES)
    columns = [column for column in demangled_first if column in rows.column_names]
    for column in columns:
        names = _texts(rows[column], strings)
        if names:
            return column, names
    # No column has texts, so any of them will do.
    return (columns[-1] if columns else None), {}


def with_communication(
    report: Report, operations: Operations, called: Called
) -> tuple[Operations, Called]:
    """Mark operations that are communication because of the calls that launched them.

    Returns the operations, and the calls with the streams of their copies.
    """
    if not called.launches.num_rows:
        return operations, called
    launches = _with_streams(report, called.launches)
    called = replace(called, launches=launches)
    kernels, copies = with_called(operations.kernels, operations.copies, called)
    names = operations.names | dict(called.names)
    operations = replace(operations, kernels=kernels, copies=copies, names=names)
    return operations, called


def _with_streams(report: Report, launches: CalledOfReportTable) -> pa.Table:
    """Return launches with the streams of the copies that they launched.

    Only few copies are communication. Therefore `_read_copies` does not read the streams of all
    copies, which would take much memory, and this function reads those of the few.
    """
    is_copy = launches["is_copy"]
    ids_of_copies = launches["correlation_id"].filter(is_copy)
    if not len(ids_of_copies):
        return launches
    if not report.has(MEMCPY, "streamId", "correlationId"):
        return launches
    first_id, last_id = bounds_of(ids_of_copies)
    kinds = ", ".join(map(str, COPY_KINDS))
    where = f'copyKind IN ({kinds}) AND "correlationId" BETWEEN {first_id} AND {last_id}'
    columns = {"process_id": "globalPid", "correlation_id": "correlationId"}
    copies = _read(report, MEMCPY, columns | _STREAM, where=where)
    copies = _with_known_process(report, copies)
    # The row of the copy with the process and correlation id of each launch; -1 for none.
    copy_of_launch = rows_of_launches(launches, copies)
    has_copy = is_copy.to_numpy() & (copy_of_launch >= 0)
    # A launch without a copy gets a null.
    streams = copies["stream_id"].take(pa.array(copy_of_launch, mask=~has_copy))
    stream_column = launches.column_names.index("stream_id")
    return launches.set_column(stream_column, launches.field(stream_column), streams)


class Wanted(Struct, frozen=True):
    """What a second reading reads. Times are those of the report, in ns."""

    # GPU time ``[first, last)`` of the operations that are read, with the calls that may have
    # launched them, and the ranges around those calls. Operations are read if they overlap this
    # time or begin in it. None reads everything.
    span: tuple[int, int] | None
    # Starts and ends of step ranges, in CPU time. If such a call touches a step, all ranges of the
    # step are read.
    steps: tuple[Int64, Int64]
    # CPU time whose ranges are read in any case.
    host_span: tuple[int, int] | None
    # Threads whose ranges are read.
    threads: tuple[int, ...]
    # Results of the first reading: see `gather.ReportDigest`.
    name_column: str | None
    open_end_ns: int | None
    zones: Mapping[str, Zones]
    called: Called
    file_state: FileState | None

    def where(self, table: str) -> str | None:
        """Return the SQL condition for the operations of a table; None for all of them."""
        if self.span is None:
            return None
        first_ns, last_ns = self.span
        # A sum is a number, but a column of type TEXT would be compared letter by letter. An
        # operation without length at the beginning of the time counts too.
        ends_later_or_begins_then = f'"end" + 0 > {first_ns} OR "start" + 0 = {first_ns}'
        overlaps = f'"start" + 0 < {last_ns} AND ({ends_later_or_begins_then})'
        if table not in self.zones:
            return overlaps
        # Zones only spare SQLite the rows that cannot overlap.
        is_in_zones = self.zones[table].condition(first_ns, last_ns)
        return f"{is_in_zones} AND {overlaps}"


class WantedOperations(NamedTuple):
    """What a second reading has read. All rows are in the order of the report."""

    # The text of each name id.
    kernel_names: dict[int, str]
    # Kernels without shapes, then graphs. After them follow the copies that are communication, with
    # one row and its ``bytes`` for each collective.
    kernels: pa.Table
    # With ``stream_id``, like the memsets.
    memcpys: pa.Table
    memsets: pa.Table
    # `canonical.RANGES`
    ranges: pa.Table
    # `canonical.LAUNCHES`; None if calls were not recorded.
    launches: pa.Table | None


def read_again(
    path: AnyPath, comm_kernel: re.Pattern[str] | None, wanted: Wanted
) -> WantedOperations:
    """Read the wanted operations of a report that was read before.

    Raises `InputError` if the report is missing by now, or cannot be read.
    """
    columns = _COLUMNS | _STREAM | _BYTES
    with open_report(path, wanted.file_state) as report:
        strings = read_strings(report)
        names, kernels = _read_kernels_again(report, strings, comm_kernel, wanted)
        memcpys = _read_copies_again(report, MEMCPY, columns | _COPY_KIND, wanted)
        memsets = _read_copies_again(report, MEMSET, columns, wanted)
        # If only a span of time is wanted, only the calls that launched its operations are read.
        span_of_ids = None
        if wanted.span is not None:
            span_of_ids = _span_of_ids([kernels, memcpys, memsets])
        zones = wanted.zones.get(RUNTIME)
        launches = read_launches(report, span_of_ids, zones)
        called = wanted.called
        if called.launches.num_rows:
            kernels = _with(kernels, bytes=None)
            kernels, memcpys = with_called(kernels, memcpys, called)
        ranges = _ranges(report, strings, wanted, launches)
        names |= dict(called.names)
        return WantedOperations(
            kernel_names=names,
            kernels=kernels,
            memcpys=memcpys,
            memsets=memsets,
            ranges=ranges,
            launches=launches,
        )


def _read_kernels_again(
    report: Report, strings: Strings, comm_kernel: re.Pattern[str] | None, wanted: Wanted
) -> tuple[dict[int, str], pa.Table]:
    """Return the texts of name ids, and the kernels, followed by the graphs.

    The first reading has counted the rows that are dropped.
    """
    column = wanted.name_column
    where = wanted.where(KERNEL)
    rows, _ = _read_kernels(report, has_shapes=False, where=where)
    graphs, _ = _read_graphs(report, wanted.where(GRAPH))
    names = {} if column is None else _texts(rows[column], strings)
    kernels, _ = _kernels(rows, column, names, strings, comm_kernel)
    return names, pa.concat_tables([kernels, graphs])


def _read_copies_again(report: Report, table: str, columns: Columns, wanted: Wanted) -> pa.Table:
    where = wanted.where(table)
    all_rows = _read(report, table, columns, where=where)
    rows, _ = _valid(report, all_rows)
    return rows


def _span_of_ids(tables: Iterable[pa.Table]) -> tuple[int, int]:
    """Return the smallest and the largest correlation id of some tables.

    Without any id, this is (1, 0), a span that no id is in.
    """
    smallest_ids: list[int] = []
    largest_ids: list[int] = []
    for table in tables:
        smallest, largest = bounds_of(table["correlation_id"])
        if smallest is not None:
            smallest_ids.append(smallest)
            largest_ids.append(largest)
    return min(smallest_ids, default=1), max(largest_ids, default=0)


def _ranges(
    report: Report, strings: Strings, wanted: Wanted, launches: pa.Table | None
) -> pa.Table:
    """Read the ranges of the wanted threads around some launches and in the host span.

    One span of CPU time covers the launches, the host span, and each step that it touches. Ranges
    that touch this span are read. If everything is wanted, all ranges of the threads are read.
    """
    spans_to_cover: list[tuple[int, int]] = []
    if wanted.host_span is not None:
        spans_to_cover.append(wanted.host_span)
    if launches is not None and launches.num_rows:
        first_launch_ns, last_launch_ns = bounds_of(launches["start_ns"])
        spans_to_cover.append((first_launch_ns, last_launch_ns))
    if not spans_to_cover or not wanted.threads:
        return canonical.RANGES.empty()
    # None reads all ranges.
    span = None
    if wanted.span is not None:
        starts, ends = zip(*spans_to_cover, strict=True)
        covering_span = (min(starts), max(ends))
        span = _in_whole_steps(covering_span, *wanted.steps)
    return read_ranges_again(
        report, strings, wanted.threads, span=span, open_end_ns=wanted.open_end_ns
    )


def _in_whole_steps(span: tuple[int, int], starts: Int64, ends: Int64) -> tuple[int, int]:
    """Widen a span (first, last) until it covers each step that it touches.

    `starts` and `ends` are those of the steps.
    """
    first_ns, last_ns = span
    is_touched = (ends >= first_ns) & (starts <= last_ns)
    # The initial values are there because the span never becomes shorter.
    first_start_ns = starts[is_touched].min(initial=first_ns)
    last_end_ns = ends[is_touched].max(initial=last_ns)
    return int(first_start_ns), int(last_end_ns)
