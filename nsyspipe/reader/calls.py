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

# The columns of a call. Without the first two, there are no calls. Without the third, they launch
# nothing.
_CALL = ("start", "globalTid", "correlationId", "end", "nameId")

# How the names of calls begin that synchronise, or that allocate, free or copy memory. Calls with
# Async in their names do not wait.
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
# In every export that was looked at, the table exists if it has rows. This is the oldest of them
# that has a version.
_OLDEST_WITH_OVERHEAD = (2, 9)
_NO_STREAM = 0xFFFFFFFF
# Calls of the runtime end with _ptsz_v7000, calls of the driver with _v2_ptsz.
_API_VERSION = re.compile(r"(?:_v[0-9]+|_ptsz|_ptds)+$")


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
    rows = report.select(versions.RUNTIME, dict.fromkeys(_CALL[:3], "int"), where=where)
    calls = _possible(rows.drop_null())
    columns = {
        "process_id": process_of(calls["globalTid"].to_numpy()),
        "start_ns": calls["start"],
        "correlation_id": calls["correlationId"],
    }
    return canonical.LAUNCHES.table(columns)


class Calls(Struct, frozen=True):
    """The CUDA API calls of a report."""

    # `canonical.HOST_CALLS`, None under the conditions of `read_launches`.
    all: pa.Table | None
    # `canonical.BLOCKING_CALLS`, None also if calls have no end or name.
    blocking: pa.Table | None
    # `canonical.HOST_WAITS`: calls that synchronise a device or a stream, and blocking copies to
    # the host. Such a copy goes into pageable memory, or its call has no Async in its name. Waits
    # for an event are left out, because the stream of the event is not known.
    waits: pa.Table
    # `canonical.BLOCKING_COPIES`, None if copies or their calls were not recorded.
    blocking_copies: pa.Table | None = None
    # Of the correlation IDs.
    zones: Mapping[str, Zones] = field(default_factory=dict)


def read_calls(report: Report, strings: Strings) -> Calls:
    """Read the CUDA API calls, all kinds in one pass."""
    nothing = Calls(None, None, canonical.HOST_WAITS.empty())
    if not (report.has(versions.RUNTIME, *_CALL[:2]) and report.has_rows(versions.RUNTIME)):
        return nothing
    all_calls = _possible(report.select(versions.RUNTIME, dict.fromkeys(_CALL, "int")))
    calls = None
    zones = {}
    if report.has(versions.RUNTIME, "correlationId"):
        correlation_ids = all_calls["correlationId"]
        zones = report.zones(versions.RUNTIME, correlation_ids, correlation_ids)
        known = _known(all_calls, *_CALL[:3])
        columns = {
            "process_id": processes_of(known["globalTid"]),
            "thread_id": known["globalTid"],
            "start_ns": known["start"],
            "end_ns": pc.coalesce(known["end"], known["start"]),
            "correlation_id": known["correlationId"],
        }
        calls = canonical.HOST_CALLS.table(columns)
    if not report.has(versions.RUNTIME, "end", "nameId"):
        return replace(nothing, all=calls, zones=zones)
    host_copies = read_host_copies(report)
    stream_waits = _stream_waits(report, strings, all_calls)
    copy_waits = _copy_waits(strings, all_calls, host_copies)
    blocking_copies = _blocking_copies(strings, all_calls, host_copies)
    return Calls(
        all=calls,
        blocking=_blocking_calls(strings, all_calls, blocking_copies),
        waits=pa.concat_tables([stream_waits, copy_waits]),
        blocking_copies=None if blocking_copies is None else blocking_copies.table,
        zones=zones,
    )


def _possible(calls: pa.Table) -> pa.Table:
    """Drop calls with impossible times. Their operations count as operations without a launch."""
    for name in {"start", "end"} & {*calls.column_names}:
        times = calls[name]
        bounds = pc.min_max(times).as_py()
        if bounds["min"] is None:
            continue
        # Most reports have none of them, and a filter would copy all calls.
        if not -TIME_LIMIT < bounds["min"] <= bounds["max"] < TIME_LIMIT:
            is_possible = pc.and_(pc.greater(times, -TIME_LIMIT), pc.less(times, TIME_LIMIT))
            calls = calls.filter(pc.fill_null(is_possible, fill_value=True))
    return calls


def _known(calls: pa.Table, *columns: str) -> pa.Table:
    """Drop calls with a null in one of some columns."""
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


def _stream_waits(report: Report, strings: Strings, all_calls: pa.Table) -> pa.Table:
    """Return the calls that synchronise a device or a stream, as `canonical.HOST_WAITS`."""
    waiting_names = strings.ids_beginning(*_OF_DEVICE, *_OF_STREAM)
    calls = _timed(all_calls, "nameId", waiting_names).drop_null()
    if not calls.num_rows:
        return canonical.HOST_WAITS.empty()
    device_names = pa.array(strings.ids_beginning(*_OF_DEVICE))
    is_of_device = pc.is_in(calls["nameId"], value_set=device_names)
    unknown = pa.nulls(calls.num_rows, pa.int64())
    device = unknown
    stream = unknown
    names = ("correlationId", "globalPid", "deviceId", "streamId")
    if report.has(versions.SYNCHRONIZATION, *names):
        bounds = pc.min_max(calls["correlationId"]).as_py()
        where = f'"correlationId" + 0 BETWEEN {bounds["min"]} AND {bounds["max"]}'
        columns = dict.fromkeys(names, "int")
        records = report.select(versions.SYNCHRONIZATION, columns, where=where).drop_null()
        records = records.take(_rows_of(calls, records))
        device = records["deviceId"]
        is_no_stream = pc.equal(records["streamId"], _NO_STREAM)
        stream = pc.if_else(is_no_stream, None, records["streamId"])
    return _host_waits(calls, device, stream, is_of_device, unknown)


def _blocking_copies(
    strings: Strings, calls: pa.Table, host_copies: pa.Table | None
) -> BlockingCopies | None:
    if host_copies is None:
        return None
    names = strings.pairs(strings.ids_beginning("cudaMemcpy", "cuMemcpy"))
    async_names = [number for number, name in names if _ASYNC in (name or "")]
    waiting_names = strings.ids_beginning(*_OF_DEVICE, *_OF_STREAM)
    return find_blocking_copies(host_copies, calls, waiting_names, np.array(async_names, np.int64))


def _copy_waits(strings: Strings, all_calls: pa.Table, host_copies: pa.Table | None) -> pa.Table:
    """Return the calls of blocking copies to the host, as `canonical.HOST_WAITS`."""
    if host_copies is None:
        return canonical.HOST_WAITS.empty()
    copies = host_copies.filter(pc.equal(host_copies["copyKind"], DTOH_KIND))
    calls = _timed(all_calls, "correlationId", copies["correlationId"].to_numpy()).drop_null()
    rows = _rows_of(calls, copies)
    copying_names = strings.pairs(strings.ids_beginning("cudaMemcpy", "cuMemcpy"))
    sync_names = [name for name, text in copying_names if _ASYNC not in (text or "")]
    is_sync = pc.is_in(calls["nameId"], value_set=pa.array(sync_names, pa.int64()))
    is_pageable = pc.equal(copies["dstKind"].take(rows), PAGEABLE)
    is_pageable = pc.fill_null(is_pageable, fill_value=False)
    is_blocking = pc.and_(pc.is_valid(rows), pc.or_(is_sync, is_pageable))
    calls = calls.filter(is_blocking)
    copies = copies.take(rows.filter(is_blocking.combine_chunks()))
    unknown = pa.nulls(calls.num_rows, pa.int64())
    is_whole = np.zeros(calls.num_rows, np.bool_)
    return _host_waits(calls, copies["deviceId"], unknown, is_whole, copies["end"])


def _rows_of(calls: pa.Table, records: pa.Table) -> pa.Array:
    """Return the last record with the process and correlation ID of each call, null for none."""
    process = process_of(calls["globalTid"].to_numpy())
    process_code = _joint_codes(process, records["globalPid"].to_numpy())
    correlation_id = calls["correlationId"].to_numpy()
    correlation_code = _joint_codes(correlation_id, records["correlationId"].to_numpy())
    key = process_code + correlation_code * (process_code.max(initial=0) + 1)
    key_of_call = key[: len(calls)]
    key_of_record = key[len(calls) :]
    if not key_of_record.size:
        return pa.nulls(len(calls), pa.int64())
    order = np.argsort(key_of_record, kind="stable")
    place = np.searchsorted(key_of_record[order], key_of_call, side="right") - 1
    rows = order[np.maximum(place, 0)]
    return pa.array(rows, mask=(place < 0) | (key_of_record[rows] != key_of_call))


def _joint_codes(first: Int64, second: Int64) -> Int64:
    """Return a small number for each value of two arrays, the same for equal values."""
    codes: Int64 = np.unique(np.concatenate((first, second)), return_inverse=True)[1]
    return codes


def _blocking_calls(
    strings: Strings, all_calls: pa.Table, blocking_copies: BlockingCopies | None
) -> pa.Table:
    """Return `canonical.BLOCKING_CALLS` in order of start and end."""
    candidates = strings.pairs(strings.ids_beginning(*_SYNCHRONISING, *_MEMORY))
    names = {number: name for number, name in candidates if name}
    sync_names = [number for number, name in names.items() if _ASYNC not in name]
    is_sync = np.isin(filled(all_calls["nameId"]), np.array(sync_names, np.int64))
    rows = np.flatnonzero(is_sync)
    is_of_copy = np.zeros(rows.size, np.bool_)
    if blocking_copies is not None:
        rows = np.union1d(rows, blocking_copies.pageable_calls)
        is_of_copy = np.isin(rows, blocking_copies.calls)
    calls = all_calls.take(pa.array(rows)).append_column("is_of_copy", pa.array(is_of_copy))
    numbers = pa.array(names.keys(), pa.int64())
    calls = _known(_timed(calls, "nameId", numbers.to_numpy()), "globalTid")
    texts = pa.array([_API_VERSION.sub("", name) for name in names.values()], pa.string())
    text_of_call = pc.index_in(calls["nameId"], value_set=numbers).combine_chunks()
    columns = {
        "process_id": process_of(calls["globalTid"].to_numpy()),
        "start_ns": calls["start"],
        "end_ns": calls["end"],
        "call": texts.take(text_of_call),
        "is_of_copy": calls["is_of_copy"],
    }
    table = canonical.BLOCKING_CALLS.table(columns)
    order = np.lexsort((table["end_ns"].to_numpy(), table["start_ns"].to_numpy()))
    return table.take(order)


def _timed(table: pa.Table, column: str, values: Int64) -> pa.Table:
    """Return the calls that take time and have one of some values in a column."""
    has_value = pa.array(are_among(filled(table[column]), values))
    return table.filter(pc.and_(has_value, pc.greater(table["end"], table["start"])))


class Overhead(Struct, frozen=True):
    """Start, end and process (0 if it is not recorded) of the work of the profiler itself."""

    starts: Int64
    ends: Int64
    processes: Int64

    def of_process(self, process_id: int) -> tuple[Int64, Int64]:
        """Return the starts and ends of the work in a process, or in an unknown process."""
        is_of_process = (self.processes == process_id) | (self.processes == 0)
        return self.starts[is_of_process], self.ends[is_of_process]


def read_overhead(report: Report, facts: ReportFacts) -> Overhead | None:
    """Read the work of the profiler itself in all processes, None if it was not recorded."""
    if not report.has(versions.OVERHEAD, "start", "end"):
        is_lazy = not report.has(versions.OVERHEAD) and facts.leaves_out_empty(versions.OVERHEAD)
        version = versions.version_numbers(facts.schema_version)
        if is_lazy and version >= _OLDEST_WITH_OVERHEAD:
            return Overhead(EMPTY.starts, EMPTY.ends, EMPTY.starts)
        return None
    names = ["start", "end"]
    has_threads = report.has(versions.OVERHEAD, "globalTid")
    if has_threads:
        names.append("globalTid")
    rows = report.select(versions.OVERHEAD, dict.fromkeys(names, "int"))
    are_times_known = pc.and_(pc.is_valid(rows["start"]), pc.is_valid(rows["end"]))
    rows = _possible(rows.filter(are_times_known))
    starts = rows["start"].to_numpy()
    ends = rows["end"].to_numpy()
    threads = np.zeros_like(starts)
    if has_threads:
        threads = pc.fill_null(rows["globalTid"], 0).to_numpy()
    has_length = ends > starts
    return Overhead(starts[has_length], ends[has_length], process_of(threads[has_length]))


class Strings:
    """The string table of a report as columns, for lookups without a Python object per event."""

    def __init__(self, ids: NDArray[np.int64], values: pa.StringArray) -> None:
        self._ids = ids
        self._values = values

    def lookup(self, ids: NDArray[np.int64]) -> pa.StringArray:
        """Return the text of each ID, null for an unknown ID."""
        places = pc.index_in(pa.array(ids), value_set=pa.array(self._ids))
        return self._values.take(places)

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
    """Read the string table of a report. Without one, there are no names."""
    if not report.has(versions.STRINGS, "id", "value"):
        return Strings(np.empty(0, np.int64), pa.array([], pa.string()))
    rows = report.select(versions.STRINGS, {"id": "int", "value": "text"})
    return Strings(filled(rows["id"], 0), rows["value"].combine_chunks())
