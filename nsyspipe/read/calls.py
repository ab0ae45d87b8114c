"""CUDA API calls of a report: what launched operations, and what made the host wait."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pyarrow as pa

from nsyspipe import schema
from nsyspipe.intervals import EMPTY
from nsyspipe.read import versions
from nsyspipe.read.rows import process_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from nsyspipe.read.facts import ReportFacts
    from nsyspipe.read.report import Report
    from nsyspipe.read.strings import Strings

    Int64 = NDArray[np.int64]

__all__ = ["read_blocking_calls", "read_launches", "read_overhead"]

# Beginnings of the calls that synchronise, or allocate, free or copy memory; what has Async in its
# name does not wait.
_SYNCHRONISING = (
    "cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize", "cudaThreadSynchronize",
    "cuStreamSynchronize", "cuEventSynchronize", "cuCtxSynchronize",
)  # fmt: skip
_MEMORY = (
    "cudaMalloc", "cudaFree", "cudaHostAlloc", "cudaHostRegister", "cudaHostUnregister", "cudaMemcpy", "cudaMemset",
    "cuMemAlloc", "cuMemFree", "cuMemHostAlloc", "cuMemHostRegister", "cuMemCreate", "cuMemMap", "cuMemUnmap",
    "cuMemRelease", "cuMemSetAccess", "cuMemcpy", "cuMemset",
)  # fmt: skip
_ASYNC = "Async"
# The runtime's names end in _ptsz_v7000, the driver's in _v2_ptsz.
_API_VERSION = re.compile(r"(?:_v[0-9]+|_ptsz|_ptds)+$")


def read_launches(report: Report, ids: tuple[int, int] | None = None) -> pa.Table | None:
    """Read the CUDA API calls as `schema.LAUNCHES`; None when they were not recorded.

    What runs on a device was launched, so a table without rows is one that was not recorded. `ids`
    limits them to correlation ids from the first to the second, inclusive.
    """
    columns = ("start", "globalTid", "correlationId")
    if not (report.has(versions.RUNTIME, *columns) and report.has_rows(versions.RUNTIME)):
        return None
    where = None if ids is None else f'"correlationId" BETWEEN {ids[0]} AND {ids[1]}'
    found = report.select(versions.RUNTIME, dict.fromkeys(columns, "int"), where=where).drop_null()
    process = process_of(found["globalTid"].to_numpy())
    return schema.LAUNCHES.table(
        {
            "process_id": process,
            "start_ns": found["start"],
            "correlation_id": found["correlationId"],
        }
    )


def read_blocking_calls(report: Report, strings: Strings) -> pa.Table | None:
    """Read the calls that make the host wait as `schema.BLOCKING_CALLS`.

    None when calls have no end or name, or were not recorded, as `read_launches` tells.
    """
    columns = ("start", "end", "globalTid", "nameId")
    if not (report.has(versions.RUNTIME, *columns) and report.has_rows(versions.RUNTIME)):
        return None
    ids = strings.ids_beginning(*_SYNCHRONISING, *_MEMORY)
    names = dict(zip(ids.tolist(), strings.lookup(ids).to_pylist(), strict=True))
    names = {number: name for number, name in names.items() if _ASYNC not in name}
    if not names:
        return schema.BLOCKING_CALLS.empty()
    where = f'nameId IN ({", ".join(map(str, names))}) AND "end" > "start"'
    found = report.select(versions.RUNTIME, dict.fromkeys(columns, "int"), where=where).drop_null()
    calls = [_API_VERSION.sub("", names[number]) for number in found["nameId"].to_pylist()]
    return schema.BLOCKING_CALLS.table(
        {
            "process_id": process_of(found["globalTid"].to_numpy()),
            "start_ns": found["start"],
            "end_ns": found["end"],
            "call": pa.array(calls, pa.string()),
        }
    ).sort_by([("start_ns", "ascending"), ("end_ns", "ascending")])


def read_overhead(report: Report, facts: ReportFacts) -> tuple[Int64, Int64] | None:
    """Read starts and ends of the profiler's own work; None when the export does not say.

    It is not told by process: what delays one process of a report delays what waits for it. A lazy
    export leaves the table out when there was no such work.
    """
    if (
        not report.has(versions.OVERHEAD)
        and facts.leaves_out_empty(versions.OVERHEAD)
        and versions.knows_overhead(facts.schema_version)
    ):
        return EMPTY.starts, EMPTY.ends
    if not report.has(versions.OVERHEAD, "start", "end"):
        return None
    found = report.select(versions.OVERHEAD, {"start": "int", "end": "int"}).drop_null()
    starts, ends = found["start"].to_numpy(), found["end"].to_numpy()
    kept = ends > starts
    return starts[kept], ends[kept]
