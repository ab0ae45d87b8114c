"""CUDA API calls of a report, which launch operations or block the CPU, and its string table."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct, field
from msgspec.structs import replace
from numpy.typing import NDArray

from nsyspipe.analysis.attribution import are_among, filled
from nsyspipe.analysis.intervals import EMPTY
from nsyspipe.model import canonical
from nsyspipe.model.table import Flags, Int64
from nsyspipe.reader import report as versions
from nsyspipe.reader.facts import ReportFacts
from nsyspipe.reader.host_copies import (
    DTOH_KIND,
    PAGEABLE,
    BlockingCopies,
    find_blocking_copies,
    read_host_copies,
)
from nsyspipe.reader.report import TIME_LIMIT, Report, Zones, process_of, processes_of

# What is read of a call; without the first two there are none, without the third it launched
# nothing.
_CALL = ("start", "globalTid", "correlationId", "end", "nameId")

# Beginnings of the calls that synchronise, or allocate, free or copy memory; what has Async in its
# name does not wait.
_OF_DEVICE = ("cudaDeviceSynchronize", "cudaThreadSynchronize", "cuCtxSynchronize")
_OF_STREAM = ("cudaStreamSynchronize", "cuStreamSynchronize")
_SYNCHRONISING = (*_OF_DEVICE, *_OF_STREAM, "cudaEventSynchronize", "cuEventSynchronize")
_MEMORY = (
    "cudaMalloc",
    "cudaFree",
    "cudaHostAlloc",
    "cudaHostRegister",
    "cudaHostUnregister",
    "cudaMemcpy",
    "cudaMemset",
    "cuMemAlloc",
    "cuMemFree",
    "cuMemHostAlloc",
    "cuMemHostRegister",
    "cuMemCreate",
    "cuMemMap",
    "cuMemUnmap",
    "cuMemRelease",
    "cuMemSetAccess",
    "cuMemcpy",
    "cuMemset",
)
_ASYNC = "Async"
# Every export looked at has the table when there is something in it; this is the oldest of them
# that says its version.
_OLDEST_WITH_OVERHEAD = (2, 9)
_NO_STREAM = 0xFFFFFFFF
_API_VERSION = re.compile(
    r"(?:_v[0-9]+|_ptsz|_ptds)+$"
)  # the runtime's end in _ptsz_v7000, the driver's in _v2_ptsz


def read_launches(
    report: Report, ids: tuple[int, int] | None = None, zones: Zones | None = None
) -> pa.Table | None:
    """Read the CUDA API calls as `canonical.LAUNCHES`, of some correlation ids or all.

    None if there are no calls. Operations are always launched, so calls were not recorded then.
    """
    if not (report.has(versions.RUNTIME, *_CALL[:3]) and report.has_rows(versions.RUNTIME)):
        return None
    where = None
    if ids is not None:
        in_zones = f" AND {zones.condition(*ids)}" if zones else ""
        where = f'"correlationId" + 0 BETWEEN {ids[0]} AND {ids[1]}{in_zones}'
    calls = _possible(
        report.select(versions.RUNTIME, dict.fromkeys(_CALL[:3], "int"), where=where).drop_null()
    )
    columns = {"process_id": process_of(calls["globalTid"].to_numpy()), "start_ns": calls["start"]}
    return canonical.LAUNCHES.table(columns | {"correlation_id": calls["correlationId"]})


class Calls(Struct, frozen=True):
    """The CUDA API calls of a report."""

    all: pa.Table | None  # `canonical.HOST_CALLS`; None as `read_launches` tells
    blocking: (
        pa.Table | None
    )  # `canonical.BLOCKING_CALLS`; None also when calls have no end or name
    # `canonical.HOST_WAITS`: calls that synchronise a device or a stream (whose event another waits
    # for is not told), and copies to the host that block: into pageable memory, or by a call
    # without Async in its name
    waits: pa.Table
    blocking_copies: pa.Table | None = (
        None  # `canonical.BLOCKING_COPIES`; None where copies or their calls are not told
    )
    zones: Mapping[str, Zones] = field(default_factory=dict)  # of the correlation ids


def read_calls(report: Report, strings: Strings) -> Calls:
    """Read the CUDA API calls, all kinds in one pass."""
    nothing = Calls(None, None, canonical.HOST_WAITS.empty())
    if not (report.has(versions.RUNTIME, *_CALL[:2]) and report.has_rows(versions.RUNTIME)):
        return nothing
    all_calls = _possible(report.select(versions.RUNTIME, dict.fromkeys(_CALL, "int")))
    calls = None
    zones = {}
    if report.has(versions.RUNTIME, "correlationId"):
        zones = report.zones(versions.RUNTIME, *[all_calls["correlationId"]] * 2)
        known = _known(all_calls, *_CALL[:3])
        process = processes_of(known["globalTid"])
        end = pc.coalesce(known["end"], known["start"])
        columns = {
            "process_id": process,
            "thread_id": known["globalTid"],
            "start_ns": known["start"],
            "end_ns": end,
        }
        calls = canonical.HOST_CALLS.table(columns | {"correlation_id": known["correlationId"]})
    if not report.has(versions.RUNTIME, "end", "nameId"):
        return replace(nothing, all=calls, zones=zones)
    host_copies = read_host_copies(report)
    waits = [
        _stream_waits(report, strings, all_calls),
        _copy_waits(strings, all_calls, host_copies),
    ]
    blocking = _blocking_copies(strings, all_calls, host_copies)
    blocking_copies = None if blocking is None else blocking.table
    return Calls(
        calls,
        _blocking_calls(strings, all_calls, blocking),
        pa.concat_tables(waits),
        blocking_copies,
        zones,
    )


def _possible(calls: pa.Table) -> pa.Table:
    """Drop calls with impossible times; their operations count as operations without a launch."""
    for name in {"start", "end"} & {*calls.column_names}:
        times = calls[name]
        bounds = pc.min_max(times).as_py()
        if (
            bounds["min"] is not None
            and not -TIME_LIMIT < bounds["min"] <= bounds["max"] < TIME_LIMIT
        ):
            is_possible = pc.and_(pc.greater(times, -TIME_LIMIT), pc.less(times, TIME_LIMIT))
            calls = calls.filter(pc.fill_null(is_possible, fill_value=True))
    return calls


def _known(calls: pa.Table, *columns: str) -> pa.Table:
    are_known = [pc.is_valid(calls[name]) for name in columns if calls[name].null_count]
    return calls.filter(functools.reduce(pc.and_, are_known)) if are_known else calls


def _host_waits(
    calls: pa.Table, device: object, stream: object, is_whole: object, copy_end: object
) -> pa.Table:
    thread = calls["globalTid"].to_numpy()
    times = {
        "process_id": process_of(thread),
        "thread_id": thread,
        "start_ns": calls["start"],
        "end_ns": calls["end"],
    }
    waited_for = {
        "device_id": device,
        "stream_id": stream,
        "is_whole": is_whole,
        "copy_end_ns": copy_end,
    }
    return canonical.HOST_WAITS.table(times | waited_for)


def _stream_waits(report: Report, strings: Strings, found: pa.Table) -> pa.Table:
    calls = _timed(found, "nameId", strings.ids_beginning(*_OF_DEVICE, *_OF_STREAM)).drop_null()
    if not calls.num_rows:
        return canonical.HOST_WAITS.empty()
    whole = pc.is_in(calls["nameId"], value_set=pa.array(strings.ids_beginning(*_OF_DEVICE)))
    unknown = device = stream = pa.nulls(calls.num_rows, pa.int64())
    names = ("correlationId", "globalPid", "deviceId", "streamId")
    if report.has(versions.SYNCHRONIZATION, *names):
        first, last = (one.as_py() for one in pc.min_max(calls["correlationId"]).values())
        where = f'"correlationId" + 0 BETWEEN {first} AND {last}'
        told = report.select(
            versions.SYNCHRONIZATION, dict.fromkeys(names, "int"), where=where
        ).drop_null()
        told = told.take(_rows_of(calls, told))
        device = told["deviceId"]
        stream = pc.if_else(pc.equal(told["streamId"], _NO_STREAM), None, told["streamId"])
    return _host_waits(calls, device, stream, whole, unknown)


def _blocking_copies(
    strings: Strings, calls: pa.Table, host_copies: pa.Table | None
) -> BlockingCopies | None:
    if host_copies is None:
        return None
    names = strings.pairs(strings.ids_beginning("cudaMemcpy", "cuMemcpy"))
    async_names = [number for number, name in names if _ASYNC in (name or "")]
    waiting_names = strings.ids_beginning(*_OF_DEVICE, *_OF_STREAM)
    return find_blocking_copies(host_copies, calls, waiting_names, np.array(async_names, np.int64))


def _copy_waits(strings: Strings, found: pa.Table, host_copies: pa.Table | None) -> pa.Table:
    if host_copies is None:
        return canonical.HOST_WAITS.empty()
    copies = host_copies.filter(pc.equal(host_copies["copyKind"], DTOH_KIND))
    calls = _timed(found, "correlationId", copies["correlationId"].to_numpy()).drop_null()
    rows = _rows_of(calls, copies)
    ids = strings.ids_beginning("cudaMemcpy", "cuMemcpy")
    waiting = [name for name, text in strings.pairs(ids) if _ASYNC not in (text or "")]
    is_sync = pc.is_in(calls["nameId"], value_set=pa.array(waiting, pa.int64()))
    is_pageable = pc.fill_null(pc.equal(copies["dstKind"].take(rows), PAGEABLE), fill_value=False)
    is_blocking = pc.and_(pc.is_valid(rows), pc.or_(is_sync, is_pageable))
    calls = calls.filter(is_blocking)
    copies = copies.take(rows.filter(is_blocking.combine_chunks()))
    none = pa.nulls(calls.num_rows, pa.int64())
    never = np.zeros(calls.num_rows, np.bool_)
    return _host_waits(calls, copies["deviceId"], none, never, copies["end"])


def _rows_of(calls: pa.Table, of: pa.Table) -> pa.Array:
    """Return the last row with the process and correlation id of each call; null for none."""
    process = process_of(calls["globalTid"].to_numpy())
    correlation = calls["correlationId"].to_numpy()
    columns = ((process, "globalPid"), (correlation, "correlationId"))
    codes = [
        np.unique(np.concatenate((own, of[name].to_numpy())), return_inverse=True)[1]
        for own, name in columns
    ]
    key = codes[0] + codes[1] * (codes[0].max(initial=0) + 1)
    wanted = key[: len(calls)]
    told = key[len(calls) :]
    if not told.size:
        return pa.nulls(len(calls), pa.int64())
    order = np.argsort(told, kind="stable")
    at = np.searchsorted(told[order], wanted, side="right") - 1
    rows = order[np.maximum(at, 0)]
    return pa.array(rows, mask=(at < 0) | (told[rows] != wanted))


def _blocking_calls(
    strings: Strings, all_calls: pa.Table, blocking: BlockingCopies | None
) -> pa.Table:
    of_names = strings.pairs(strings.ids_beginning(*_SYNCHRONISING, *_MEMORY))
    names = {number: name for number, name in of_names if name}
    waiting_names = np.array(
        [number for number, name in names.items() if _ASYNC not in name], np.int64
    )
    rows = np.flatnonzero(np.isin(filled(all_calls["nameId"]), waiting_names))
    rows = rows if blocking is None else np.union1d(rows, blocking.pageable_calls)
    is_of_copy = np.isin(rows, [] if blocking is None else blocking.calls)
    calls = all_calls.take(pa.array(rows)).append_column("is_of_copy", pa.array(is_of_copy))
    numbers = pa.array(names.keys(), pa.int64())
    calls = _known(_timed(calls, "nameId", numbers.to_numpy()), "globalTid")
    texts = pa.array([_API_VERSION.sub("", name) for name in names.values()], pa.string())
    columns = {
        "process_id": process_of(calls["globalTid"].to_numpy()),
        "start_ns": calls["start"],
        "end_ns": calls["end"],
        "call": texts.take(pc.index_in(calls["nameId"], value_set=numbers).combine_chunks()),
        "is_of_copy": calls["is_of_copy"],
    }
    found_calls = canonical.BLOCKING_CALLS.table(columns)
    return found_calls.take(
        np.lexsort((found_calls["end_ns"].to_numpy(), found_calls["start_ns"].to_numpy()))
    )


def _timed(table: pa.Table, column: str, values: Int64) -> pa.Table:
    is_one = pa.array(are_among(filled(table[column]), values))
    return table.filter(pc.and_(is_one, pc.greater(table["end"], table["start"])))


class Overhead(Struct, frozen=True):
    """Start, end and process (0 if it is not recorded) of the work of the profiler itself."""

    starts: Int64
    ends: Int64
    processes: Int64

    def of_process(self, process_id: int) -> tuple[Int64, Int64]:
        """Return starts and ends of what is a process's, or of no process that is known."""
        own = (self.processes == process_id) | (self.processes == 0)
        return self.starts[own], self.ends[own]


def read_overhead(report: Report, facts: ReportFacts) -> Overhead | None:
    """Read the profiler's own work in all processes; None when the export does not say."""
    if not report.has(versions.OVERHEAD, "start", "end"):
        is_lazy = not report.has(versions.OVERHEAD) and facts.leaves_out_empty(versions.OVERHEAD)
        knows_it = versions.version_numbers(facts.schema_version) >= _OLDEST_WITH_OVERHEAD
        return Overhead(EMPTY.starts, EMPTY.ends, EMPTY.starts) if is_lazy and knows_it else None
    names = ("start", "end", *(["globalTid"] if report.has(versions.OVERHEAD, "globalTid") else []))
    rows = report.select(versions.OVERHEAD, dict.fromkeys(names, "int"))
    rows = _possible(rows.filter(pc.and_(pc.is_valid(rows["start"]), pc.is_valid(rows["end"]))))
    starts = rows["start"].to_numpy()
    ends = rows["end"].to_numpy()
    threads = (
        pc.fill_null(rows["globalTid"], 0).to_numpy()
        if "globalTid" in names
        else np.zeros_like(starts)
    )
    has_length = ends > starts
    return Overhead(starts[has_length], ends[has_length], process_of(threads[has_length]))


class Strings:
    """The string table of a report as columns, for lookups without a Python object per event."""

    def __init__(self, ids: NDArray[np.int64], values: pa.StringArray) -> None:
        self._ids = ids
        self._values = values

    def lookup(self, ids: NDArray[np.int64]) -> pa.StringArray:
        """Return the text of each id; an unknown id is null."""
        return self._values.take(pc.index_in(pa.array(ids), value_set=pa.array(self._ids)))

    def pairs(self, ids: NDArray[np.int64]) -> Iterator[tuple[int, str | None]]:
        """Return each id with its text."""
        return zip(ids.tolist(), self.lookup(ids).to_pylist(), strict=True)

    def ids_beginning(self, *prefixes: str, ignore_case: bool = False) -> NDArray[np.int64]:
        """Return the ids of all texts that begin with one of some prefixes."""
        pattern = f"^({'|'.join(map(re.escape, prefixes))})"
        matches = pc.match_substring_regex(self._values, pattern, ignore_case=ignore_case)
        begins: Flags = matches.to_numpy(zero_copy_only=False)
        return self._ids[begins]


def read_strings(report: Report) -> Strings:
    """Read the report's string table; a report without one has no names."""
    if not report.has(versions.STRINGS, "id", "value"):
        return Strings(np.empty(0, np.int64), pa.array([], pa.string()))
    rows = report.select(versions.STRINGS, {"id": "int", "value": "text"})
    return Strings(filled(rows["id"], 0), rows["value"].combine_chunks())
