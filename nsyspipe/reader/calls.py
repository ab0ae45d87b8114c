"""CUDA API calls of a report, which launch operations or block the CPU, and its string table."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct, field
from msgspec.structs import replace
from numpy.typing import NDArray

from nsyspipe.analysis.attribution import are_among, filled
from nsyspipe.model import canonical
from nsyspipe.model.call_names import MANAGING_MEMORY, are_named, without_version
from nsyspipe.model.table import Flags, Int64
from nsyspipe.model.typed_tables import (
    BlockingCopiesOfReportTable,
    HostCallsOfReportTable,
)
from nsyspipe.reader.facts import ReportFacts
from nsyspipe.reader.host_copies import (
    DTOH_KIND,
    PAGEABLE,
    BlockingCopies,
    find_blocking_copies,
    joint_codes,
    paired_codes,
    read_host_copies,
)
from nsyspipe.reader.report import (
    OVERHEAD,
    RUNTIME,
    STRINGS,
    SYNCHRONIZATION,
    TIME_LIMIT,
    Report,
    Zones,
    bounds_of,
    process_of,
    processes_of,
    version_numbers,
)

# The columns of a call. Without the first two, there are no calls. Without the third, they launch
# nothing.
_CALL = ("start", "globalTid", "correlationId", "end", "nameId")
_LAUNCH = _CALL[:3]

# How the names of calls begin that synchronise, or that allocate, free or copy memory. Calls with
# Async in their names do not wait.
_OF_DEVICE = ("cudaDeviceSynchronize", "cudaThreadSynchronize", "cuCtxSynchronize")
_OF_STREAM = ("cudaStreamSynchronize", "cuStreamSynchronize")
_WAITING = (*_OF_DEVICE, *_OF_STREAM)
_SYNCHRONISING = (*_WAITING, "cudaEventSynchronize", "cuEventSynchronize")
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
_COPYING = ("cudaMemcpy", "cuMemcpy")
_ASYNC = "Async"
# In every export that was looked at, the table exists if it has rows. This is the oldest of them
# that has a version.
_OLDEST_WITH_OVERHEAD = (2, 9)
_NO_STREAM = 0xFFFFFFFF


def read_launches(
    report: Report, ids: tuple[int, int] | None = None, zones: Zones | None = None
) -> pa.Table | None:
    """Read the CUDA API calls as `canonical.LAUNCHES`.

    `ids` is the span (first, last) of the correlation ids that are read, or None for all calls.
    `zones` only make this faster. The result is None if the report has no calls at all. Then calls
    were not recorded, because a call launches each operation.
    """
    if not _has_calls(report, *_LAUNCH):
        return None
    where = None
    if ids is not None:
        where = _between(*ids)
        if zones:
            where += f" AND {zones.condition(*ids)}"
    columns_of_launches = dict.fromkeys(_LAUNCH, "int")
    rows = report.select(RUNTIME, columns_of_launches, where=where)
    calls = _possible(rows.drop_null())
    threads = calls["globalTid"].to_numpy()
    columns = {
        "process_id": process_of(threads),
        "start_ns": calls["start"],
        "correlation_id": calls["correlationId"],
    }
    return canonical.LAUNCHES.table(columns)


def _has_calls(report: Report, *columns: str) -> bool:
    """Tell whether a report has CUDA API calls with some columns."""
    has_columns = report.has(RUNTIME, *columns)
    return has_columns and report.has_rows(RUNTIME)


def _between(first_id: int, last_id: int) -> str:
    """Return the SQL condition for correlation IDs from the first to the last."""
    # A sum is a number, but a column of type TEXT would be compared letter by letter.
    return f'"correlationId" + 0 BETWEEN {first_id} AND {last_id}'


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
    blocking_copies: BlockingCopiesOfReportTable | None = None
    # Of the correlation IDs.
    zones: Mapping[str, Zones] = field(default_factory=dict)


def read_calls(report: Report, strings: Strings) -> Calls:
    """Read the CUDA API calls, all kinds in one pass.

    Kinds of calls whose columns are missing stay None or empty.
    """
    calls = Calls(all=None, blocking=None, waits=canonical.HOST_WAITS.empty())
    if not _has_calls(report, "start", "globalTid"):
        return calls
    columns = dict.fromkeys(_CALL, "int")
    all_calls = _possible(report.select(RUNTIME, columns))
    if report.has(RUNTIME, "correlationId"):
        correlation_ids = all_calls["correlationId"]
        zones = report.zones(RUNTIME, correlation_ids, correlation_ids)
        calls = replace(calls, all=_host_calls(all_calls), zones=zones)
    if not report.has(RUNTIME, "end", "nameId"):
        return calls
    host_copies = read_host_copies(report)
    stream_waits = _stream_waits(report, strings, all_calls)
    copy_waits = _copy_waits(strings, all_calls, host_copies)
    waits = pa.concat_tables([stream_waits, copy_waits])
    blocking_copies = _blocking_copies(strings, all_calls, host_copies)
    blocking_calls = _blocking_calls(strings, all_calls, blocking_copies)
    calls = replace(calls, blocking=blocking_calls, waits=waits)
    if blocking_copies is None:
        return calls
    return replace(calls, blocking_copies=blocking_copies.table)


def _host_calls(all_calls: pa.Table) -> pa.Table:
    """Return the calls that may have launched an operation, as `canonical.HOST_CALLS`.

    A call without an end gets its start as its end.
    """
    calls = _known(all_calls, *_LAUNCH)
    threads = calls["globalTid"]
    start_ns = calls["start"]
    columns = {
        "process_id": processes_of(threads),
        "thread_id": threads,
        "start_ns": start_ns,
        "end_ns": pc.coalesce(calls["end"], start_ns),
        "correlation_id": calls["correlationId"],
    }
    return canonical.HOST_CALLS.table(columns)


def _possible(calls: pa.Table) -> pa.Table:
    """Return the calls without those at impossible times.

    A time that was not recorded is not impossible. The operations of a dropped call count as
    operations without a launch.
    """
    for name in {"start", "end"} & {*calls.column_names}:
        times = calls[name]
        first_ns, last_ns = bounds_of(times)
        if first_ns is None:
            # No call has this time.
            continue
        # Most reports have no impossible times, and a filter would copy all calls.
        if first_ns <= -TIME_LIMIT or last_ns >= TIME_LIMIT:
            is_late_enough = pc.greater(times, -TIME_LIMIT)
            is_early_enough = pc.less(times, TIME_LIMIT)
            is_possible = pc.and_(is_late_enough, is_early_enough)
            calls = calls.filter(pc.fill_null(is_possible, fill_value=True))
    return calls


def _known(calls: pa.Table, *names: str) -> pa.Table:
    """Drop calls with a null in one of some columns."""
    columns = [calls[name] for name in names]
    is_known_by_column = [pc.is_valid(column) for column in columns if column.null_count]
    if not is_known_by_column:
        return calls
    is_known = functools.reduce(pc.and_, is_known_by_column)
    return calls.filter(is_known)


def _host_waits(
    calls: pa.Table, device: object, stream: object, is_whole: object, copy_end: object
) -> pa.Table:
    """Return `canonical.HOST_WAITS` of some calls, with what each of them waited for."""
    thread = calls["globalTid"].to_numpy()
    columns = {
        "process_id": process_of(thread),
        "thread_id": thread,
        "start_ns": calls["start"],
        "end_ns": calls["end"],
    }
    columns["device_id"] = device
    columns["stream_id"] = stream
    columns["is_whole"] = is_whole
    columns["copy_end_ns"] = copy_end
    return canonical.HOST_WAITS.table(columns)


def _stream_waits(report: Report, strings: Strings, all_calls: pa.Table) -> pa.Table:
    """Return the calls that synchronise a device or a stream, as `canonical.HOST_WAITS`.

    The table of synchronizations has the device and stream of each call. Without a record there,
    both are null.
    """
    waiting_names = strings.ids_beginning(*_WAITING)
    calls = _timed(all_calls, "nameId", waiting_names).drop_null()
    if not calls.num_rows:
        return canonical.HOST_WAITS.empty()
    device_names = strings.ids_beginning(*_OF_DEVICE)
    is_of_device = pc.is_in(calls["nameId"], value_set=pa.array(device_names))
    records = _synchronizations(report, calls)
    record_of_call = _last_records_of(calls, records)
    device = records["deviceId"].take(record_of_call)
    stream_or_none = records["streamId"].take(record_of_call)
    is_no_stream = pc.equal(stream_or_none, _NO_STREAM)
    stream = pc.if_else(is_no_stream, None, stream_or_none)
    # These calls wait for no copy.
    no_copy_end = pa.nulls(calls.num_rows, pa.int64())
    return _host_waits(calls, device, stream, is_whole=is_of_device, copy_end=no_copy_end)


def _synchronizations(report: Report, calls: pa.Table) -> pa.Table:
    """Read the records of synchronizations between the correlation IDs of some calls."""
    columns = dict.fromkeys(("correlationId", "globalPid", "deviceId", "streamId"), "int")
    if not report.has(SYNCHRONIZATION, *columns):
        no_rows = pa.array([], pa.int64())
        return pa.table(dict.fromkeys(columns, no_rows))
    first_id, last_id = bounds_of(calls["correlationId"])
    where = _between(first_id, last_id)
    return report.select(SYNCHRONIZATION, columns, where=where).drop_null()


def _blocking_copies(
    strings: Strings, calls: pa.Table, host_copies: pa.Table | None
) -> BlockingCopies | None:
    """Return the copies that block the host, and their calls; None without `host_copies`."""
    if host_copies is None:
        return None
    async_names = _copying_names(strings, are_async=True)
    waiting_names = strings.ids_beginning(*_WAITING)
    return find_blocking_copies(host_copies, calls, waiting_names, async_names)


def _copying_names(strings: Strings, *, are_async: bool) -> Int64:
    """Return the ids of names of calls that copy: those with Async in them, or all others."""
    text_of_name = strings.texts_beginning(*_COPYING)
    async_names = {name_id for name_id, text in text_of_name.items() if _ASYNC in (text or "")}
    names = async_names if are_async else text_of_name.keys() - async_names
    return np.array(sorted(names), np.int64)


def _copy_waits(strings: Strings, all_calls: pa.Table, host_copies: pa.Table | None) -> pa.Table:
    """Return the calls of blocking copies to the host, as `canonical.HOST_WAITS`.

    A call blocks if its name does not have Async, or if it copies into pageable memory.
    """
    if host_copies is None:
        return canonical.HOST_WAITS.empty()
    copies = host_copies.filter(pc.equal(host_copies["copyKind"], DTOH_KIND))
    if not copies.num_rows:
        return canonical.HOST_WAITS.empty()
    ids_of_copies = copies["correlationId"].to_numpy()
    calls = _timed(all_calls, "correlationId", ids_of_copies).drop_null()
    # Null for a call whose copy nsys did not record.
    copy_of_call = _last_records_of(calls, copies)
    has_copy = pc.is_valid(copy_of_call)
    sync_names = pa.array(_copying_names(strings, are_async=False))
    is_sync = pc.is_in(calls["nameId"], value_set=sync_names)
    # The target of a copy to the host is memory of the host.
    host_memory = copies["dstKind"].take(copy_of_call)
    is_pageable = pc.fill_null(pc.equal(host_memory, PAGEABLE), fill_value=False)
    is_blocking = pc.and_(has_copy, pc.or_(is_sync, is_pageable))
    blocking_calls = calls.filter(is_blocking)
    copy_of_blocking_call = copy_of_call.filter(is_blocking.combine_chunks())
    blocking_copies = copies.take(copy_of_blocking_call)
    n_calls = blocking_calls.num_rows
    return _host_waits(
        blocking_calls,
        device=blocking_copies["deviceId"],
        stream=pa.nulls(n_calls, pa.int64()),
        is_whole=np.zeros(n_calls, np.bool_),
        copy_end=blocking_copies["end"],
    )


def _last_records_of(calls: pa.Table, records: pa.Table) -> pa.Array:
    """Return, for each call, the row of the last record with its process and correlation ID.

    Null for a call without such a record.
    """
    n_calls = len(calls)
    if not len(records):
        return pa.nulls(n_calls, pa.int64())
    # The codes of the calls come first, then those of the records.
    processes_of_calls = process_of(calls["globalTid"].to_numpy())
    process_codes = joint_codes(processes_of_calls, records["globalPid"].to_numpy())
    ids_of_calls = calls["correlationId"].to_numpy()
    ids_of_records = records["correlationId"].to_numpy()
    id_codes = joint_codes(ids_of_calls, ids_of_records)
    keys = paired_codes(id_codes, process_codes)
    key_of_call = keys[:n_calls]
    key_of_record = keys[n_calls:]
    records_by_key = np.argsort(key_of_record, kind="stable")
    keys_in_order = key_of_record[records_by_key]
    # Of the records up to the key of a call, the last one has this key, if any record has it.
    n_records_up_to_key = np.searchsorted(keys_in_order, key_of_call, side="right")
    # Without a record up to the key, the first one stands in. Its key is larger, so it differs.
    last_place = np.maximum(n_records_up_to_key - 1, 0)
    record_of_call = records_by_key[last_place]
    has_other_key = key_of_record[record_of_call] != key_of_call
    return pa.array(record_of_call, mask=has_other_key)


def _blocking_calls(
    strings: Strings, all_calls: pa.Table, blocking_copies: BlockingCopies | None
) -> pa.Table:
    """Return `canonical.BLOCKING_CALLS` in order of start and end.

    These are the calls whose names say that they wait, and those that copy pageable memory.
    `blocking_copies` has the latter as rows of `all_calls`; None if copies were not recorded.
    """
    text_of_any_name = strings.texts_beginning(*_SYNCHRONISING, *_MEMORY)
    text_of_name = {name_id: text for name_id, text in text_of_any_name.items() if text}
    sync_names = [name_id for name_id, text in text_of_name.items() if _ASYNC not in text]
    name_of_call = filled(all_calls["nameId"])
    sync_rows = np.flatnonzero(np.isin(name_of_call, np.array(sync_names, np.int64)))
    if blocking_copies is None:
        rows = sync_rows
        is_of_copy = np.zeros(rows.size, np.bool_)
    else:
        rows = np.union1d(sync_rows, blocking_copies.pageable_calls)
        is_of_copy = np.isin(rows, blocking_copies.calls)
    if not rows.size:
        return canonical.BLOCKING_CALLS.empty()
    calls = all_calls.take(pa.array(rows))
    calls = calls.append_column("is_of_copy", pa.array(is_of_copy))
    names = pa.array(text_of_name.keys(), pa.int64())
    # Calls without a known name, a duration or a thread are left out.
    calls = _known(_timed(calls, "nameId", names.to_numpy()), "globalTid")
    shown_texts = pa.array(map(without_version, text_of_name.values()), pa.string())
    position_of_name = pc.index_in(calls["nameId"], value_set=names)
    text_of_call = shown_texts.take(position_of_name.combine_chunks())
    columns = {
        "process_id": process_of(calls["globalTid"].to_numpy()),
        "start_ns": calls["start"],
        "end_ns": calls["end"],
        "call": text_of_call,
        "is_of_copy": calls["is_of_copy"],
        "is_of_memory": are_named(text_of_call, MANAGING_MEMORY),
    }
    return _in_order(canonical.BLOCKING_CALLS.table(columns))


def _in_order(calls: HostCallsOfReportTable) -> pa.Table:
    """Return calls in order of start and end."""
    starts_ns = calls["start_ns"].to_numpy()
    ends_ns = calls["end_ns"].to_numpy()
    order = np.lexsort((ends_ns, starts_ns))
    return calls.take(order)


def _timed(table: pa.Table, column: str, values: Int64) -> pa.Table:
    """Return the calls that take time and have one of some values in a column."""
    values_of_calls = filled(table[column])
    has_value = pa.array(are_among(values_of_calls, values))
    takes_time = pc.greater(table["end"], table["start"])
    return table.filter(pc.and_(has_value, takes_time))


class Overhead(Struct, frozen=True):
    """Start, end and process (0 if it is not recorded) of the work of the profiler itself."""

    starts: Int64
    ends: Int64
    processes: Int64

    def of_process(self, process_id: int) -> tuple[Int64, Int64]:
        """Return the starts and ends of the work in a process, or in an unknown process."""
        is_unknown = self.processes == 0
        is_of_process = (self.processes == process_id) | is_unknown
        return self.starts[is_of_process], self.ends[is_of_process]


def read_overhead(report: Report, facts: ReportFacts) -> Overhead | None:
    """Read the work of the profiler itself in all processes, None if it was not recorded."""
    if not report.has(OVERHEAD) and _leaves_out_overhead(facts):
        # The table is missing because it would be empty.
        no_values = np.empty(0, np.int64)
        return Overhead(starts=no_values, ends=no_values, processes=no_values)
    if not report.has(OVERHEAD, "start", "end"):
        return None
    columns = {"start": "int", "end": "int"}
    has_threads = report.has(OVERHEAD, "globalTid")
    if has_threads:
        columns["globalTid"] = "int"
    rows = report.select(OVERHEAD, columns)
    rows = _possible(_known(rows, "start", "end"))
    starts = rows["start"].to_numpy()
    ends = rows["end"].to_numpy()
    # The thread 0 stands for an unknown one, and is of process 0.
    if has_threads:
        threads = pc.fill_null(rows["globalTid"], 0).to_numpy()
    else:
        threads = np.zeros_like(starts)
    has_length = ends > starts
    processes = process_of(threads)
    return Overhead(starts[has_length], ends[has_length], processes[has_length])


def _leaves_out_overhead(facts: ReportFacts) -> bool:
    """Tell whether a report without the table of overhead had no overhead to record."""
    version = version_numbers(facts.schema_version)
    return version >= _OLDEST_WITH_OVERHEAD and facts.leaves_out_empty(OVERHEAD)


class Strings:
    """The string table of a report as columns, for lookups without a Python object per event."""

    def __init__(self, ids: NDArray[np.int64], values: pa.StringArray) -> None:
        self._ids = ids
        self._values = values

    def lookup(self, ids: NDArray[np.int64]) -> pa.StringArray:
        """Return the text of each ID, null for an unknown ID."""
        known_ids = pa.array(self._ids)
        wanted_ids = pa.array(ids)
        places = pc.index_in(wanted_ids, value_set=known_ids)
        return self._values.take(places)

    def pairs(self, ids: NDArray[np.int64]) -> Iterator[tuple[int, str | None]]:
        """Return each id with its text."""
        texts = self.lookup(ids).to_pylist()
        return zip(ids.tolist(), texts, strict=True)

    def texts_beginning(self, *prefixes: str) -> dict[int, str | None]:
        """Return the ids of all texts that begin with one of some prefixes, with the texts."""
        ids = self.ids_beginning(*prefixes)
        return dict(self.pairs(ids))

    def ids_beginning(self, *prefixes: str, ignore_case: bool = False) -> NDArray[np.int64]:
        """Return the ids of all texts that begin with one of the prefixes. One prefix is needed."""
        begins: Flags = np.zeros(len(self._values), np.bool_)
        for prefix in prefixes:
            has_prefix = pc.starts_with(self._values, prefix, ignore_case=ignore_case)
            begins |= has_prefix.to_numpy(zero_copy_only=False)
        return self._ids[begins]


def read_strings(report: Report) -> Strings:
    """Read the string table of a report. Without one, there are no names."""
    if not report.has(STRINGS, "id", "value"):
        no_ids = np.empty(0, np.int64)
        no_texts = pa.array([], pa.string())
        return Strings(no_ids, no_texts)
    rows = report.select(STRINGS, {"id": "int", "value": "text"})
    ids = filled(rows["id"], 0)
    return Strings(ids, rows["value"].combine_chunks())
