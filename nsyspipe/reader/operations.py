"""Device operations of a report: all in a first reading; in a second those of a span, with the calls and ranges around."""

import functools
import re
from collections.abc import Mapping

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
from nsyspipe.reader import report as versions
from nsyspipe.reader.calls import Strings, read_launches, read_strings
from nsyspipe.reader.ranges import read_ranges_again
from nsyspipe.reader.report import (
    TIME_LIMIT,
    Columns,
    FileState,
    Report,
    Zones,
    open_report,
    process_of,
    repeated,
)

_COLUMNS = {  # canonical column -> nsys's
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

# Launch dimensions, each packed into one integer by SQL: a column costs more than a shift.
_SHAPES = {
    "grid": "gridX | (gridY << 32) | (gridZ << 48)",
    "block": "blockX | (blockY << 11) | (blockZ << 22)",
}
SHAPE_COLUMNS = ("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ")
_PLACE = {"place": "(deviceId << 32) | streamId"}  # so are device and stream of many kernels
_MOST_SHAPES = (
    50_000  # dimensions only serve to compare equal kernels, for which this many are enough
)
_MOST_NAMES = 10_000  # that are looked up row by row


def _read(
    report: Report,
    table: str,
    columns: Columns,
    derived: Columns | None = None,
    where: str | None = None,
) -> pa.Table:
    """Read one table of operations under canonical names, then `derived` as SQL gives it; what the export lacks is null."""
    names = [*columns, *(derived or {})]
    if not report.has(table):
        return pa.table({name: pa.array([], pa.int64()) for name in names})
    report.require(table, "start", "end")
    found = report.select(
        table, dict.fromkeys(columns.values(), "int"), derived=derived, where=where
    )
    return found.rename_columns(names)


def _valid(report: Report, found: pa.Table) -> tuple[pa.Table, int]:
    """Drop and count rows without a valid time; a missing process is the report's only one."""
    in_order = pc.greater_equal(found["end_ns"], found["start_ns"])
    in_range = pc.and_(
        pc.less(found["end_ns"], TIME_LIMIT), pc.greater(found["start_ns"], -TIME_LIMIT)
    )
    valid = pc.fill_null(pc.and_(in_order, in_range), fill_value=False)
    rows = found if pc.all(valid, min_count=0).as_py() else found.filter(valid)
    if rows["process_id"].null_count:
        rows = _with(rows, process_id=pc.fill_null(rows["process_id"], _only_process(report)))
    bounds = pc.min_max(rows["process_id"]).as_py()
    if bounds["min"] == bounds["max"]:
        rows = _with(rows, process_id=bounds["min"])
    return rows, found.num_rows - rows.num_rows


def _only_process(report: Report) -> int:
    """Return the process whose threads called CUDA or NVTX, if there is just one; else 0."""
    of_one = "iif(min(globalTid >> 24) = max(globalTid >> 24), min(globalTid), NULL)"
    threads = (
        report.number(one, of_one)
        for one in (versions.RUNTIME, versions.NVTX)
        if report.has(one, "globalTid")
    )
    return next((process_of(thread) for thread in threads if thread is not None), 0)


def _with(rows: pa.Table, **columns: object) -> pa.Table:
    n_rows = rows.num_rows
    for name, values in columns.items():
        column = repeated(values, n_rows) if values is None or isinstance(values, int) else values
        rows = rows.drop_columns([name] if name in rows.column_names else []).append_column(
            name, column
        )
    return rows


def _read_kernels(
    report: Report, *, has_shapes: bool, where: str | None = None
) -> tuple[pa.Table, int]:
    """Read the kernels' columns; shapes of all of them, or of a sample if there are many, null for the others."""
    columns = (
        _COLUMNS | _STREAM | {name: name for name in _NAMES if report.has(versions.KERNEL, name)}
    )
    has_shapes = has_shapes and report.has(versions.KERNEL, *SHAPE_COLUMNS)
    is_large = (
        report.has(versions.KERNEL)
        and (report.number(versions.KERNEL, "max(rowid)") or 0) > _MOST_SHAPES
    )
    rows = None
    if is_large and report.has(versions.KERNEL, "deviceId", "streamId"):
        has_both = where is None and report.has(versions.KERNEL, *_NAMES)
        left_out = {"device_id", "stream_id", *(_NAMES[:1] if has_both else ())}
        others = {name: source for name, source in columns.items() if name not in left_out}
        rows = _read(report, versions.KERNEL, others, _PLACE, where=where)
        place = rows["place"]
        device = pc.shift_right(place, 32)
        stream = pc.bit_wise_and(place, 2**32 - 1)
        rows = None if place.null_count else _with(rows, device_id=device, stream_id=stream)
        rows = _with_short_names(report, rows) if rows is not None and has_both else rows
    if rows is None:
        rows = _read(
            report,
            versions.KERNEL,
            columns,
            _SHAPES if has_shapes and not is_large else None,
            where=where,
        )
    if "grid" not in rows.column_names:
        rows = _with_sample(report, rows) if has_shapes else _with(rows, grid=None, block=None)
    return _valid(report, rows)


def _with_short_names(report: Report, found: pa.Table) -> pa.Table | None:
    """Add the short names, which nsys makes of the demangled ones: of each that of its first row; None where that cannot be found."""
    names = found[_NAMES[1]]
    encoded = names.combine_chunks().dictionary_encode()
    if names.null_count or len(encoded.dictionary) > _MOST_NAMES:
        return None
    # Codes count up in order of first appearance, and row numbers from 1, unless some were deleted.
    first = run_starts(np.maximum.accumulate(encoded.indices.to_numpy())) + 1
    wanted = f"rowid IN ({', '.join(map(str, first.tolist()))})"
    pairs = report.select(
        versions.KERNEL, dict.fromkeys(_NAMES, "int"), where=wanted
    ).combine_chunks()
    is_found = pairs[_NAMES[1]].to_pylist() == encoded.dictionary.to_pylist()
    return _with(found, shortName=pairs[_NAMES[0]].take(encoded.indices)) if is_found else None


def _with_sample(report: Report, found: pa.Table) -> pa.Table:
    """Add the packed dimensions of the kernels in the middle of a large table, null for the others."""
    first = (found.num_rows - _MOST_SHAPES) // 2
    wanted = f"rowid > {first} AND rowid <= {first + _MOST_SHAPES}"
    sample = report.select(versions.KERNEL, {"start": "int"}, derived=_SHAPES, where=wanted)
    # Row numbers count the rows from 1, unless some were deleted.
    if not sample["start"].equals(found["start_ns"].slice(first, _MOST_SHAPES)):
        return _with(found, grid=None, block=None)
    before, behind = (
        repeated(None, n).chunks for n in (first, found.num_rows - first - _MOST_SHAPES)
    )
    return _with(
        found,
        **{name: pa.chunked_array([*before, *sample[name].chunks, *behind]) for name in _SHAPES},
    )


def _read_graphs(report: Report, where: str | None = None) -> tuple[pa.Table, int]:
    """Read the CUDA graphs that were captured as a whole, each as one compute kernel, and count what was dropped."""
    rows, n_dropped = _valid(report, _read(report, versions.GRAPH, _COLUMNS | _STREAM, where=where))
    rows = _with(rows, name_id=canonical.GRAPH_NAME_ID, grid=None, block=None, is_comm=False)
    return canonical.KERNELS.table(rows), n_dropped


def _texts(ids: pa.ChunkedArray, strings: Strings) -> dict[int, str]:
    return {
        number: text
        for number, text in strings.pairs(pc.unique(ids).drop_null().to_numpy())
        if text is not None
    }


def _kernels(
    rows: pa.Table,
    name_column: str | None,
    names: Mapping[int, str],
    strings: Strings,
    comm_pattern: re.Pattern[str] | None,
) -> tuple[pa.Table, bool]:
    """Return `canonical.KERNELS`, and whether the pattern matches any.

    Communication are kernels of which one name begins as NCCL's do, or matches the pattern, or is
    another library's.
    """
    if name_column is None:
        return canonical.KERNELS.table(_with(rows, name_id=None, is_comm=False)), False
    of_kernels = [rows[name] for name in _NAMES if name in rows.column_names]
    texts = (
        [item for one in of_kernels for item in _texts(one, strings).items()]
        if comm_pattern
        else []
    )
    matched = [number for number, text in texts if comm_pattern and comm_pattern.search(text)]
    of_libraries = [
        number for number, text in names.items() if library_of(kernel_label(text)) is not None
    ]
    ids = [*strings.ids_beginning(NCCL_PREFIX, ignore_case=True), *matched, *of_libraries]
    is_comm = pa.array(
        functools.reduce(np.logical_or, [np.isin(filled(one), ids) for one in of_kernels])
    )
    return canonical.KERNELS.table(_with(rows, name_id=rows[name_column], is_comm=is_comm)), bool(
        matched
    )


def _uncounted(kernels: pa.Table, names: Mapping[int, str]) -> tuple[str, ...]:
    """Return the labels of kernels that are named like communication and do not count as such."""
    labels = {number: kernel_label(text) for number, text in names.items()}
    alike = [
        one
        for one, label in labels.items()
        if looks_like_communication(label) and not is_communication(label)
    ]
    if not alike:
        return ()
    is_alike = ~kernels["is_comm"].to_numpy() & np.isin(filled(kernels["name_id"]), alike)
    return tuple(
        sorted(
            {labels[number] for number in np.unique(filled(kernels["name_id"])[is_alike]).tolist()}
        )
    )


class Operations(Struct, frozen=True):
    """What ran on the devices."""

    kernels: pa.Table  # `canonical.KERNELS`
    copies: pa.Table  # `canonical.COPIES`
    n_dropped: int  # rows that ended before they started, or had no time
    n_graphs: int  # CUDA graphs that were captured as a whole: their kernels cannot be told apart
    has_names: bool  # whether any kernel's name is known; true without kernels
    has_named_comm: (
        bool  # whether a kernel is communication by the user's pattern; false without one
    )
    uncounted: tuple[
        str, ...
    ]  # labels of kernels that are named like communication and do not count as such
    names: dict[int, str]  # text of every `name_id` among the kernels
    name_column: str | None  # nsys's column that the kernels' names come from
    zones: Mapping[str, Zones]  # of the times of large tables, of which no row was dropped


def read_operations(
    report: Report, strings: Strings, comm_pattern: re.Pattern[str] | None
) -> Operations:
    """Read all device operations; a table that the lazy export left out has no rows."""
    if report.has(versions.KERNEL) and not any(
        report.has(versions.KERNEL, name) for name in _NAMES
    ):
        report.require(versions.KERNEL, _NAMES[0])
    rows, bad_kernels = _read_kernels(report, has_shapes=True)
    names: dict[int, str] = {}
    column = None
    for column in (
        name for name in reversed(_NAMES) if name in rows.column_names
    ):  # demangled names may be left out
        names = _texts(rows[column], strings)
        if names:
            break
    kernels, has_named_comm = _kernels(rows, column, names, strings, comm_pattern)
    graphs, bad_graphs = _read_graphs(report)
    memcpys, bad_memcpys = _valid(
        report, _read(report, versions.MEMCPY, _COLUMNS | _BYTES | _COPY_KIND)
    )
    memsets, bad_memsets = _valid(report, _read(report, versions.MEMSET, _COLUMNS | _BYTES))
    copies = (memcpys, _with(memsets, copy_kind=canonical.MEMSET_KIND))
    return Operations(
        kernels=pa.concat_tables([kernels, graphs]),
        copies=pa.concat_tables(canonical.COPIES.table(copy) for copy in copies),
        n_dropped=bad_kernels + bad_graphs + bad_memcpys + bad_memsets,
        n_graphs=graphs.num_rows,
        uncounted=_uncounted(kernels, names),
        names=names,
        name_column=column,
        has_names=not kernels.num_rows or bool(names),
        has_named_comm=has_named_comm,
        zones=report.zones(versions.KERNEL, rows["start_ns"], rows["end_ns"])
        | report.zones(versions.MEMCPY, memcpys["start_ns"], memcpys["end_ns"]),
    )


def with_communication(
    report: Report, operations: Operations, called: Called
) -> tuple[Operations, Called]:
    """Return the operations with what calls launched as communication, and the calls with the streams of their copies."""
    if not called.launches.num_rows:
        return operations, called
    called = replace(called, launches=_with_streams(report, called.launches))
    kernels, copies = with_called(operations.kernels, operations.copies, called)
    names = operations.names | dict(called.names)
    return replace(operations, kernels=kernels, copies=copies, names=names), called


def _with_streams(report: Report, launches: pa.Table) -> pa.Table:
    """Read the streams of copies, for which a table of all copies has no room: a second pass over few of its rows."""
    of_copies = launches.filter(launches["is_copy"])
    if not of_copies.num_rows or not report.has(versions.MEMCPY, "streamId", "correlationId"):
        return launches
    first, last = pc.min_max(of_copies["correlation_id"]).as_py().values()
    kinds = ", ".join(map(str, COPY_KINDS))
    where = f'copyKind IN ({kinds}) AND "correlationId" BETWEEN {first} AND {last}'
    columns = {name: _COLUMNS[name] for name in ("process_id", "correlation_id")}
    found = _read(report, versions.MEMCPY, columns | _STREAM, where=where)
    if found["process_id"].null_count:
        found = _with(found, process_id=pc.fill_null(found["process_id"], _only_process(report)))
    at = rows_of_launches(launches, found)
    streams = found["stream_id"].take(pa.array(at, mask=(at < 0) | ~launches["is_copy"].to_numpy()))
    column = launches.column_names.index("stream_id")
    return launches.set_column(column, launches.field(column), streams)


class Wanted(Struct, frozen=True):
    """What a second reading reads; times are the report's, ns."""

    # Device time ``[first, last)``: operations that overlap it or begin in it, the calls that may
    # have launched them, and the ranges around those calls; None takes everything
    span: tuple[int, int] | None
    steps: tuple[
        Int64, Int64
    ]  # starts and ends of step ranges, host time: of one that touches such a call all is read
    host_span: tuple[int, int] | None  # host time of which the ranges are read in any case
    threads: tuple[int, ...]  # threads whose ranges are read
    # As the first reading found them: see `gather.ReportDigest`
    name_column: str | None
    open_end_ns: int | None
    zones: Mapping[str, Zones]
    called: Called
    file_state: FileState | None

    def where(self, table: str) -> str | None:
        """Return the SQL condition of a table's operations; None for all."""
        if self.span is None:
            return None
        first, last = self.span
        in_zones = f"{self.zones[table].condition(first, last)} AND " if table in self.zones else ""
        # Sums are numbers, where a column of type TEXT would be compared letter by letter.
        return f'{in_zones}"start" + 0 < {last} AND ("end" + 0 > {first} OR "start" + 0 = {first})'


def read_again(
    path: str, comm_kernel: re.Pattern[str] | None, wanted: Wanted
) -> tuple[dict[int, str], tuple[pa.Table | None, ...]]:
    """Read operations one by one; `InputError` if the report is missing by now, or cannot be read.

    Returned are the text of each name id, and as they stand in the report kernels (without shapes,
    graphs last), memcpys and memsets with a ``stream_id``, `canonical.RANGES`, and
    `canonical.LAUNCHES`, None if calls were not recorded. Copies that are communication stand
    behind the kernels, one row for each collective, with their ``bytes``.
    """
    column = wanted.name_column
    columns = _COLUMNS | _STREAM | _BYTES
    with open_report(path, wanted.file_state) as report:
        strings = read_strings(report)
        rows, _ = _read_kernels(report, has_shapes=False, where=wanted.where(versions.KERNEL))
        graphs, _ = _read_graphs(report, wanted.where(versions.GRAPH))
        names = {} if column is None else _texts(rows[column], strings)
        kernels = pa.concat_tables([_kernels(rows, column, names, strings, comm_kernel)[0], graphs])
        kinds = (versions.MEMCPY, columns | _COPY_KIND), (versions.MEMSET, columns)
        found = (_read(report, table, names, where=wanted.where(table)) for table, names in kinds)
        memcpys, memsets = (_valid(report, rows)[0] for rows in found)
        ids = None
        if wanted.span is not None:
            bounds = [
                pc.min_max(table["correlation_id"]).as_py() for table in (kernels, memcpys, memsets)
            ]
            known = [bound for bound in bounds if bound["min"] is not None]
            ids = (
                min((one["min"] for one in known), default=1),
                max((one["max"] for one in known), default=0),
            )
        launches = read_launches(report, ids, wanted.zones.get(versions.RUNTIME))
        if wanted.called.launches.num_rows:
            kernels, memcpys = with_called(_with(kernels, bytes=None), memcpys, wanted.called)
        ranges = _ranges(report, strings, wanted, launches)
        return names | dict(wanted.called.names), (kernels, memcpys, memsets, ranges, launches)


def _ranges(
    report: Report, strings: Strings, wanted: Wanted, launches: pa.Table | None
) -> pa.Table:
    spans = [] if wanted.host_span is None else [wanted.host_span]
    if launches is not None and launches.num_rows:
        bounds = pc.min_max(launches["start_ns"]).as_py()
        spans.append((bounds["min"], bounds["max"]))
    if not (spans and wanted.threads):
        return canonical.RANGES.empty()
    hull = min(one[0] for one in spans), max(one[1] for one in spans)
    span = None if wanted.span is None else _in_whole_steps(hull, *wanted.steps)
    return read_ranges_again(
        report, strings, wanted.threads, span=span, open_end_ns=wanted.open_end_ns
    )


def _in_whole_steps(span: tuple[int, int], starts: Int64, ends: Int64) -> tuple[int, int]:
    touched = (ends >= span[0]) & (starts <= span[1])
    first = starts[touched].min(initial=span[0])
    last = ends[touched].max(initial=span[1])
    return int(first), int(last)
