"""How long a GPU idles because the thread that launches next waits for Python's lock (GIL).

A thread that waits for the lock launches nothing. This delays the GPU only in idle time that ends
with a launch of that thread. While the sampler of nsys holds the lock, the wait is not of the
program, and does not count.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from msgspec import Struct

from nsyspipe.analysis.attribution import NEVER
from nsyspipe.analysis.breakdown import Gaps
from nsyspipe.analysis.host_lines import HOST_CAUSES, HostIdleTime
from nsyspipe.analysis.intervals import EMPTY, IntervalSet, nonempty, union, union_of
from nsyspipe.analysis.steps import Windows
from nsyspipe.model.table import Flags, Int64
from nsyspipe.model.typed_tables import HostCallsOfReportTable, LockRangesOfReportTable

_NO_THREAD = -1
# A thread that holds the lock for this part of the waits is the one that is waited for.
_MIN_PART_OF_HOLDER = 0.5


class ProcessLock(Struct, frozen=True):
    """Who waits for Python's lock in one process, and which thread launches what."""

    # `canonical.LOCK_RANGES` and `canonical.HOST_CALLS` of the process.
    ranges: LockRangesOfReportTable
    calls: HostCallsOfReportTable


class LockWaits(Struct, frozen=True):
    """When one rank's device idles because a launching thread waits for Python's lock."""

    # On the clock of the device.
    times: IntervalSet
    # Their length in each window, by `HOST_CAUSES`, ns.
    ns_by_cause: tuple[Int64, ...]
    # Whether one thread that launches nothing holds the lock for most of these times.
    has_one_holder: bool


def find_lock_waits(
    gaps: Gaps, windows: Windows, idle: HostIdleTime | None, lock: ProcessLock, offset_ns: int
) -> LockWaits | None:
    """Return when the device idles because a launching thread waits for the lock.

    `offset_ns` is added to times of the host to get times of the device. None if it is not known
    why the device idles.
    """
    if idle is None or idle.launch is None or idle.blocked is None:
        return None
    threads = _launching_threads(gaps, lock.calls, offset_ns)
    ready = np.clip(gaps.launch + gaps.latency_ns, gaps.starts, gaps.ends)
    late_of_threads = []
    for thread_id in np.unique(threads[threads != _NO_THREAD]).tolist():
        is_of_thread = threads == thread_id
        late = nonempty(gaps.starts[is_of_thread], ready[is_of_thread])
        waits = waits_of_thread(lock, thread_id).shifted(offset_ns)
        late_of_threads.append(late.intersect(waits))
    times = union_of(EMPTY, *late_of_threads).intersect(idle.late)
    in_launch = times.intersect(idle.launch)
    in_blocked = times.intersect(idle.blocked)
    in_input = times.without(in_launch).without(in_blocked)
    by_cause = {"input": in_input, "launch": in_launch, "blocked": in_blocked}
    return LockWaits(
        times=times,
        ns_by_cause=tuple(windows.covered(by_cause[cause]) for cause in HOST_CAUSES),
        has_one_holder=_has_one_holder(lock.ranges, times, threads, offset_ns),
    )


def waits_of_thread(lock: ProcessLock, thread_id: int) -> IntervalSet:
    """Return when a thread waits for the lock and the sampler of nsys does not hold it."""
    waits = _times_of(lock.ranges, thread_id, is_wait=True)
    return waits.without(_times_of_sampler(lock.ranges))


def _launching_threads(gaps: Gaps, calls: HostCallsOfReportTable, offset_ns: int) -> Int64:
    """Return the thread that launched the operation behind each gap; -1 if it is not known."""
    starts = calls["start_ns"].to_numpy()
    order = np.argsort(starts, kind="stable")
    starts = starts[order]
    is_known = gaps.launch != NEVER
    launch = gaps.launch - np.where(is_known, offset_ns, 0)
    place = np.searchsorted(starts, launch)
    is_known &= np.append(starts, NEVER)[place] == launch
    threads = np.append(calls["thread_id"].to_numpy()[order], _NO_THREAD)
    return np.where(is_known, threads[place], _NO_THREAD)


def _times_of(ranges: LockRangesOfReportTable, thread_id: int, *, is_wait: bool) -> IntervalSet:
    """Return when a thread waits for the lock, or holds it."""
    is_of_thread: Flags = ranges["thread_id"].to_numpy() == thread_id
    is_of_kind: Flags = _flags(ranges, "is_wait") == is_wait
    return _union_of_rows(ranges, is_of_thread & is_of_kind)


def _times_of_sampler(ranges: LockRangesOfReportTable) -> IntervalSet:
    """Return when the sampler of nsys holds the lock."""
    return _union_of_rows(ranges, _flags(ranges, "is_of_sampler") & ~_flags(ranges, "is_wait"))


def _flags(ranges: pa.Table, name: str) -> Flags:
    flags: Flags = ranges[name].to_numpy()
    return flags


def _union_of_rows(ranges: LockRangesOfReportTable, is_chosen: Flags) -> IntervalSet:
    starts = ranges["start_ns"].to_numpy()[is_chosen]
    ends = ranges["end_ns"].to_numpy()[is_chosen]
    return union(starts, ends)


def _has_one_holder(
    ranges: LockRangesOfReportTable, times: IntervalSet, launching: Int64, offset_ns: int
) -> bool:
    """Tell whether a thread that launches nothing holds the lock for most of some times."""
    is_other = ~_flags(ranges, "is_wait") & ~_flags(ranges, "is_of_sampler")
    others = np.setdiff1d(ranges["thread_id"].to_numpy()[is_other], launching)
    longest_ns = 0
    for thread_id in others.tolist():
        held = _times_of(ranges, thread_id, is_wait=False).shifted(offset_ns)
        held_ns = _length(times.intersect(held))
        longest_ns = max(longest_ns, held_ns)
    return longest_ns > 0 and longest_ns >= _MIN_PART_OF_HOLDER * _length(times)


def _length(times: IntervalSet) -> int:
    return int(np.sum(times.ends - times.starts))


def join_lock_waits(parts: Sequence[LockWaits | None]) -> LockWaits | None:
    """Return the waits of several captures of a rank; None if those of one are not known.

    The result has no times, which are on the clocks of the captures.
    """
    known = [part for part in parts if part is not None]
    if len(known) < len(parts) or not known:
        return None
    ns_by_cause = []
    for code in range(len(HOST_CAUSES)):
        of_captures = [part.ns_by_cause[code] for part in known]
        ns_by_cause.append(np.concatenate(of_captures))
    has_one_holder = all(part.has_one_holder for part in known)
    return LockWaits(EMPTY, tuple(ns_by_cause), has_one_holder)
