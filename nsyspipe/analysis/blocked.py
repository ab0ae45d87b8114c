"""Which idle time calls explain that block the host: while they last, and behind them because they drained the queue."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from msgspec import Struct

from nsyspipe.analysis.intervals import EMPTY, IntervalSet, union
from nsyspipe.model.table import Flags, Int64

_LONGEST_NS = (
    2**60
)  # no call lasts longer, and the end of such a call and as much again is still an int64


class ExplainedTime(Struct, frozen=True):
    """Times, and for each the row of the call that explains it."""

    times: IntervalSet
    call: Int64

    def within(self, times: IntervalSet) -> ExplainedTime:
        """Return the part that lies in other times."""
        return self._part(self.times.intersect(times))

    def without(self, times: IntervalSet) -> ExplainedTime:
        """Return the part that lies outside of other times."""
        return self._part(self.times.without(times))

    def of_calls(self, is_chosen: Flags) -> ExplainedTime:
        """Return the part that some of the calls explain, given a flag for each call."""
        is_own = is_chosen[self.call]
        return ExplainedTime(self.times[is_own], self.call[is_own])

    def _part(self, part: IntervalSet) -> ExplainedTime:
        place = np.searchsorted(self.times.starts, part.starts, side="right") - 1
        return ExplainedTime(part, self.call[place])


NOTHING = ExplainedTime(EMPTY, EMPTY.starts)


def explained_until(idle: IntervalSet, starts: Int64, ends: Int64) -> Int64:
    """Return until when times in which the host was held up explain idle time, from the start of each on.

    Without such a time all launches behind it come earlier by as long as it lasted. So much idle
    time it explains, and none that lies further behind its end than it lasted. `idle` are the gaps,
    as far as they end with a late launch.
    """
    lengths = np.minimum(ends - starts, _LONGEST_NS)
    spent_at = idle.when_covered(idle.covered_until(starts) + lengths)
    until: Int64 = np.minimum(ends + lengths, np.maximum(spent_at, ends))
    return until


def made_by(idle: IntervalSet, starts: Int64, ends: Int64) -> IntervalSet:
    """Return the idle time that times explain in which the host was held up, in any order."""
    return idle.intersect(union(starts, explained_until(idle, starts, ends)))


def blocked_time(late: IntervalSet, waiting: IntervalSet, calls: pa.Table) -> ExplainedTime:
    """Return the waiting time, a part of the late time, that blocking calls explain, and which call does.

    `calls` are `canonical.BLOCKING_CALLS` of a process, sorted by start. While calls are under way,
    the one that returns last explains the time. Else the one does that explains idle time longest.
    Of equal ones the first to start counts.
    """
    if not calls.num_rows or not len(waiting):
        return NOTHING
    starts = calls["start_ns"].to_numpy()
    ends = calls["end_ns"].to_numpy()
    under_way = _last_to_end(starts, ends)
    behind = _last_to_end(starts, explained_until(late, starts, ends)).without(under_way.times)
    return _in_order(under_way.within(waiting), behind.within(waiting))


def _last_to_end(starts: Int64, ends: Int64) -> ExplainedTime:
    """Return the times in any of some intervals, sorted by start, and which of those that hold each time ends last."""
    latest_end = np.maximum.accumulate(ends)
    is_later = np.append(True, ends[1:] > latest_end[:-1])
    rows = np.flatnonzero(is_later)  # the others lie inside the ones before
    until = np.append(starts[rows[1:]], ends[rows[-1:]])
    own_ends = np.minimum(ends[rows], until)
    is_long = own_ends > starts[rows]
    return ExplainedTime(IntervalSet(starts[rows][is_long], own_ends[is_long]), rows[is_long])


def _in_order(first: ExplainedTime, second: ExplainedTime) -> ExplainedTime:
    """Merge two that have no time in common."""
    starts, ends, call = (
        np.concatenate(pair)
        for pair in (
            (first.times.starts, second.times.starts),
            (first.times.ends, second.times.ends),
            (first.call, second.call),
        )
    )
    order = np.argsort(starts, kind="stable")
    return ExplainedTime(IntervalSet(starts[order], ends[order]), call[order])
