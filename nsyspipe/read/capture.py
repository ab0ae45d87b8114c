"""Everything that one report holds for the analysis, in one pass over each table."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow.compute as pc

from nsyspipe import schema
from nsyspipe.problems import Problem, problem
from nsyspipe.read import versions
from nsyspipe.read.calls import read_calls, read_overhead
from nsyspipe.read.events import Operations, read_operations
from nsyspipe.read.facts import ReportFacts, read_facts
from nsyspipe.read.payload import Payloads, read_payloads
from nsyspipe.read.ranges import Ranges, read_ranges
from nsyspipe.read.report import Report, open_report
from nsyspipe.read.strings import Strings, read_strings
from nsyspipe.recorded import NOT_RECORDED, Recorded

if TYPE_CHECKING:
    import re

    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    Int64 = NDArray[np.int64]

__all__ = ["Capture", "read_capture"]


@dataclass(frozen=True)
class Capture:
    """One report, read and closed again.

    Attributes
    ----------
    launches
        `schema.LAUNCHES`; None when API calls were not recorded.
    calls
        `schema.HOST_CALLS`; None where launches are.
    waits
        `schema.HOST_WAITS`.
    blocking_calls
        `schema.BLOCKING_CALLS`; None when calls have no end or no name.
    overhead
        Starts and ends of the profiler's own work, report time, ns; None when not recorded.
    payloads
        What NCCL's calls say of themselves.
    recorded
        Which facts the report lacks although there was something to record.
    """

    facts: ReportFacts
    operations: Operations
    launches: pa.Table | None
    calls: pa.Table | None
    waits: pa.Table
    blocking_calls: pa.Table | None
    overhead: tuple[Int64, Int64] | None
    ranges: Ranges
    payloads: Payloads
    recorded: Recorded
    problems: tuple[Problem, ...]

    def without_events(self) -> Capture:
        """Return the same without operations and launches, which hold most of its memory."""
        empty = replace(
            self.operations, kernels=schema.KERNELS.empty(), copies=schema.COPIES.empty()
        )
        return replace(self, operations=empty, launches=None, calls=None)


def read_capture(path: str, comm_kernel: re.Pattern[str] | None) -> Capture:
    """Read one report.

    Raises
    ------
    InputError
        If it is missing, damaged, no nsys export, or lacks a column that every answer needs.
    """
    with open_report(path) as report:
        facts = read_facts(report)
        strings = read_strings(report)
        calls = read_calls(report, strings)
        operations = read_operations(report, strings, comm_kernel)
        overhead = read_overhead(report, facts)
        ends = [
            operations.kernels["end_ns"],
            operations.copies["end_ns"],
        ]
        ranges = read_ranges(report, strings, ends)
        payloads = read_payloads(report, strings)
        recorded = _recorded(report, facts, strings, operations)
        no_memset = _holds_memsets(report, facts) and not report.has_rows(versions.MEMSET)
        n_memset_calls = _n_calls(report, strings, ("Memset",)) if no_memset else 0
    problems = [
        problem("untested-version", version=facts.schema_version)
        if versions.is_newer_than_tested(facts.schema_version)
        else None,
        None if ranges.is_recorded else problem("no-nvtx"),
        *(
            None if getattr(recorded, fact) else problem(code)
            for fact, code in NOT_RECORDED.items()
        ),
        problem("dropped-operations", n=operations.n_dropped) if operations.n_dropped else None,
        problem("dropped-ranges", n=ranges.n_dropped) if ranges.n_dropped else None,
        problem("memset-calls-only", n=n_memset_calls) if n_memset_calls else None,
        problem("undecoded-payload", n=payloads.n_undecoded) if payloads.n_undecoded else None,
    ]
    return Capture(
        facts=facts,
        operations=operations,
        launches=calls.launches,
        calls=calls.all,
        waits=calls.waits,
        blocking_calls=calls.blocking,
        overhead=overhead,
        ranges=ranges,
        payloads=payloads,
        recorded=recorded,
        problems=tuple(one for one in problems if one is not None),
    )


def _recorded(
    report: Report, facts: ReportFacts, strings: Strings, operations: Operations
) -> Recorded:
    copies = operations.copies
    dtod_bytes = copies["bytes"].filter(pc.equal(copies["copy_kind"], schema.DTOD_KIND))

    def is_there(table: str, *calls: str) -> bool:
        return report.has_rows(table) or not _was_recordable(report, facts, strings, table, calls)

    return Recorded(
        kernels=operations.n_graphs > 0 or is_there(versions.KERNEL, "LaunchKernel", "GraphLaunch"),
        names=operations.has_names,
        memcpy=is_there(versions.MEMCPY, "Memcpy"),
        # Where nothing was left out, calls without any operation set no memory of a device at that time.
        memset=_holds_memsets(report, facts) or is_there(versions.MEMSET, "Memset"),
        kinds=not copies["copy_kind"].null_count,
        sizes=not dtod_bytes.null_count,
    )


def _holds_memsets(report: Report, facts: ReportFacts) -> bool:
    return facts.holds_all(versions.MEMSET, is_there=report.has(versions.MEMSET))


def _was_recordable(
    report: Report, facts: ReportFacts, strings: Strings, table: str, calls: tuple[str, ...]
) -> bool:
    """Tell whether a table that is absent or empty had something to record.

    Exports are lazy: a table without rows is left out, so absence alone means "none happened". It
    means "not recorded" when the program called the API that makes such rows, or when the export
    was limited to other tables. A table that is there without rows means "none happened" but for
    such calls.
    """
    if not report.has(table) and not facts.leaves_out_empty(table):
        return True
    return _n_calls(report, strings, calls) > 0


def _n_calls(report: Report, strings: Strings, calls: tuple[str, ...]) -> int:
    """Count the API calls whose names begin so."""
    prefixes = [f"{api}{call}" for api in ("cu", "cuda") for call in calls]
    names = ", ".join(map(str, strings.ids_beginning(*prefixes).tolist()))
    if not names or not report.has(versions.RUNTIME, "nameId"):
        return 0
    return report.count(versions.RUNTIME, f"nameId IN ({names})")
