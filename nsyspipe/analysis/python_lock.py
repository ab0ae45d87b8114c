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
    why the device idles. In late time, the host launches, is blocked, or gets input.
    """
    if idle is None:
        return None
    if idle.launch is None or idle.blocked is None:
        return None
    threads = _launching_threads(gaps, lock.calls, offset_ns)
    late_of_threads = _late_waits_of_threads(gaps, threads, lock, offset_ns)
    times = late_of_threads.intersect(idle.late)
    in_launch = times.intersect(idle.launch)
    in_blocked = times.intersect(idle.blocked)
    in_launch_or_blocked = union_of(in_launch, in_blocked)
    in_input = times.without(in_launch_or_blocked)
    by_cause = {"input": in_input, "launch": in_launch, "blocked": in_blocked}
    ns_by_cause = []
    for cause in HOST_CAUSES:
        times_of_cause = by_cause[cause]
        ns_by_cause.append(windows.covered(times_of_cause))
    has_one_holder = _has_one_holder(lock.ranges, times, threads, offset_ns)
    return LockWaits(times, tuple(ns_by_cause), has_one_holder)


def _late_waits_of_threads(
    gaps: Gaps, threads: Int64, lock: ProcessLock, offset_ns: int
) -> IntervalSet:
    """Return when a thread whose launch ends a gap waits for the lock, in the gap before.

    `threads` is the thread of each gap. A gap counts until the launched operation could start.
    """
    # When the operation could start. Only times inside the gap count. A gap without a known launch
    # has no thread, so its time is not used.
    ready = np.clip(gaps.launch + gaps.latency_ns, gaps.starts, gaps.ends)
    waits_of_threads = [EMPTY]
    for thread_id in _distinct(threads):
        is_of_thread = threads == thread_id
        late = nonempty(gaps.starts[is_of_thread], ready[is_of_thread])
        waits_on_host_clock = waits_of_thread(lock, thread_id)
        waits = waits_on_host_clock.shifted(offset_ns)
        waits_of_threads.append(late.intersect(waits))
    return union_of(*waits_of_threads)


def _distinct(threads: Int64) -> list[int]:
    """Return the known threads, each once."""
    is_known = threads != _NO_THREAD
    distinct: list[int] = np.unique(threads[is_known]).tolist()
    return distinct


def waits_of_thread(lock: ProcessLock, thread_id: int) -> IntervalSet:
    """Return when a thread waits for the lock and the sampler of nsys does not hold it."""
    waits = _times_of(lock.ranges, thread_id, is_wait=True)
    return waits.without(_times_of_sampler(lock.ranges))


def _launching_threads(gaps: Gaps, calls: HostCallsOfReportTable, offset_ns: int) -> Int64:
    """Return the thread that launched the operation behind each gap; -1 if it is not known."""
    unsorted_starts = calls["start_ns"].to_numpy()
    call_at_place = np.argsort(unsorted_starts, kind="stable")
    starts = unsorted_starts[call_at_place]
    is_known = gaps.launch != NEVER
    # On the clock of the host.
    launch = gaps.launch.copy()
    launch[is_known] -= offset_ns
    # A launch has the start of its call. The last element is for launches behind all calls.
    place = np.searchsorted(starts, launch)
    start_at_place = np.append(starts, NEVER)[place]
    is_known &= start_at_place == launch
    threads = calls["thread_id"].to_numpy()
    thread_at_place = np.append(threads[call_at_place], _NO_THREAD)[place]
    return np.where(is_known, thread_at_place, _NO_THREAD)


def _times_of(ranges: LockRangesOfReportTable, thread_id: int, *, is_wait: bool) -> IntervalSet:
    """Return when a thread waits for the lock, or holds it."""
    is_of_thread: Flags = ranges["thread_id"].to_numpy() == thread_id
    is_of_kind: Flags = _flags(ranges, "is_wait") == is_wait
    return _union_of_rows(ranges, is_of_thread & is_of_kind)


def _times_of_sampler(ranges: LockRangesOfReportTable) -> IntervalSet:
    """Return when the sampler of nsys holds the lock."""
    is_of_sampler = _flags(ranges, "is_of_sampler")
    is_wait = _flags(ranges, "is_wait")
    return _union_of_rows(ranges, is_of_sampler & ~is_wait)


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
    """Tell whether one thread that launches nothing holds the lock for most of some times.

    `launching` are the threads that launch, and `times` are on the clock of the device.
    """
    # The hold of the sampler is not of the program.
    is_hold = ~_flags(ranges, "is_wait") & ~_flags(ranges, "is_of_sampler")
    threads = ranges["thread_id"].to_numpy()
    holders = np.setdiff1d(threads[is_hold], launching)
    longest_ns = 0
    for thread_id in holders.tolist():
        held_on_host_clock = _times_of(ranges, thread_id, is_wait=False)
        held = held_on_host_clock.shifted(offset_ns)
        held_ns = _length(times.intersect(held))
        longest_ns = max(longest_ns, held_ns)
    least_ns = _MIN_PART_OF_HOLDER * _length(times)
    return longest_ns > 0 and longest_ns >= least_ns


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
