"""A report read a second time: its device operations one by one, all of them or those of a span of time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nsyspipe.model import canonical
from nsyspipe.reader.calls import read_launches, read_strings
from nsyspipe.reader.operations import read_operations_again
from nsyspipe.reader.ranges import read_ranges_again
from nsyspipe.reader.report import open_report

if TYPE_CHECKING:
    import re
    from collections.abc import Iterable

    from nsyspipe.model.types import Int64
    from nsyspipe.reader.calls import Strings
    from nsyspipe.reader.report import Report


@dataclass(frozen=True)
class Wanted:
    """What to read; times are the report's, ns."""

    # Device time ``[first, last)``: operations that overlap it or begin in it, the calls that may have launched them,
    # and the ranges around those calls; None takes everything
    span: tuple[int, int] | None
    # Starts and ends of step ranges, host time. Of each that holds such a call or touches one that does, all ranges
    # are read.
    steps: tuple[Int64, Int64]
    # Host time of which the ranges are read in any case; None for none
    host_span: tuple[int, int] | None
    threads: tuple[int, ...]  # threads whose ranges are read
    # name_column, open_end_ns: as the first reading found them: see `gather.ReportDigest`
    name_column: str | None
    open_end_ns: int | None


@dataclass(frozen=True)
class SecondReading:
    """Events of a report, as they stand in it."""

    # kernels, memcpys, memsets, names: as `operations.read_operations_again` gives them
    kernels: pa.Table
    memcpys: pa.Table
    memsets: pa.Table
    names: dict[int, str]
    launches: pa.Table | None  # `canonical.LAUNCHES`; None when API calls were not recorded
    ranges: pa.Table  # `canonical.RANGES`


def read_again(path: str, comm_kernel: re.Pattern[str] | None, wanted: Wanted) -> SecondReading:
    """Read the operations of a report one by one; `InputError` if it is missing by now, or cannot be read.

    nsys makes no indexes: a span costs one pass over each table, of which few columns are looked at.
    """
    with open_report(path) as report:
        strings = read_strings(report)
        kernels, memcpys, memsets, names = read_operations_again(
            report, strings, comm_kernel, wanted.name_column, wanted.span
        )
        launches = _launches(report, wanted, (kernels, memcpys, memsets))
        ranges = _ranges(report, strings, wanted, launches)
    return SecondReading(kernels, memcpys, memsets, names, launches, ranges)


def _launches(report: Report, wanted: Wanted, operations: Iterable[pa.Table]) -> pa.Table | None:
    """Read the calls whose correlation ids are those of the operations, or lie between them."""
    if wanted.span is None:
        return read_launches(report)
    bounds = [pc.min_max(table["correlation_id"]).as_py() for table in operations]
    known = [one for one in bounds if one["min"] is not None]
    ids = (
        min((one["min"] for one in known), default=1),
        max((one["max"] for one in known), default=0),
    )
    return read_launches(report, ids)


def _ranges(report: Report, strings: Strings, wanted: Wanted, launches: pa.Table | None) -> pa.Table:
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
