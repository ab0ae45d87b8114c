"""Kernels of a report: which communicate, what they are called, and the shapes of a sample of them."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nsyspipe import schema
from nsyspipe.read import versions
from nsyspipe.read.rows import OPERATION_COLUMNS, constant, overlapping, valid_rows

if TYPE_CHECKING:
    import re
    from collections.abc import Callable

    from numpy.typing import NDArray

    from nsyspipe.read.report import Report
    from nsyspipe.read.strings import Strings

    Int64 = NDArray[np.int64]

__all__ = ["Kernels", "read_graphs", "read_kernels", "read_kernels_again"]

_COMM_PREFIX = "nccl"
_KERNEL_COLUMNS = OPERATION_COLUMNS | {"stream_id": "streamId"}

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


@dataclass(frozen=True)
class Kernels:
    """The kernels of a report.

    Attributes
    ----------
    table
        `schema.KERNELS`.
    n_dropped
        Rows without a valid time.
    names
        Text by name id.
    name_column
        The column that name ids come from; None when there is none.
    """

    table: pa.Table
    n_dropped: int
    names: dict[int, str]
    name_column: str | None


def read_kernels(report: Report, strings: Strings, comm_pattern: re.Pattern[str] | None) -> Kernels:
    """Read the kernels."""
    sources = _name_columns(report)
    if report.has(versions.KERNEL) and not sources:
        report.require(versions.KERNEL, "shortName")
    rows, n_dropped = _read_rows(report, _KERNEL_COLUMNS | {name: name for name in sources})
    if not sources:
        return Kernels(_table(rows, None, strings, comm_pattern), n_dropped, {}, None)
    column = sources[-1]
    names = _names(rows[column], strings)
    if not names and len(sources) > 1:  # demangled names may be left out
        column = sources[0]
        names = _names(rows[column], strings)
    return Kernels(_table(rows, column, strings, comm_pattern), n_dropped, names, column)


def read_kernels_again(
    report: Report,
    strings: Strings,
    comm_pattern: re.Pattern[str] | None,
    *,
    name_column: str | None,
    span: tuple[int, int] | None,
) -> Kernels:
    """Read the kernels of a span without their shapes.

    Parameters
    ----------
    name_column
        As the first reading found it.
    span
        Report time, ns: kernels that overlap it; None takes all.
    """
    columns = _KERNEL_COLUMNS | {name: name for name in _name_columns(report)}
    rows, n_dropped = _packed_rows(report, columns, where=overlapping(span))
    rows |= dict.fromkeys(_SHAPES, pa.nulls(len(rows["start_ns"]), pa.int64()))
    names = {} if name_column is None else _names(rows[name_column], strings)
    table = _table(rows, name_column, strings, comm_pattern)
    return Kernels(table, n_dropped, names, name_column)


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
        return schema.KERNELS.table(rows | nothing)
    comm_ids = strings.ids_beginning(_COMM_PREFIX, ignore_case=True)
    sources = [name for name in ("shortName", "demangledName") if name in rows]
    flags = [_in_set(rows[name], comm_ids, strings, comm_pattern) for name in sources]
    is_comm = pc.or_(*flags) if len(flags) > 1 else flags[0]
    return schema.KERNELS.table(rows | {"name_id": rows[name_column], "is_comm": is_comm})


def _read_rows(report: Report, columns: dict[str, str]) -> tuple[dict[str, pa.ChunkedArray], int]:
    """Read the kernels' columns, with the shapes of all of them, or of a sample if there are many."""
    if not report.has(versions.KERNEL, *_SHAPE_COLUMNS):
        return valid_rows(report, versions.KERNEL, columns, dict.fromkeys(_SHAPES, "NULL"))
    if report.last_row(versions.KERNEL) <= _MOST_SHAPES:
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
        rows, n_dropped = valid_rows(
            report, versions.KERNEL, fewer, _PLACE, beside=beside, where=where
        )
        place = rows.pop("place")
        if not place.null_count:
            rows["device_id"] = pc.shift_right(place, 32)
            rows["stream_id"] = pc.bit_wise_and(place, 2**32 - 1)
            return rows, n_dropped
    return valid_rows(report, versions.KERNEL, columns, beside=beside, where=where)


def read_graphs(report: Report, span: tuple[int, int] | None = None) -> tuple[pa.Table, int]:
    """Read the CUDA graphs that were captured as a whole, each as one compute kernel, and count what was dropped.

    `span` limits them to those that overlap it, in report time.
    """
    columns = OPERATION_COLUMNS | {"stream_id": "streamId"}
    rows, n_dropped = valid_rows(report, versions.GRAPH, columns, where=overlapping(span))
    unknown = pa.nulls(len(rows["start_ns"]), pa.int64())
    rows |= {
        "name_id": constant(rows, schema.GRAPH_NAME_ID),
        "grid": unknown,
        "block": unknown,
        "is_comm": constant(rows, value=False),
    }
    return schema.KERNELS.table(rows), n_dropped


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
