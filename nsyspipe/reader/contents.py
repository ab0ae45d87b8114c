"""What one report holds, by counting: only NVTX ranges are loaded, and let go again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from nsyspipe.analysis.step_families import TextFamilies, largest_families
from nsyspipe.model.options import Reading
from nsyspipe.reader import report as versions
from nsyspipe.reader.calls import Strings, read_strings
from nsyspipe.reader.metadata import ReportFacts, read_facts
from nsyspipe.reader.operations import pid_of
from nsyspipe.reader.payload import CommRank, read_payloads
from nsyspipe.reader.ranges import read_ranges
from nsyspipe.reader.report import (
    CPU_SAMPLES,
    GPU_METRICS,
    OS_RUNTIME,
    SYNCHRONIZATION,
    Report,
    open_report,
)

if TYPE_CHECKING:
    import re
    from collections.abc import Mapping
    from pathlib import Path


_OPERATIONS = (versions.KERNEL, versions.MEMCPY, versions.MEMSET, versions.GRAPH)
_COUNTED = (
    *_OPERATIONS, versions.RUNTIME, versions.NVTX, versions.STRINGS, versions.OVERHEAD, SYNCHRONIZATION,
    OS_RUNTIME, CPU_SAMPLES, GPU_METRICS,
)  # fmt: skip
_SHAPE = ("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ")
_LIBRARY = "nccl"
_DOMAIN = "eventType = 75 AND text = 'NCCL'"
_RANGE = "eventType IN (59, 60)"
_MOST_FAMILIES, _MIN_STEPS = 1000, 2
# The range that our own captures begin and end with.
_CAPTURE_RANGE = "nsyspipe.capture"


@dataclass(frozen=True)
class Contents:
    """What one report holds.

    Attributes
    ----------
    rows
        Rows by table; 0 for a table that is absent.
    reading
        What was told about it.
    pids
        Processes with device activity, sorted.
    host_pids
        Processes whose ranges may be steps, sorted; of a report without device activity.
    n_comm, n_graph_kernels
        Kernels that communicate; kernels of CUDA graphs that were captured node by node.
    n_launches
        Calls that have all that ties them to what they launched.
    n_timed_calls
        Calls with a name and an end.
    n_device_calls
        Calls that launch, copy or set, by the table where that should have left a row.
    has_shapes
        Whether kernels have their grid and block.
    n_steps
        NVTX ranges that the step pattern matches; None without one.
    families
        The users' other NVTX ranges: texts with digits as ``#`` and how many there are, most time first.
    n_nccl_ranges, n_message_bytes
        NVTX ranges of NCCL, and calls of NCCL whose message size can be read.
    comm_ranks, mpi_ranks
        Rank by process, from NCCL's payload (with the size) and from MPI's thread names.
    """

    path: str
    reading: Reading
    facts: ReportFacts
    rows: Mapping[str, int]
    pids: tuple[int, ...]
    host_pids: tuple[int, ...]
    n_comm: int
    n_graph_kernels: int
    n_launches: int
    n_timed_calls: int
    n_device_calls: Mapping[str, int]
    has_shapes: bool
    n_steps: int | None
    families: tuple[tuple[str, int], ...]
    n_nccl_ranges: int
    n_message_bytes: int
    comm_ranks: dict[int, CommRank]
    mpi_ranks: dict[int, int]

    @property
    def n_processes(self) -> int:
        """Processes with device activity; where no report has any, those with steps stand for them."""
        return len(self.pids)

    @property
    def has_device_activity(self) -> bool:
        """Whether there is any kernel, copy, memset or CUDA graph."""
        return any(self.rows[table] for table in _OPERATIONS)


def read_contents(path: str | Path, reading: Reading | None = None) -> Contents:
    """Look into one report.

    Parameters
    ----------
    reading
        What is a step, a phase, a communication kernel; None for the defaults.

    Raises
    ------
    InputError
        If it is missing, damaged, or no nsys export.
    """
    reading = reading or Reading()
    with open_report(path) as report:
        strings = read_strings(report)
        nccl_ids = _listed(strings, _LIBRARY)
        rows = {table: _total(report, table, "count(*)") for table in _COUNTED}
        n_calls = rows[versions.RUNTIME]
        ranges = read_ranges(report, strings, [])
        n_steps, others = _steps(ranges.table, reading.step)
        payloads = read_payloads(report, strings)
        processes = _processes(report)
        launching = report.has(versions.RUNTIME, "start", "globalTid", "correlationId")
        timed = report.has(versions.RUNTIME, "start", "end", "globalTid", "nameId")
        return Contents(
            path=str(path),
            reading=reading,
            facts=read_facts(report),
            rows=rows,
            pids=tuple(sorted(map(pid_of, processes))),
            host_pids=() if processes else _host_pids(ranges.table, reading.step),
            n_comm=_comm_kernels(report, strings, nccl_ids, reading.comm_kernel),
            n_graph_kernels=_total(
                report, versions.KERNEL, "count(nullif(graphNodeId, 0))", "graphNodeId"
            ),
            n_launches=n_calls if launching else 0,
            n_timed_calls=n_calls if timed else 0,
            n_device_calls=_device_calls(report, strings),
            has_shapes=report.has(versions.KERNEL, *_SHAPE),
            n_steps=n_steps,
            families=_families(others),
            n_nccl_ranges=_nccl_ranges(report, nccl_ids),
            n_message_bytes=len(payloads.table["message_bytes"].drop_null()),
            comm_ranks=payloads.comm_ranks,
            mpi_ranks=ranges.mpi_ranks,
        )


def _steps(ranges: pa.Table, pattern: re.Pattern[str] | None) -> tuple[int | None, pa.Table]:
    """Count the ranges that a step pattern matches, and return the others."""
    if pattern is None or not ranges.num_rows:
        return None if pattern is None else 0, ranges
    texts = ranges["text"].combine_chunks()
    of_text = TextFamilies.by_option(texts.dictionary, pattern).of_text
    is_step = of_text[texts.indices.to_numpy()] == 0
    return int(np.count_nonzero(is_step)), ranges.filter(pa.array(~is_step))


def _families(ranges: pa.Table) -> tuple[tuple[str, int], ...]:
    texts = (
        ranges["text"].combine_chunks().dictionary if ranges.num_rows else pa.array([], pa.string())
    )
    found = largest_families(ranges, TextFamilies.by_text(texts), _MOST_FAMILIES)
    return tuple(one for one in found if one[0] != _CAPTURE_RANGE)


def _host_pids(ranges: pa.Table, pattern: re.Pattern[str] | None) -> tuple[int, ...]:
    """Return the processes that have the steps: the family with most time in one process, if none is named."""
    if not ranges.num_rows:
        return ()
    texts = ranges["text"].combine_chunks()
    families = (
        TextFamilies.by_text(texts.dictionary)
        if pattern is None
        else TextFamilies.by_option(texts.dictionary, pattern)
    )
    family = families.of_text[texts.indices.to_numpy()]
    rows = np.flatnonzero(family >= 0)
    processes, at = np.unique(ranges["process_id"].to_numpy()[rows], return_inverse=True)
    shape = processes.size, len(families.names)
    lengths = (ranges["end_ns"].to_numpy() - ranges["start_ns"].to_numpy())[rows]
    total, count = np.zeros(shape), np.zeros(shape, np.int64)
    np.add.at(total, (at, family[rows]), lengths)
    np.add.at(count, (at, family[rows]), 1)
    can_be = count >= (_MIN_STEPS if pattern is None else 1)
    if not can_be.any():
        return ()
    steps = np.argmax(np.where(can_be, total, -1).max(axis=0))
    return tuple(sorted(map(pid_of, processes[can_be[:, steps]].tolist())))


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


def _comm_kernels(
    report: Report, strings: Strings, nccl_ids: str, pattern: re.Pattern[str] | None
) -> int:
    names = [name for name in ("shortName", "demangledName") if report.has(versions.KERNEL, name)]
    tests = " OR ".join(
        f"{name} IN ({nccl_ids}) OR {name} IN ({_named(report, strings, name, pattern)})"
        for name in names
    )
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


def _named(report: Report, strings: Strings, column: str, pattern: re.Pattern[str] | None) -> str:
    """List the ids of the names in a column of kernels that a pattern matches."""
    if pattern is None:
        return "NULL"
    used = report.select(versions.KERNEL, {}, derived={"id": f"DISTINCT {column}"})["id"]
    ids = strings.ids_matching(pattern, used.drop_null().to_numpy())
    return ", ".join(map(str, ids.tolist())) or "NULL"


def _nccl_ranges(report: Report, nccl_ids: str) -> int:
    """Count NCCL's ranges: by their text, and by the domain where a release names them otherwise."""
    if not report.has(versions.NVTX, "text", "textId", "eventType", "domainId"):
        return 0
    domains = report.select(versions.NVTX, {"domainId": "int"}, where=_DOMAIN)["domainId"]
    own = ", ".join(str(one) for one in set(domains.to_pylist()) if one is not None) or "NULL"
    texts = f"textId IN ({nccl_ids}) OR text LIKE '{_LIBRARY}%'"
    return report.count(versions.NVTX, f"{_RANGE} AND ({texts} OR domainId IN ({own}))")
