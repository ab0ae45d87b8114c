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
from nsyspipe.reader import report as versions
from nsyspipe.reader.report import TIME_LIMIT, Report, processes_of

HTOD_KIND = 1
DTOH_KIND = 2
PAGEABLE = 0  # memory of the host that is not pinned
_JOINED = ("correlationId", "globalPid")
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
    if not report.has_rows(versions.MEMCPY):
        return pa.table({name: pa.array([], pa.int64()) for name in _COLUMNS})
    if not report.has(versions.MEMCPY, *_JOINED, "start", "end", "deviceId", "copyKind"):
        return None
    where = f"copyKind IN ({HTOD_KIND}, {DTOH_KIND})"
    copies = report.select(versions.MEMCPY, dict.fromkeys(_COLUMNS, "int"), where=where)
    for name in (*_JOINED, "start", "end"):
        if copies[name].null_count:
            copies = copies.filter(pc.is_valid(copies[name]))
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
    source_memory = filled(copies["srcKind"])
    target_memory = filled(copies["dstKind"])
    host_memory = np.where(is_from_host, source_memory, target_memory)
    is_pageable = host_memory == PAGEABLE
    name_of_call = filled(calls["nameId"].take(pa.array(call)))
    is_async = np.isin(name_of_call, async_names)
    follower = _synchronising_next(np.unique(call[is_from_host]), calls, waiting_names)
    waited_for = np.isin(call, follower.copy_calls)
    is_blocking = is_from_host & (is_pageable | ~is_async | waited_for)
    own_calls = np.unique(call[is_blocking])
    followers = follower.waiting_calls[np.isin(follower.copy_calls, own_calls)]
    return BlockingCopies(
        _table(copies, calls, call, host_memory, is_blocking),
        pageable_calls=np.unique(call[is_pageable]),
        calls=np.union1d(own_calls, followers),
    )


def _table(
    copies: pa.Table, calls: pa.Table, call: Int64, host_memory: Int64, is_blocking: Flags
) -> pa.Table:
    start = filled(copies["start"])
    end = filled(copies["end"])
    is_valid = is_blocking & (start <= end) & (start > -TIME_LIMIT) & (end < TIME_LIMIT)
    rows = copies.filter(pa.array(is_valid))
    memory = host_memory[is_valid]
    columns = {
        "process_id": rows["globalPid"],
        "start_ns": rows["start"],
        "end_ns": rows["end"],
        "bytes": rows["bytes"],
        "launch_ns": calls["start"].take(pa.array(call[is_valid])),
        "device_id": rows["deviceId"],
        "is_pageable": pa.array(memory == PAGEABLE, mask=memory == UNKNOWN),
    }
    return canonical.BLOCKING_COPIES.table(columns)


def _calls_of(copies: pa.Table, calls: pa.Table) -> Int64:
    """Return the first call with the process and correlation id of each copy; -1 for none."""
    wanted = filled(copies["correlationId"])
    rows = np.flatnonzero(are_among(filled(calls["correlationId"]), wanted))
    chosen = calls.select(["correlationId", "globalTid"]).take(pa.array(rows))
    ids = filled(chosen["correlationId"]), wanted
    processes = (
        processes_of(pc.fill_null(chosen["globalTid"], 0)).to_numpy(),
        filled(copies["globalPid"]),
    )
    id_code, process_code = (
        np.unique(np.concatenate(values), return_inverse=True)[1] for values in (ids, processes)
    )
    key = id_code * (process_code.max(initial=0) + 1) + process_code
    key_of_call = key[: rows.size]
    key_of_copy = key[rows.size :]
    if not rows.size:
        return np.full(key_of_copy.size, -1)
    known_keys, first = np.unique(key_of_call, return_index=True)
    place = np.searchsorted(known_keys, key_of_copy)
    # The last place is that of keys above all known ones.
    is_known = np.append(known_keys, -1)[place] == key_of_copy
    return np.where(is_known, rows[np.append(first, 0)[place]], -1)


class _Followed(Struct, frozen=True):
    """Calls that copy, and the next call of the same thread, which synchronizes."""

    copy_calls: Int64
    waiting_calls: Int64


def _synchronising_next(copy_calls: Int64, calls: pa.Table, waiting_names: Int64) -> _Followed:
    """Return the copying calls after which the next call of their thread synchronises."""
    waiting_calls = np.flatnonzero(np.isin(filled(calls["nameId"]), waiting_names))
    rows = np.append(copy_calls, waiting_calls)
    is_waiting = np.arange(rows.size) >= copy_calls.size
    start = filled(calls["start"].take(pa.array(rows)))
    thread = filled(calls["globalTid"].take(pa.array(rows)))
    order = np.lexsort((is_waiting, start, thread))
    rows = rows[order]
    is_waiting = is_waiting[order]
    start = start[order]
    thread = thread[order]
    # The place of the next call that waits, or the number of calls if there is none.
    places = np.where(is_waiting, np.arange(rows.size), rows.size)
    following = np.minimum.accumulate(places[::-1])[::-1]
    copies = np.flatnonzero(~is_waiting & (following < rows.size) & (thread != UNKNOWN))
    copies = copies[thread[copies] == thread[following[copies]]]
    waits = following[copies]
    is_next = ~_has_call_between(calls, thread[copies], start[copies], start[waits])
    return _Followed(rows[copies[is_next]], rows[waits[is_next]])


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
    near = Slices(first, np.where(is_far, first, np.maximum(last, first)))
    place, pair = near.rows()
    has_call = np.zeros(thread.size, np.bool_)
    has_call[pair[threads[place] == thread[pair]]] = True
    return has_call | is_far
