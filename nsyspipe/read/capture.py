"""Everything that one report holds for the analysis, in one pass over each table."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from nsyspipe import schema
from nsyspipe.problems import Problem, problem
from nsyspipe.read import versions
from nsyspipe.read.events import Operations, read_launches, read_operations
from nsyspipe.read.facts import ReportFacts, read_facts
from nsyspipe.read.payload import CommRank, read_comm_ranks
from nsyspipe.read.ranges import Ranges, read_ranges
from nsyspipe.read.report import Report, open_report
from nsyspipe.read.strings import Strings, read_strings

if TYPE_CHECKING:
    import re

    import pyarrow as pa

__all__ = ["Capture", "read_capture"]


@dataclass(frozen=True)
class Capture:
    """One report, read and closed again.

    Attributes
    ----------
    launches
        `schema.LAUNCHES`; None when API calls were not recorded.
    comm_ranks
        Rank and size by process, from NCCL's payload.
    memcpy_recorded, memset_recorded
        False when the report shows that there were such operations but lacks their rows.
    """

    facts: ReportFacts
    operations: Operations
    launches: pa.Table | None
    ranges: Ranges
    comm_ranks: dict[int, CommRank]
    memcpy_recorded: bool
    memset_recorded: bool
    problems: tuple[Problem, ...]

    def without_events(self) -> Capture:
        """Return the same without operations and launches, which hold most of its memory."""
        empty = Operations(schema.KERNELS.empty(), schema.COPIES.empty(), 0, 0)
        return replace(self, operations=empty, launches=None)


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
        launches = read_launches(report)
        operations = read_operations(report, strings, comm_kernel)
        ends = [
            operations.kernels["end_ns"],
            operations.kernels["start_ns"],
            operations.copies["end_ns"],
        ]
        ranges = read_ranges(report, strings, ends)
        comm_ranks, n_undecoded = read_comm_ranks(report)
        memcpy_recorded = report.has(versions.MEMCPY) or not _was_called(
            report, facts, strings, "Memcpy"
        )
        memset_recorded = report.has(versions.MEMSET) or not _was_called(
            report, facts, strings, "Memset"
        )
    problems = [
        problem("untested-version", version=facts.schema_version)
        if versions.is_newer_than_tested(facts.schema_version)
        else None,
        None if ranges.is_recorded else problem("no-nvtx"),
        None if memcpy_recorded else problem("no-memcpy"),
        None if memset_recorded else problem("no-memset"),
        problem("dropped-operations", n=operations.n_dropped) if operations.n_dropped else None,
        problem("dropped-ranges", n=ranges.n_dropped) if ranges.n_dropped else None,
        problem("graphs-as-a-whole", n=operations.n_graphs) if operations.n_graphs else None,
        problem("undecoded-payload", n=n_undecoded) if n_undecoded else None,
    ]
    return Capture(
        facts=facts,
        operations=operations,
        launches=launches,
        ranges=ranges,
        comm_ranks=comm_ranks,
        memcpy_recorded=memcpy_recorded,
        memset_recorded=memset_recorded,
        problems=tuple(one for one in problems if one is not None),
    )


def _was_called(report: Report, facts: ReportFacts, strings: Strings, what: str) -> bool:
    """Tell whether a table that is absent had rows in the capture.

    Exports are lazy: a table without rows is left out, so absence alone means "none happened". It
    means "not recorded" when the program called the API that makes such rows, or when the export
    was limited to some tables.
    """
    if facts.exported_tables or not facts.is_lazy:
        return True
    names = ", ".join(map(str, strings.ids_beginning(f"cu{what}", f"cuda{what}").tolist()))
    if not names or not report.has(versions.RUNTIME, "nameId"):
        return False
    return report.count(versions.RUNTIME, f"nameId IN ({names})") > 0
