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

    Copies without a time, process or correlation id are left out. The result has no rows if the
    report has no copies. It is None if the table of copies lacks a column that is needed.
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
    """Find the copies to a device that block the host, among all copies of `read_host_copies`.

    A copy blocks the host in three cases: it reads pageable memory, its call waits according to its
    name, or the next call of the thread waits. `calls` are all rows of RUNTIME. `waiting_names` are
    the ids of the names of calls that synchronise a device or a stream. `async_names` are the ids
    of the names of calls that do not wait.
    """
    if not copies.num_rows:
        return _none_blocking()
    call_of_any_copy = _calls_of(copies, calls)
    has_call = call_of_any_copy >= 0
    launched_copies = copies.filter(pa.array(has_call))
    # From here on, all arrays have a value for each launched copy.
    call_of_copy = call_of_any_copy[has_call]
    is_from_host = filled(launched_copies["copyKind"]) == HTOD_KIND
    host_memory = _host_memory(launched_copies, is_from_host)
    is_pageable = host_memory == PAGEABLE
    is_async = np.isin(_values_at(calls["nameId"], call_of_copy), async_names)
    calls_from_host = np.unique(call_of_copy[is_from_host])
    followed = _synchronising_next(calls_from_host, calls, waiting_names)
    is_waited_for = np.isin(call_of_copy, followed.copy_calls)
    is_blocking = is_from_host & (is_pageable | ~is_async | is_waited_for)
    blocking_calls = _with_following(np.unique(call_of_copy[is_blocking]), followed)
    table = _table(launched_copies, calls, call_of_copy, host_memory, is_blocking)
    pageable_calls = np.unique(call_of_copy[is_pageable])
    return BlockingCopies(table, pageable_calls, blocking_calls)


def _none_blocking() -> BlockingCopies:
    """Return that no copy blocks the host."""
    no_calls = np.empty(0, np.int64)
    return BlockingCopies(canonical.BLOCKING_COPIES.empty(), no_calls, no_calls)


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
    copies: pa.Table, calls: pa.Table, call_of_copy: Int64, host_memory: Int64, is_blocking: Flags
) -> pa.Table:
    """Return the blocking copies with possible times as `canonical.BLOCKING_COPIES`.

    The arrays have a value for each of `copies`. `call_of_copy` has the row in `calls` of the call
    that launched the copy. `host_memory` has the kind of memory that the copy reads or writes on
    the host.
    """
    start = filled(copies["start"])
    end = filled(copies["end"])
    is_chosen = is_blocking & are_possible(start, end)
    chosen_copies = copies.filter(pa.array(is_chosen))
    calls_of_chosen = pa.array(call_of_copy[is_chosen])
    launch_ns = calls["start"].take(calls_of_chosen)
    memory = host_memory[is_chosen]
    is_unknown = memory == UNKNOWN
    is_pageable = pa.array(memory == PAGEABLE, mask=is_unknown)
    columns = {
        "process_id": chosen_copies["globalPid"],
        "start_ns": chosen_copies["start"],
        "end_ns": chosen_copies["end"],
        "bytes": chosen_copies["bytes"],
        "launch_ns": launch_ns,
        "device_id": chosen_copies["deviceId"],
        "is_pageable": is_pageable,
    }
    return canonical.BLOCKING_COPIES.table(columns)


def _calls_of(copies: pa.Table, calls: pa.Table) -> Int64:
    """Return, for each copy, the row of the first call with its process and correlation id.

    -1 for a copy without such a call.
    """
    ids_of_copies = filled(copies["correlationId"])
    ids_of_calls = filled(calls["correlationId"])
    # Only calls with the correlation id of a copy. All calls together would take too long.
    candidate_rows = np.flatnonzero(are_among(ids_of_calls, ids_of_copies))
    n_candidates = candidate_rows.size
    if not n_candidates:
        return np.full(ids_of_copies.size, -1)
    key_columns = calls.select(["correlationId", "globalTid"])
    candidates = key_columns.take(pa.array(candidate_rows))
    keys = _joint_keys(candidates, copies)
    key_of_candidate = keys[:n_candidates]
    key_of_copy = keys[n_candidates:]
    keys_in_order, first_candidate_of_key = np.unique(key_of_candidate, return_index=True)
    place_of_copy = np.searchsorted(keys_in_order, key_of_copy)
    # `searchsorted` places a key above all others after the last one. Therefore both arrays get one
    # more entry. Its key -1 is not the key of any copy, so a copy that gets it has no call.
    key_at_place = np.append(keys_in_order, -1)[place_of_copy]
    candidate_at_place = np.append(first_candidate_of_key, 0)[place_of_copy]
    has_call = key_at_place == key_of_copy
    return np.where(has_call, candidate_rows[candidate_at_place], -1)


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
    """Return a small number for each value of the first array, then of the second.

    Equal values have equal numbers.
    """
    values = np.concatenate((first, second))
    _, codes = np.unique(values, return_inverse=True)
    return codes


def paired_codes(code: Int64, second_code: Int64) -> Int64:
    """Return a number for each pair of two codes, the same for equal pairs."""
    n_second_codes = second_code.max(initial=0) + 1
    pairs: Int64 = code * n_second_codes + second_code
    return pairs


class _Followed(Struct, frozen=True):
    """Pairs of a call that copies, and the next call of its thread, which synchronises.

    Both arrays have the rows of the calls in RUNTIME, a pair at each position.
    """

    copy_calls: Int64
    waiting_calls: Int64


def _synchronising_next(copy_calls: Int64, calls: pa.Table, waiting_names: Int64) -> _Followed:
    """Return the copying calls after which the next call of their thread synchronises.

    `copy_calls` has the rows in `calls` of the copying calls. `waiting_names` are the ids of the
    names of calls that synchronise.
    """
    is_waiting_call = np.isin(filled(calls["nameId"]), waiting_names)
    waiting_calls = np.flatnonzero(is_waiting_call)
    # Copying calls, and after them waiting calls, as rows of `calls`.
    rows = np.append(copy_calls, waiting_calls)
    is_waiting = np.repeat([False, True], [copy_calls.size, waiting_calls.size])
    starts = _values_at(calls["start"], rows)
    threads = _values_at(calls["globalTid"], rows)
    # By thread, then by time, then copies before waits. A place is a position in this order.
    order = np.lexsort((is_waiting, starts, threads))
    row_at = rows[order]
    start_at = starts[order]
    thread_at = threads[order]
    pairs = _places_of_pairs(is_waiting[order], thread_at)
    has_other_call = _has_call_between(
        calls,
        thread=thread_at[pairs.copies],
        after=start_at[pairs.copies],
        before=start_at[pairs.waits],
    )
    copies = pairs.copies[~has_other_call]
    waits = pairs.waits[~has_other_call]
    return _Followed(copy_calls=row_at[copies], waiting_calls=row_at[waits])


class _PlacesOfPairs(Struct, frozen=True):
    """The places of copying calls, and of the next waiting call of the thread of each."""

    copies: Int64
    waits: Int64


def _places_of_pairs(is_waiting: Flags, thread: Int64) -> _PlacesOfPairs:
    """Pair each copying call with the next waiting call, if both are of one known thread.

    The calls are in order of thread and time, and each of them copies or waits.
    """
    n_calls = is_waiting.size
    # The number of calls stands for no waiting call.
    next_waiting = _next_waiting(is_waiting)
    has_next_waiting = next_waiting < n_calls
    is_followed_copy = ~is_waiting & has_next_waiting & (thread != UNKNOWN)
    copies = np.flatnonzero(is_followed_copy)
    waits = next_waiting[copies]
    is_same_thread = thread[copies] == thread[waits]
    return _PlacesOfPairs(copies[is_same_thread], waits[is_same_thread])


def _next_waiting(is_waiting: Flags) -> Int64:
    """Return for each call the place of the first waiting call from there on.

    This is the number of calls if there is none.
    """
    n_calls = is_waiting.size
    places = np.arange(n_calls)
    place_if_waiting = np.where(is_waiting, places, n_calls)
    # The least place from each call to the last, so the minimum runs from the last to the first.
    least_from_last = np.minimum.accumulate(place_if_waiting[::-1])
    return least_from_last[::-1]


def _has_call_between(calls: pa.Table, *, thread: Int64, after: Int64, before: Int64) -> Flags:
    """Tell for each element of `thread` whether this thread starts a call between two times.

    The times are the elements of `after` and `before` at the same position, and a call at exactly
    one of them does not count. If many calls of all threads start between the times, the answer is
    yes, and the threads of the calls are not compared.
    """
    if not thread.size:
        return np.zeros(0, np.bool_)
    starts = filled(calls["start"])
    threads = filled(calls["globalTid"])
    if not is_sorted(starts):
        order = np.argsort(starts, kind="stable")
        starts = starts[order]
        threads = threads[order]
    # The calls of all threads between the two times.
    first_call = np.searchsorted(starts, after, side="right")
    end_of_calls = np.searchsorted(starts, before, side="left")
    # The searches leave out calls at the times. If both times are the same, and a call starts then,
    # the end therefore precedes the first call.
    end_of_calls = np.maximum(end_of_calls, first_call)
    are_many = Slices(first_call, end_of_calls).counts > _MOST_BETWEEN
    end_of_compared = np.where(are_many, first_call, end_of_calls)
    call, position_of_call = Slices(first_call, end_of_compared).rows()
    is_of_thread = threads[call] == thread[position_of_call]
    has_call = np.zeros(thread.size, np.bool_)
    has_call[position_of_call[is_of_thread]] = True
    return has_call | are_many
