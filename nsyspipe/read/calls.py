"""CUDA API calls of a report: what launched operations, and what made the host wait."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nsyspipe import schema
from nsyspipe.intervals import EMPTY
from nsyspipe.read import versions
from nsyspipe.read.rows import process_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from nsyspipe.read.facts import ReportFacts
    from nsyspipe.read.report import Report
    from nsyspipe.read.strings import Strings

    Int64 = NDArray[np.int64]

__all__ = ["read_blocking_calls", "read_calls", "read_host_waits", "read_launches", "read_overhead"]

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
# Which of them wait for a whole device, and which for one stream.
_OF_DEVICE = ("cudaDeviceSynchronize", "cudaThreadSynchronize", "cuCtxSynchronize")
_OF_STREAM = ("cudaStreamSynchronize", "cuStreamSynchronize")
_NO_STREAM = 0xFFFFFFFF
# Copies to the host, and memory of the host that is not pinned.
_DTOH_KIND, _PAGEABLE = 2, 0
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


def read_calls(report: Report) -> tuple[pa.Table | None, pa.Table | None]:
    """Read the CUDA API calls as `schema.LAUNCHES` and as `schema.HOST_CALLS`; None as `read_launches` tells."""
    columns = ("start", "globalTid", "correlationId")
    if not (report.has(versions.RUNTIME, *columns) and report.has_rows(versions.RUNTIME)):
        return None, None
    end = {"until": 'coalesce("end", "start")'} if report.has(versions.RUNTIME, "end") else {}
    found = report.select(versions.RUNTIME, dict.fromkeys(columns, "int"), derived=end).drop_null()
    thread = found["globalTid"].to_numpy()
    times = {"process_id": process_of(thread), "start_ns": found["start"]}
    launches = schema.LAUNCHES.table(times | {"correlation_id": found["correlationId"]})
    ends = {"thread_id": thread, "end_ns": found["until" if end else "start"]}
    return launches, schema.HOST_CALLS.table(times | ends)


def read_host_waits(report: Report, strings: Strings) -> pa.Table:
    """Read the calls that returned only when something had ended on a device, as `schema.HOST_WAITS`.

    Those that synchronise a device or a stream (whose event another waits for is not told), and copies to the host
    that block: into pageable memory, or by a call without Async in its name.
    """
    columns = ("start", "end", "globalTid", "correlationId", "nameId")
    if not (report.has(versions.RUNTIME, *columns) and report.has_rows(versions.RUNTIME)):
        return schema.HOST_WAITS.empty()
    tables = [_stream_waits(report, strings, columns), _copy_waits(report, strings, columns)]
    return pa.concat_tables(tables)


def _stream_waits(report: Report, strings: Strings, columns: tuple[str, ...]) -> pa.Table:
    ids = strings.ids_beginning(*_OF_DEVICE, *_OF_STREAM)
    if not ids.size:
        return schema.HOST_WAITS.empty()
    where = f'nameId IN ({", ".join(map(str, ids.tolist()))}) AND "end" > "start"'
    calls = report.select(versions.RUNTIME, dict.fromkeys(columns, "int"), where=where).drop_null()
    thread = calls["globalTid"].to_numpy()
    whole = pc.is_in(calls["nameId"], value_set=pa.array(strings.ids_beginning(*_OF_DEVICE)))
    device, stream = _waited_for(report, process_of(thread), calls["correlationId"].to_numpy())
    return schema.HOST_WAITS.table(
        {
            "process_id": process_of(thread),
            "thread_id": thread,
            "start_ns": calls["start"],
            "end_ns": calls["end"],
            "device_id": device,
            "stream_id": stream,
            "is_whole": whole,
            "copy_end_ns": pa.nulls(calls.num_rows, pa.int64()),
        }
    )


def _waited_for(report: Report, process: Int64, correlation: Int64) -> tuple[pa.Array, pa.Array]:
    """Return device and stream that calls waited for; null where the report does not say."""
    names = ("correlationId", "globalPid", "deviceId", "streamId")
    if not report.has(versions.SYNCHRONIZATION, *names):
        unknown = pa.nulls(correlation.size, pa.int64())
        return unknown, unknown
    bounds = (int(correlation.min()), int(correlation.max())) if correlation.size else (1, 0)
    where = f'"correlationId" BETWEEN {bounds[0]} AND {bounds[1]}'
    found = report.select(versions.SYNCHRONIZATION, dict.fromkeys(names, "int"), where=where).drop_null()  # fmt: skip
    rows = zip(*(found[name].to_pylist() for name in names), strict=True)
    by_call = {(pid, number): (device, stream) for number, pid, device, stream in rows}
    pairs = [
        by_call.get(key, (None, None))
        for key in zip(process.tolist(), correlation.tolist(), strict=True)
    ]
    streams = [None if stream == _NO_STREAM else stream for _, stream in pairs]
    return pa.array([device for device, _ in pairs], pa.int64()), pa.array(streams, pa.int64())


def _copy_waits(report: Report, strings: Strings, columns: tuple[str, ...]) -> pa.Table:
    names = ("correlationId", "globalPid", "deviceId", "end", "dstKind")
    if not report.has(versions.MEMCPY, *names[:-1], "copyKind"):
        return schema.HOST_WAITS.empty()
    to_host = f"copyKind = {_DTOH_KIND}"
    copies = report.select(versions.MEMCPY, dict.fromkeys(names, "int"), where=to_host)
    copies = copies.filter(pc.is_valid(copies["correlationId"]))
    if not copies.num_rows:
        return schema.HOST_WAITS.empty()
    physical = report.catalog.physical(versions.MEMCPY)
    where = f'"correlationId" IN (SELECT "correlationId" FROM {physical} WHERE {to_host}) AND "end" > "start"'  # noqa: S608 - a name of ours
    calls = report.select(versions.RUNTIME, dict.fromkeys(columns, "int"), where=where).drop_null()
    ids = strings.ids_beginning("cudaMemcpy", "cuMemcpy")
    waiting = [name for name, text in zip(ids.tolist(), strings.lookup(ids).to_pylist(), strict=True) if _ASYNC not in (text or "")]  # fmt: skip
    calls = calls.append_column("is_sync", pc.is_in(calls["nameId"], value_set=pa.array(waiting, pa.int64())))  # fmt: skip
    calls = calls.append_column("globalPid", pa.array(process_of(calls["globalTid"].to_numpy())))
    copies = copies.rename_columns([f"copy_{name}" if name == "end" else name for name in names])
    found = calls.join(copies, ["correlationId", "globalPid"], join_type="inner").combine_chunks()
    is_pageable = pc.fill_null(pc.equal(found["dstKind"], _PAGEABLE), fill_value=False)
    found = found.filter(pc.and_(pc.or_(found["is_sync"], is_pageable), pc.is_valid(found["copy_end"])))  # fmt: skip
    return schema.HOST_WAITS.table(
        {
            "process_id": found["globalPid"],
            "thread_id": found["globalTid"],
            "start_ns": found["start"],
            "end_ns": found["end"],
            "device_id": found["deviceId"],
            "stream_id": pa.nulls(found.num_rows, pa.int64()),
            "is_whole": pa.array(np.zeros(found.num_rows, np.bool_)),
            "copy_end_ns": found["copy_end"],
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
