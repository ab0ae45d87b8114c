"""Copies that block the CPU, and the CUDA API calls that made them or waited for them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from nsyspipe.analysis.attribution import UNKNOWN, are_among, filled
from nsyspipe.analysis.intervals import Slices, is_sorted
from nsyspipe.model import canonical
from nsyspipe.model.table import Flags, Int64
from nsyspipe.reader.report import MEMCPY, Report, are_possible, processes_of

HTOD_KIND = 1
DTOH_KIND = 2
PAGEABLE = 0  # memory of the host that is not pinned
_JOINED = ("correlationId", "globalPid")
_NEEDED = (*_JOINED, "start", "end", "deviceId", "copyKind")
_COLUMNS = (*_JOINED, "start", "end", "deviceId", "copyKind", "bytes", "srcKind", "dstKind")
# A call that synchronises follows its copy at once: among more calls of the process than this the
# thread surely has one.
_MOST_BETWEEN = 256


class BlockingCopies(Struct, frozen=True):
    """Which copies block the host, and their calls as rows of RUNTIME."""

    table: pa.Table  # `canonical.BLOCKING_COPIES`
    pageable_calls: Int64  # calls that copy from or to pageable memory, whatever their names
    calls: Int64  # calls of the copies of the table, and those that waited for one


def read_host_copies(report: Report) -> pa.Table | None:
    """Read the copies between CPU and GPU, in order of end.

    None if there are copies whose kinds or calls are not recorded.
    """
    if not report.has_rows(MEMCPY):
        no_rows = pa.array([], pa.int64())
        return pa.table(dict.fromkeys(_COLUMNS, no_rows))
    if not report.has(MEMCPY, *_NEEDED):
        return None
    where = f"copyKind IN ({HTOD_KIND}, {DTOH_KIND})"
    columns = dict.fromkeys(_COLUMNS, "int")
    copies = report.select(MEMCPY, columns, where=where)
    for name in (*_JOINED, "start", "end"):
        column = copies[name]
        if column.null_count:
            copies = copies.filter(pc.is_valid(column))
    return copies.sort_by("end")


def find_blocking_copies(
    copies: pa.Table, calls: pa.Table, waiting_names: Int64, async_names: Int64
) -> BlockingCopies:
    """Find the copies of `read_host_copies` that block the host.

    `calls` are all rows of RUNTIME. `waiting_names` are the ids of the calls that synchronise a
    device or a stream, `async_names` those of the calls whose name says that they do not wait.
    """
    call = _calls_of(copies, calls)
    is_made = call >= 0
    copies = copies.filter(pa.array(is_made))
    call = call[is_made]
    is_from_host = filled(copies["copyKind"]) == HTOD_KIND
    host_memory = _host_memory(copies, is_from_host)
    is_pageable = host_memory == PAGEABLE
    name_of_call = _values_at(calls["nameId"], call)
    is_async = np.isin(name_of_call, async_names)
    calls_from_host = np.unique(call[is_from_host])
    followed = _synchronising_next(calls_from_host, calls, waiting_names)
    is_waited_for = np.isin(call, followed.copy_calls)
    is_blocking = is_pageable | ~is_async | is_waited_for
    is_blocking &= is_from_host
    blocking_calls = _with_following(np.unique(call[is_blocking]), followed)
    table = _table(copies, calls, call, host_memory, is_blocking)
    pageable_calls = np.unique(call[is_pageable])
    return BlockingCopies(table, pageable_calls, blocking_calls)


def _host_memory(copies: pa.Table, is_from_host: Flags) -> Int64:
    """Return the kind of memory of the host that each copy reads or writes."""
    source_memory = filled(copies["srcKind"])
    target_memory = filled(copies["dstKind"])
    return np.where(is_from_host, source_memory, target_memory)


def _with_following(blocking_calls: Int64, followed: _Followed) -> Int64:
    """Return blocking calls and the calls that waited for their copies, in order of row."""
    is_of_blocking_call = np.isin(followed.copy_calls, blocking_calls)
    following_calls = followed.waiting_calls[is_of_blocking_call]
    return np.union1d(blocking_calls, following_calls)


def _values_at(column: pa.ChunkedArray, rows: Int64) -> Int64:
    """Return the values of a column in some rows, with `UNKNOWN` in place of nulls."""
    values = column.take(pa.array(rows))
    return filled(values)


def _table(
    copies: pa.Table, calls: pa.Table, call: Int64, host_memory: Int64, is_blocking: Flags
) -> pa.Table:
    """Return the blocking copies with possible times as `canonical.BLOCKING_COPIES`."""
    start = filled(copies["start"])
    end = filled(copies["end"])
    is_chosen = is_blocking & are_possible(start, end)
    rows = copies.filter(pa.array(is_chosen))
    calls_of_rows = pa.array(call[is_chosen])
    launch_ns = calls["start"].take(calls_of_rows)
    memory = host_memory[is_chosen]
    is_unknown = memory == UNKNOWN
    is_pageable = pa.array(memory == PAGEABLE, mask=is_unknown)
    columns = {
        "process_id": rows["globalPid"],
        "start_ns": rows["start"],
        "end_ns": rows["end"],
        "bytes": rows["bytes"],
        "launch_ns": launch_ns,
        "device_id": rows["deviceId"],
        "is_pageable": is_pageable,
    }
    return canonical.BLOCKING_COPIES.table(columns)


def _calls_of(copies: pa.Table, calls: pa.Table) -> Int64:
    """Return the first call with the process and correlation id of each copy; -1 for none."""
    ids_of_copies = filled(copies["correlationId"])
    ids_of_calls = filled(calls["correlationId"])
    rows = np.flatnonzero(are_among(ids_of_calls, ids_of_copies))
    if not rows.size:
        return np.full(ids_of_copies.size, -1)
    key_columns = calls.select(["correlationId", "globalTid"])
    calls_of_copies = key_columns.take(pa.array(rows))
    key = _joint_keys(calls_of_copies, copies)
    key_of_call = key[: rows.size]
    key_of_copy = key[rows.size :]
    known_keys, first = np.unique(key_of_call, return_index=True)
    place = np.searchsorted(known_keys, key_of_copy)
    # The last place is that of keys above all known ones.
    key_at_place = np.append(known_keys, -1)[place]
    first_at_place = np.append(first, 0)[place]
    is_known = key_at_place == key_of_copy
    return np.where(is_known, rows[first_at_place], -1)


def _joint_keys(calls: pa.Table, copies: pa.Table) -> Int64:
    """Return a number for the process and correlation id of each call, then of each copy."""
    threads = pc.fill_null(calls["globalTid"], 0)
    processes_of_calls = processes_of(threads).to_numpy()
    processes_of_copies = filled(copies["globalPid"])
    process_code = joint_codes(processes_of_calls, processes_of_copies)
    ids_of_calls = filled(calls["correlationId"])
    ids_of_copies = filled(copies["correlationId"])
    id_code = joint_codes(ids_of_calls, ids_of_copies)
    return paired_codes(id_code, process_code)


def joint_codes(first: Int64, second: Int64) -> Int64:
    """Return a small number for each value of two arrays, the same for equal values."""
    values = np.concatenate((first, second))
    _, codes = np.unique(values, return_inverse=True)
    return codes


def paired_codes(code: Int64, second_code: Int64) -> Int64:
    """Return a number for each pair of two codes, the same for equal pairs."""
    n_second_codes = second_code.max(initial=0) + 1
    pairs: Int64 = code * n_second_codes + second_code
    return pairs


class _Followed(Struct, frozen=True):
    """Calls that copy, and the next call of the same thread, which synchronizes."""

    copy_calls: Int64
    waiting_calls: Int64


def _synchronising_next(copy_calls: Int64, calls: pa.Table, waiting_names: Int64) -> _Followed:
    """Return the copying calls after which the next call of their thread synchronises."""
    is_waiting_call = np.isin(filled(calls["nameId"]), waiting_names)
    waiting_calls = np.flatnonzero(is_waiting_call)
    rows = np.append(copy_calls, waiting_calls)
    is_waiting = np.arange(rows.size) >= copy_calls.size
    start = _values_at(calls["start"], rows)
    thread = _values_at(calls["globalTid"], rows)
    order = np.lexsort((is_waiting, start, thread))
    rows = rows[order]
    is_waiting = is_waiting[order]
    start = start[order]
    thread = thread[order]
    next_waiting = _next_waiting(is_waiting)
    has_next = next_waiting < rows.size
    is_followed_copy = ~is_waiting & has_next & (thread != UNKNOWN)
    copies = np.flatnonzero(is_followed_copy)
    waits = next_waiting[copies]
    is_same_thread = thread[copies] == thread[waits]
    copies = copies[is_same_thread]
    waits = waits[is_same_thread]
    has_other_call = _has_call_between(calls, thread[copies], start[copies], start[waits])
    copy_calls = rows[copies]
    waiting_calls = rows[waits]
    return _Followed(copy_calls[~has_other_call], waiting_calls[~has_other_call])


def _next_waiting(is_waiting: Flags) -> Int64:
    """Return the place of the next call that waits; the number of calls if there is none."""
    n_calls = is_waiting.size
    place = np.arange(n_calls)
    waiting_place = np.where(is_waiting, place, n_calls)
    next_from_last = np.minimum.accumulate(waiting_place[::-1])
    return next_from_last[::-1]


def _has_call_between(calls: pa.Table, thread: Int64, after: Int64, before: Int64) -> Flags:
    """Tell which threads have a call that starts between two times, one pair for each thread."""
    if not thread.size:
        return np.zeros(0, np.bool_)
    starts = filled(calls["start"])
    threads = filled(calls["globalTid"])
    if not is_sorted(starts):
        order = np.argsort(starts, kind="stable")
        starts = starts[order]
        threads = threads[order]
    first = np.searchsorted(starts, after, side="right")
    last = np.searchsorted(starts, before, side="left")
    is_far = Slices(first, last).counts > _MOST_BETWEEN
    last = np.maximum(last, first)
    last_of_near = np.where(is_far, first, last)
    place, pair = Slices(first, last_of_near).rows()
    is_of_thread = threads[place] == thread[pair]
    has_call = np.zeros(thread.size, np.bool_)
    has_call[pair[is_of_thread]] = True
    return has_call | is_far
