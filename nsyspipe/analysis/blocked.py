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
    start on, the call explains as much idle time as it is long. All idle time during the call is
    explained in any case. Behind the end of the call, no more time is looked at than the call is
    long.

    `starts` and `ends` are those of the calls. `idle` are the gaps that end with a late launch.
    """
    lengths = np.minimum(ends - starts, _MAX_CALL_NS)
    idle_before_ns = idle.covered_until(starts)
    # When the idle time since the start of the call is as long as the call.
    as_long_as_call = idle.when_covered(idle_before_ns + lengths)
    last_possible = ends + lengths
    until: Int64 = np.clip(as_long_as_call, ends, last_possible)
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
    `late`. During calls, the call that returns last explains the time. Outside of all calls,
    earlier calls may still explain idle time. Of these, the call that does so until the latest time
    counts. Of equal calls, the first to start counts.
    """
    if not calls.num_rows or not len(waiting):
        return NOTHING
    starts = calls["start_ns"].to_numpy()
    ends = calls["end_ns"].to_numpy()
    until = explained_until(late, starts, ends)
    during_calls = _last_to_end(starts, ends)
    during_and_after_calls = _last_to_end(starts, until)
    after_calls = during_and_after_calls.without(during_calls.times)
    return _merge(during_calls.within(waiting), after_calls.within(waiting))


def _last_to_end(starts: Int64, ends: Int64) -> ExplainedTime:
    """Return the union of some calls, in parts, and for each part the call that ends last.

    The calls are sorted by start. Of calls that end together, the first to start counts.
    """
    latest_end = np.maximum.accumulate(ends)
    ends_after_all_before = np.ones(ends.size, np.bool_)
    ends_after_all_before[1:] = ends[1:] > latest_end[:-1]
    # All other calls lie inside earlier ones, which end no earlier.
    calls = np.flatnonzero(ends_after_all_before)
    part_starts = starts[calls]
    ends_of_calls = ends[calls]
    # A part ends when the next of these calls begins, which ends later.
    next_start = np.append(part_starts[1:], ends_of_calls[-1:])
    part_ends = np.minimum(ends_of_calls, next_start)
    is_nonempty = part_ends > part_starts
    times = IntervalSet(part_starts, part_ends)
    return ExplainedTime(times[is_nonempty], calls[is_nonempty])


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
