"""What one report holds, by counting: only NVTX ranges are loaded, and let go again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from nsyspipe.families import TextFamilies, largest_families
from nsyspipe.read import versions
from nsyspipe.read.facts import ReportFacts, read_facts
from nsyspipe.read.payload import CommRank, read_payloads
from nsyspipe.read.payload_fields import names_in
from nsyspipe.read.payload_layouts import read_layouts
from nsyspipe.read.ranges import read_ranges
from nsyspipe.read.report import Report, open_report
from nsyspipe.read.strings import Strings, read_strings

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = [
    "CPU_SAMPLES",
    "GPU_METRICS",
    "OS_RUNTIME",
    "SYNCHRONIZATION",
    "Contents",
    "read_contents",
]

SYNCHRONIZATION = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"
OS_RUNTIME = "OSRT_API"
CPU_SAMPLES = "COMPOSITE_EVENTS"
GPU_METRICS = "GPU_METRICS"
_OPERATIONS = (versions.KERNEL, versions.MEMCPY, versions.MEMSET, versions.GRAPH)
_COUNTED = (
    *_OPERATIONS, versions.RUNTIME, versions.NVTX, versions.STRINGS, versions.OVERHEAD, SYNCHRONIZATION,
    OS_RUNTIME, CPU_SAMPLES, GPU_METRICS,
)  # fmt: skip
_SHAPE = ("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ")
_LIBRARY = "nccl"
_DOMAIN = "eventType = 75 AND text = 'NCCL'"
_RANGE = "eventType IN (59, 60)"
# Either of them says the size of a message.
_SIZE_FIELDS = ({"message_bytes"}, {"count", "datatype"})
_MOST_FAMILIES = 1000


@dataclass(frozen=True)
class Contents:
    """What one report holds.

    Attributes
    ----------
    rows
        Rows by table; 0 for a table that is absent.
    n_processes
        Processes with device activity.
    n_comm, n_graph_kernels
        Kernels that NCCL named; kernels of CUDA graphs that were captured node by node.
    n_launches
        Calls that have all that ties them to what they launched.
    n_timed_calls
        Calls with a name and an end.
    n_device_calls
        Calls that launch, copy or set, by the table where that should have left a row.
    has_shapes
        Whether kernels have their grid and block.
    families
        The users' NVTX ranges: texts with digits as ``#`` and how many there are, most time first.
    n_nccl_ranges, n_payloads, n_message_bytes
        NVTX ranges of NCCL, those of anybody with a payload, and calls of NCCL whose message size can be read.
    is_size_described
        Whether the report explains a payload with a message size.
    comm_ranks, mpi_ranks
        Rank by process, from NCCL's payload (with the size) and from MPI's thread names.
    """

    path: str
    facts: ReportFacts
    rows: Mapping[str, int]
    n_processes: int
    n_comm: int
    n_graph_kernels: int
    n_launches: int
    n_timed_calls: int
    n_device_calls: Mapping[str, int]
    has_shapes: bool
    families: tuple[tuple[str, int], ...]
    n_nccl_ranges: int
    n_payloads: int
    n_message_bytes: int
    is_size_described: bool
    comm_ranks: dict[int, CommRank]
    mpi_ranks: dict[int, int]


def read_contents(path: str | Path) -> Contents:
    """Look into one report.

    Raises
    ------
    InputError
        If it is missing, damaged, or no nsys export.
    """
    with open_report(path) as report:
        strings = read_strings(report)
        nccl_ids = _listed(strings, _LIBRARY)
        rows = {table: _total(report, table, "count(*)") for table in _COUNTED}
        n_calls = rows[versions.RUNTIME]
        ranges = read_ranges(report, strings, [])
        payloads = read_payloads(report, strings)
        launching = report.has(versions.RUNTIME, "start", "globalTid", "correlationId")
        timed = report.has(versions.RUNTIME, "start", "end", "globalTid", "nameId")
        return Contents(
            path=str(path),
            facts=read_facts(report),
            rows=rows,
            n_processes=len(_processes(report)),
            n_comm=_comm_kernels(report, nccl_ids),
            n_graph_kernels=_total(
                report, versions.KERNEL, "count(nullif(graphNodeId, 0))", "graphNodeId"
            ),
            n_launches=n_calls if launching else 0,
            n_timed_calls=n_calls if timed else 0,
            n_device_calls=_device_calls(report, strings),
            has_shapes=report.has(versions.KERNEL, *_SHAPE),
            families=_families(ranges.table),
            n_nccl_ranges=_nccl_ranges(report, nccl_ids),
            n_payloads=_total(
                report, versions.NVTX, "coalesce(sum(length(binaryData) > 0), 0)", "binaryData"
            ),
            n_message_bytes=len(payloads.table["message_bytes"].drop_null()),
            is_size_described=_is_size_described(report),
            comm_ranks=payloads.comm_ranks,
            mpi_ranks=ranges.mpi_ranks,
        )


def _families(ranges: pa.Table) -> tuple[tuple[str, int], ...]:
    texts = (
        ranges["text"].combine_chunks().dictionary if ranges.num_rows else pa.array([], pa.string())
    )
    return largest_families(ranges, TextFamilies.by_text(texts), _MOST_FAMILIES)


def _total(report: Report, table: str, sql: str, *columns: str) -> int:
    """Return one figure over a table; 0 when it, or a column that the figure needs, is not there."""
    if not report.has(table, *columns):
        return 0
    return int(report.select(table, {}, derived={"total": sql})["total"][0].as_py() or 0)


def _processes(report: Report) -> set[int]:
    """Return the processes with device activity; without a column that says so, there is one."""
    found: set[int] = set()
    for table in _OPERATIONS:
        if report.has(table, "globalPid"):
            # One row per process reaches Python, not one per operation.
            pids = report.select(table, {}, derived={"pid": "DISTINCT globalPid"})["pid"]
            found.update(pid or 0 for pid in pids.to_pylist())
        elif _total(report, table, "count(*)"):
            found.add(0)
    return found


def _listed(strings: Strings, *prefixes: str) -> str:
    ids = strings.ids_beginning(*prefixes, ignore_case=True)
    return ", ".join(map(str, ids.tolist())) or "NULL"


def _comm_kernels(report: Report, nccl_ids: str) -> int:
    names = [name for name in ("shortName", "demangledName") if report.has(versions.KERNEL, name)]
    tests = " OR ".join(f"{name} IN ({nccl_ids})" for name in names)
    return report.count(versions.KERNEL, tests) if names else 0


def _device_calls(report: Report, strings: Strings) -> dict[str, int]:
    """Count the calls that make rows of each table, to tell "none happened" from "not recorded"."""
    kinds = {
        versions.KERNEL: ("LaunchKernel", "GraphLaunch"),
        versions.MEMCPY: ("Memcpy",),
        versions.MEMSET: ("Memset",),
    }
    found = {}
    for table, calls in kinds.items():
        ids = _listed(strings, *(f"{api}{call}" for api in ("cu", "cuda") for call in calls))
        found[table] = _total(
            report, versions.RUNTIME, f"coalesce(sum(nameId IN ({ids})), 0)", "nameId"
        )
    return found


def _nccl_ranges(report: Report, nccl_ids: str) -> int:
    """Count NCCL's ranges: by their text, and by the domain where a release names them otherwise."""
    if not report.has(versions.NVTX, "text", "textId", "eventType", "domainId"):
        return 0
    domains = report.select(versions.NVTX, {"domainId": "int"}, where=_DOMAIN)["domainId"]
    own = ", ".join(str(one) for one in set(domains.to_pylist()) if one is not None) or "NULL"
    texts = f"textId IN ({nccl_ids}) OR text LIKE '{_LIBRARY}%'"
    return report.count(versions.NVTX, f"{_RANGE} AND ({texts} OR domainId IN ({own}))")


def _is_size_described(report: Report) -> bool:
    fields = [names_in(layout).keys() for layout in read_layouts(report).values()]
    return any(needed <= names for names in fields for needed in _SIZE_FIELDS)
