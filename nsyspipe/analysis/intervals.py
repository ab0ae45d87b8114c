"""Sets of half-open int64 nanosecond intervals, slices of sorted times, and runs of equal values.

All results are exact, in O(n log n).
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from nsyspipe.model.table import Flags, Int32, Int64


class IntervalSet(Struct, frozen=True, eq=False, dict=True):
    """Sorted, disjoint, non-empty intervals ``[starts, ends)`` in ns, as `union` makes them."""

    starts: Int64
    ends: Int64

    def __len__(self) -> int:
        return int(self.starts.size)

    def __getitem__(self, rows: Flags | Int64) -> IntervalSet:
        return IntervalSet(self.starts[rows], self.ends[rows])

    @cached_property
    def _covered_before(self) -> Int64:
        """Covered length before each interval, and after the last: one longer than the set."""
        return np.append(0, np.cumsum(self.ends - self.starts))

    def covered_until(self, times: Int64) -> Int64:
        """Return the length covered before each time, ns; any order of times."""
        covered = np.zeros(np.shape(times), np.int64)
        if not len(self):
            return covered
        for first in range(0, len(times), BLOCK):
            rows = slice(first, first + BLOCK)
            n_begun = counts_up_to(self.starts, times[rows])
            overshoot = np.maximum(self.ends[n_begun - 1] - times[rows], 0)
            # For times before the first interval, the overshoot is that of the last one.
            covered[rows] = np.maximum(self._covered_before[n_begun] - overshoot, 0)
        return covered

    def when_covered(self, amounts: Int64) -> Int64:
        """Return the time until which each amount of ns is covered; `FOREVER` if less is covered.

        No amount may be negative.
        """
        place = np.searchsorted(self._covered_before[1:], amounts, side="left")
        is_reached = place < len(self)
        place = place[is_reached]
        times = np.full(np.shape(amounts), FOREVER)
        times[is_reached] = self.starts[place] + (amounts[is_reached] - self._covered_before[place])
        return times

    def lengths(self, starts: Int64, ends: Int64) -> Int64:
        """Return the covered length inside each window ``[starts, ends)``, ns."""
        covered = self.covered_until(ends)
        covered -= self.covered_until(starts)
        return covered

    def contains(self, times: Int64) -> Flags:
        """Return whether each time lies in an interval."""
        return counts_up_to(self.starts, times) > counts_up_to(self.ends, times)

    def shifted(self, by_ns: int) -> IntervalSet:
        """Return the same intervals later by some time."""
        return IntervalSet(self.starts + by_ns, self.ends + by_ns)

    def without(self, excluded: IntervalSet) -> IntervalSet:
        """Return the times in this set and not in another, between ``-2**62`` and ``2**62``."""
        starts = np.append(-FOREVER, excluded.ends)
        ends = np.append(excluded.starts, FOREVER)
        return self.intersect(IntervalSet(starts, ends))

    def intersect(self, intervals: IntervalSet) -> IntervalSet:
        """Return the times in both sets.

        Cost O(k log n) plus the size of the result, where k is the size of the smaller set.
        """
        few, many = (self, intervals) if len(self) <= len(intervals) else (intervals, self)
        if not len(few):
            return EMPTY
        first = np.searchsorted(many.ends, few.starts, side="right")
        last = np.searchsorted(many.starts, few.ends, side="left")
        partner, owner = Slices(first, last).rows()
        starts = np.maximum(few.starts[owner], many.starts[partner])
        ends = np.minimum(few.ends[owner], many.ends[partner])
        return IntervalSet(starts, ends)


class NarrowIntervals(Struct, frozen=True, eq=False):
    """An `IntervalSet` in a third of its memory: its begin, and lengths of intervals and gaps."""

    begin: int
    lengths: NDArray[np.integer]

    @classmethod
    def of(cls, intervals: IntervalSet) -> NarrowIntervals:
        """Narrow a set. The result is exact for intervals and gaps of any length."""
        edges = np.stack((intervals.starts, intervals.ends), axis=1).ravel()
        lengths = np.diff(edges)
        kind = np.uint32 if (lengths < _MIN_LENGTH_OF_64_BITS).all() else np.int64
        return cls(int(edges[0]) if edges.size else 0, lengths.astype(kind))

    def shifted(self, by_ns: int) -> IntervalSet:
        """Return the intervals, later by some time."""
        if not self.lengths.size:
            return EMPTY
        edges = np.cumsum(np.append(self.begin + by_ns, self.lengths))
        return IntervalSet(edges[::2], edges[1::2])


FOREVER = 2**62
_MIN_LENGTH_OF_64_BITS = 2**32
# If fewer times are looked up, it does not pay to check their order.
_MIN_TIMES_TO_CHECK = 1_000
# Rows that are handled at once, so that temporary arrays stay small.
BLOCK = 131_072
EMPTY = IntervalSet(np.empty(0, np.int64), np.empty(0, np.int64))


def counts_up_to(values: Int64, times: Int64) -> Int64:
    """Return how many of some sorted values are no later than each time; any order of times."""
    if np.ndim(times) == 1 and times.size > _MIN_TIMES_TO_CHECK and is_sorted(times):
        first, last = np.searchsorted(values, times[[0, -1]], side="right")
        if last - first < times.size:
            # There are many times in order. Look the few values up among them instead.
            places = np.searchsorted(times, values[first:last], side="left")
            n_times = np.diff(places, prepend=0, append=times.size)
            return np.repeat(np.arange(first, last + 1), n_times)
    return np.searchsorted(values, times, side="right")


def union(starts: Int64, ends: Int64) -> IntervalSet:
    """Merge intervals in any order (``ends >= starts``) into an `IntervalSet`.

    Intervals that touch become one.
    """
    if not starts.size:
        return EMPTY
    # If the next start is behind the i-th smallest end, all earlier intervals have ended there.
    sorted_starts = _sort(starts)
    sorted_ends = _sort(ends)
    gaps = np.flatnonzero(sorted_starts[1:] > sorted_ends[:-1])
    merged_starts = sorted_starts[np.append(0, gaps + 1)]
    merged_ends = sorted_ends[np.append(gaps, starts.size - 1)]
    return nonempty(merged_starts, merged_ends)


def _sort(times: Int64) -> Int64:
    """Sort times, mostly a few sorted runs. Checking the order costs less than sorting."""
    return times if is_sorted(times) else np.sort(times, kind="stable")


def union_of(*sets: IntervalSet) -> IntervalSet:
    """Return the times in any of some sets."""
    starts = np.concatenate([intervals.starts for intervals in sets])
    ends = np.concatenate([intervals.ends for intervals in sets])
    return union(starts, ends)


def nonempty(starts: Int64, ends: Int64) -> IntervalSet:
    """Return the sorted, disjoint intervals without those of no length."""
    is_long = ends > starts
    intervals = IntervalSet(starts, ends)
    return intervals if is_long.all() else intervals[is_long]


def is_sorted(values: Int64) -> bool:
    """Tell whether no value is smaller than the one before."""
    return bool((values[1:] >= values[:-1]).all())


class Slices(Struct, frozen=True):
    """Slices ``[first, last)`` of a sorted column, one per range."""

    first: Int64
    last: Int64

    @classmethod
    def within(cls, times: Int64, starts: Int64, ends: Int64) -> Slices:
        """Return the sorted times that lie in each range ``[starts, ends)``."""
        return cls(np.searchsorted(times, starts), np.searchsorted(times, ends))

    @property
    def counts(self) -> Int64:
        """Number of elements of each slice."""
        return self.last - self.first

    def rows(self) -> tuple[Int64, Int64]:
        """Return the place of each element of each slice, and the number of its slice."""
        counts = self.counts
        owner = np.repeat(np.arange(counts.size), counts)
        n_before = np.cumsum(counts) - counts
        return np.arange(owner.size) - np.repeat(n_before - self.first, counts), owner

    def reduced(self, ufunc: np.ufunc, values: Int64) -> Int64:
        """Return the smallest value of each slice for ``np.minimum``, and so on.

        No slice may be empty.
        """
        edges = np.stack((self.first, self.last), axis=1).ravel()
        # Every second result is that of the values between two slices.
        return ufunc.reduceat(np.append(values, 0), edges)[::2]


def holders(starts: Int64, ends: Int64, times: Int64) -> Int64:
    """Return which of some sorted, disjoint ranges holds each time; -1 for none."""
    place = np.searchsorted(starts, times, side="right") - 1
    is_inside = (place >= 0) & (times < np.append(ends, 0)[place])
    return np.where(is_inside, place, -1)


def outermost(starts: Int64, ends: Int64) -> Int64:
    """Pick intervals greedily in order of (start, longest first).

    Each pick begins after the last one ended. If intervals are nested, the picks are the outermost
    ones. Returns the indices of the picks, in that order.
    """
    order = np.lexsort((-ends, starts))
    # A pick of no length hides nothing, so the next interval follows.
    next_place = np.arange(1, order.size + 1)
    following = np.maximum(np.searchsorted(starts[order], ends[order]), next_place)
    if (following == next_place).all():
        # No interval hides another.
        return order
    picks = []
    place = 0
    following = following.tolist()
    while place < order.size:
        picks.append(place)
        place = following[place]
    return order[np.asarray(picks, np.int64)]


def grouped_lengths(groups: Int64, starts: Int64, ends: Int64, n_groups: int) -> Int64:
    """Return the length of the union of each group's intervals, ns; groups from 0 in any order."""
    # As in `union`, starts and ends are sorted separately. If an end is behind the next start, the
    # time between was counted twice.
    order = np.lexsort((starts, groups))
    group = groups[order]
    start = starts[order]
    end = ends[np.lexsort((ends, groups))]
    overlapping = np.flatnonzero((group[1:] == group[:-1]) & (end[:-1] > start[1:]))
    overlap = end[overlapping] - start[overlapping + 1]
    total = sums_of(group, end - start, n_groups)
    return total - sums_of(group[overlapping], overlap, n_groups)


def sums_of(groups: Int64 | Int32, values: Int64, n_groups: int) -> Int64:
    """Return the sum of each group's values; groups from 0 in any order."""
    sums = np.zeros(n_groups, np.int64)
    np.add.at(sums, groups, values)
    return sums


def least_of(groups: Int64 | Int32, values: Int64, n_groups: int) -> Int64:
    """Return each group's smallest value; groups from 0 in any order.

    It is the largest int64 if the group has no value.
    """
    least = np.full(n_groups, np.iinfo(np.int64).max)
    np.minimum.at(least, groups, values)
    return least


def run_starts(values: Int64) -> Int64:
    """Return the index at which each run of equal values begins."""
    return np.flatnonzero(np.append(True, values[1:] != values[:-1])[: values.size])


def places_in_runs(values: Int64) -> Int64:
    """Return the place of each value in its run of equal ones, from 0."""
    first = run_starts(values)
    return np.arange(values.size) - np.repeat(first, np.diff(first, append=values.size))
