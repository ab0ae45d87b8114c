"""A report read a second time: its device operations one by one, all of them or those of a span of time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nsyspipe.model import canonical
from nsyspipe.reader import report as versions
from nsyspipe.reader.calls import read_launches, read_strings
from nsyspipe.reader.operations import (
    OPERATION_COLUMNS,
    overlapping,
    read_graphs,
    read_kernels_again,
    valid_rows,
)
from nsyspipe.reader.ranges import read_ranges_again
from nsyspipe.reader.report import open_report

if TYPE_CHECKING:
    import re

    from nsyspipe.model.types import Int64
    from nsyspipe.reader.calls import Strings
    from nsyspipe.reader.report import Report


_MEMSET_COLUMNS = OPERATION_COLUMNS | {"stream_id": "streamId", "bytes": "bytes"}
_MEMCPY_COLUMNS = _MEMSET_COLUMNS | {"copy_kind": "copyKind"}


@dataclass(frozen=True)
class Wanted:
    """What to read; times are the report's, ns.

    Attributes
    ----------
    span
        Device time ``[first, last)``: operations that overlap it or begin in it, the calls that may have launched them,
        and the ranges around those calls; None takes everything.
    steps
        Starts and ends of step ranges, host time. Of each that holds such a call or touches one that does, all ranges
        are read.
    host_span
        Host time of which the ranges are read in any case; None for none.
    threads
        Threads whose ranges are read.
    name_column, open_end_ns
        As the first reading found them: see `gather.ReportDigest`.
    """

    span: tuple[int, int] | None
    steps: tuple[Int64, Int64]
    host_span: tuple[int, int] | None
    threads: tuple[int, ...]
    name_column: str | None
    open_end_ns: int | None


@dataclass(frozen=True)
class SecondReading:
    """Events of a report, as they stand in it.

    Attributes
    ----------
    kernels
        `canonical.KERNELS` without shapes, graphs last.
    memcpys, memsets
        Columns of `canonical.COPIES` and ``stream_id``; memsets have no ``copy_kind``.
    names
        Text of every name id among the kernels.
    launches
        `canonical.LAUNCHES`; None when API calls were not recorded.
    ranges
        `canonical.RANGES`.
    """

    kernels: pa.Table
    memcpys: pa.Table
    memsets: pa.Table
    names: dict[int, str]
    launches: pa.Table | None
    ranges: pa.Table


def read_again(path: str, comm_kernel: re.Pattern[str] | None, wanted: Wanted) -> SecondReading:
    """Read the operations of a report one by one.

    Raises
    ------
    InputError
        If it is missing by now, or cannot be read.

    Notes
    -----
    nsys makes no indexes: a span costs one pass over each table, of which few columns are looked at.
    """
    with open_report(path) as report:
        strings = read_strings(report)
        kernels = read_kernels_again(
            report, strings, comm_kernel, name_column=wanted.name_column, span=wanted.span
        )
        graphs, _ = read_graphs(report, wanted.span)
        table = pa.concat_tables([kernels.table, graphs])
        memcpys = _copies(report, versions.MEMCPY, _MEMCPY_COLUMNS, wanted)
        memsets = _copies(report, versions.MEMSET, _MEMSET_COLUMNS, wanted)
        launches = _launches(report, wanted, table, memcpys, memsets)
        ranges = _ranges(report, strings, wanted, launches)
    return SecondReading(table, memcpys, memsets, kernels.names, launches, ranges)


def _copies(report: Report, table: str, columns: dict[str, str], wanted: Wanted) -> pa.Table:
    rows, _ = valid_rows(report, table, columns, where=overlapping(wanted.span))
    return pa.table(rows)


def _launches(report: Report, wanted: Wanted, *operations: pa.Table) -> pa.Table | None:
    """Read the calls whose correlation ids are those of the operations, or lie between them."""
    if wanted.span is None:
        return read_launches(report)
    bounds = [pc.min_max(table["correlation_id"]).as_py() for table in operations]
    known = [one for one in bounds if one["min"] is not None]
    if not known:
        return read_launches(report, (1, 0))
    return read_launches(
        report, (min(one["min"] for one in known), max(one["max"] for one in known))
    )


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
    return read_ranges_again(
        report,
        strings,
        wanted.threads,
        span=None if wanted.span is None else _in_whole_steps(hull, *wanted.steps),
        open_end_ns=wanted.open_end_ns,
    )


def _in_whole_steps(span: tuple[int, int], starts: Int64, ends: Int64) -> tuple[int, int]:
    """Widen a host time to all of the step ranges that it touches."""
    first, last = span
    touched = np.flatnonzero((ends >= first) & (starts <= last))
    if not touched.size:
        return span
    return min(first, int(starts[touched].min())), max(last, int(ends[touched].max()))
