"""Which idle time is explained by calls that block the host: during them, and after them."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from nsyspipe.analysis.intervals import EMPTY, IntervalSet, union
from nsyspipe.model.table import Flags, Int64
from nsyspipe.model.typed_tables import (
    HostCallsOfReportTable,
)

# Longer calls count as this long, so that the end of such a call plus its length fits an int64.
_MAX_CALL_NS = 2**60


class ExplainedTime(Struct, frozen=True):
    """Times, and for each the row of the call that explains it."""

    times: IntervalSet
    call: Int64

    def within(self, times: IntervalSet) -> ExplainedTime:
        """Return the part that lies in other times."""
        part = self.times.intersect(times)
        return self._part(part)

    def without(self, times: IntervalSet) -> ExplainedTime:
        """Return the part that lies outside of other times."""
        part = self.times.without(times)
        return self._part(part)

    def of_calls(self, is_chosen: Flags) -> ExplainedTime:
        """Return the part that some of the calls explain, given a flag for each call."""
        is_explained = is_chosen[self.call]
        times = self.times[is_explained]
        return ExplainedTime(times, self.call[is_explained])

    def _part(self, part: IntervalSet) -> ExplainedTime:
        n_begun = np.searchsorted(self.times.starts, part.starts, side="right")
        places = n_begun - 1
        return ExplainedTime(part, self.call[places])


NOTHING = ExplainedTime(EMPTY, EMPTY.starts)


def explained_until(idle: IntervalSet, starts: Int64, ends: Int64) -> Int64:
    """Return until when each call that held up the host explains idle time.

    Without the call, all later launches would come earlier by the length of the call. So from its
    start on, the call explains as much idle time as it is long. A call explains at least the idle
    time until its end. It explains none that is farther behind its end than the call is long.

    `starts` and `ends` are those of the calls. `idle` are the gaps that end with a late launch.
    """
    lengths = np.minimum(ends - starts, _MAX_CALL_NS)
    idle_before_ns = idle.covered_until(starts)
    # When the idle time since the start of the call is as long as the call.
    used_up = idle.when_covered(idle_before_ns + lengths)
    used_up = np.maximum(used_up, ends)
    last_possible = ends + lengths
    until: Int64 = np.minimum(last_possible, used_up)
    return until


def made_by(idle: IntervalSet, starts: Int64, ends: Int64) -> IntervalSet:
    """Return the idle time that is explained by calls that held up the host."""
    until = explained_until(idle, starts, ends)
    explained = union(starts, until)
    return idle.intersect(explained)


def blocked_time(
    late: IntervalSet, waiting: IntervalSet, calls: HostCallsOfReportTable
) -> ExplainedTime:
    """Return the waiting time that blocking calls explain, and which call explains it.

    `calls` are `canonical.BLOCKING_CALLS` of a process, sorted by start. `waiting` is a part of
    `late`. If several calls run at a time, the call that returns last explains the time. If no call
    runs, the call that explains idle time longest explains it. Of equal calls, the first to start
    explains the time.
    """
    if not calls.num_rows or not len(waiting):
        return NOTHING
    starts = calls["start_ns"].to_numpy()
    ends = calls["end_ns"].to_numpy()
    until = explained_until(late, starts, ends)
    during_calls = _last_to_end(starts, ends)
    explained = _last_to_end(starts, until)
    after_calls = explained.without(during_calls.times)
    during_calls = during_calls.within(waiting)
    after_calls = after_calls.within(waiting)
    return _merge(during_calls, after_calls)


def _last_to_end(starts: Int64, ends: Int64) -> ExplainedTime:
    """Return the union of some intervals, in parts. Of each part, the interval that ends last.

    The intervals are sorted by start.
    """
    latest_end = np.maximum.accumulate(ends)
    ends_last = np.ones(ends.size, np.bool_)
    ends_last[1:] = ends[1:] > latest_end[:-1]
    # All other intervals lie inside earlier ones.
    rows = np.flatnonzero(ends_last)
    starts = starts[rows]
    ends = ends[rows]
    # Each part ends when the next interval begins, which ends later.
    next_start = np.append(starts[1:], ends[-1:])
    part_ends = np.minimum(ends, next_start)
    is_long = part_ends > starts
    times = IntervalSet(starts, part_ends)
    return ExplainedTime(times[is_long], rows[is_long])


def _merge(first: ExplainedTime, second: ExplainedTime) -> ExplainedTime:
    """Merge two that have no time in common, in order of time."""
    first_times = first.times
    second_times = second.times
    starts = np.append(first_times.starts, second_times.starts)
    ends = np.append(first_times.ends, second_times.ends)
    call = np.append(first.call, second.call)
    order = np.argsort(starts, kind="stable")
    times = IntervalSet(starts, ends)
    return ExplainedTime(times[order], call[order])
