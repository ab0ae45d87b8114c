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
        starts = self.starts[rows]
        ends = self.ends[rows]
        return IntervalSet(starts, ends)

    @cached_property
    def _covered_before(self) -> Int64:
        """Covered length before each interval, and after the last: one longer than the set."""
        lengths = self.ends - self.starts
        covered = np.cumsum(lengths)
        return np.append(0, covered)

    def covered_until(self, times: Int64) -> Int64:
        """Return the length covered before each time, ns; any order of times."""
        covered = np.zeros(np.shape(times), np.int64)
        if not len(self):
            return covered
        for first in range(0, len(times), BLOCK):
            rows = slice(first, first + BLOCK)
            times_of_block = times[rows]
            n_begun = counts_up_to(self.starts, times_of_block)
            # Times before all intervals read the last one. Their result is still 0, since
            # `covered_by_end` is 0 and the excess is not negative.
            last_begun = n_begun - 1
            excess_ns = np.maximum(self.ends[last_begun] - times_of_block, 0)
            covered_by_end = self._covered_before[n_begun]
            covered[rows] = np.maximum(covered_by_end - excess_ns, 0)
        return covered

    def when_covered(self, amounts: Int64) -> Int64:
        """Return when the intervals, from the first on, have lasted each amount of ns together.

        It is `FOREVER` if all intervals together last less. No amount may be negative.
        """
        covered_by_end = self._covered_before[1:]
        place = np.searchsorted(covered_by_end, amounts, side="left")
        is_reached = place < len(self)
        place = place[is_reached]
        rest = amounts[is_reached] - self._covered_before[place]
        times = np.full(np.shape(amounts), FOREVER)
        times[is_reached] = self.starts[place] + rest
        return times

    def lengths(self, starts: Int64, ends: Int64) -> Int64:
        """Return how much of each window ``[starts, ends)`` the intervals cover, ns."""
        covered = self.covered_until(ends)
        covered -= self.covered_until(starts)
        return covered

    def contains(self, times: Int64) -> Flags:
        """Return whether each time lies in an interval."""
        n_begun = counts_up_to(self.starts, times)
        n_ended = counts_up_to(self.ends, times)
        is_inside: Flags = n_begun > n_ended
        return is_inside

    def shifted(self, by_ns: int) -> IntervalSet:
        """Return the same intervals later by some time."""
        starts = self.starts + by_ns
        ends = self.ends + by_ns
        return IntervalSet(starts, ends)

    def without(self, excluded: IntervalSet) -> IntervalSet:
        """Return the times in this set and not in another, between ``-2**62`` and ``2**62``."""
        starts = np.append(-FOREVER, excluded.ends)
        ends = np.append(excluded.starts, FOREVER)
        gaps = IntervalSet(starts, ends)
        return self.intersect(gaps)

    def intersect(self, intervals: IntervalSet) -> IntervalSet:
        """Return the times in both sets.

        Cost O(k log n) plus the size of the result, where k is the size of the smaller set.
        """
        few, many = sorted((self, intervals), key=len)
        if not len(few):
            return EMPTY
        # Each of the few intervals overlaps a slice of the many.
        first = np.searchsorted(many.ends, few.starts, side="right")
        last = np.searchsorted(many.starts, few.ends, side="left")
        of_many, of_few = Slices(first, last).rows()
        starts = np.maximum(few.starts[of_few], many.starts[of_many])
        ends = np.minimum(few.ends[of_few], many.ends[of_many])
        return IntervalSet(starts, ends)


class NarrowIntervals(Struct, frozen=True, eq=False):
    """An `IntervalSet` in a third of its memory: its begin, and lengths of intervals and gaps."""

    begin: int
    # The first interval, the gap behind it, the second interval, and so on.
    lengths: NDArray[np.integer]

    @classmethod
    def of(cls, intervals: IntervalSet) -> NarrowIntervals:
        """Return a set in this form. Lengths have 32 bits if all are short, and 64 bits if not."""
        sides = np.stack((intervals.starts, intervals.ends), axis=1)
        # The start of the first interval, its end, the start of the second, and so on.
        edges = sides.ravel()
        lengths = np.diff(edges)
        are_short = (lengths < _MIN_LENGTH_OF_64_BITS).all()
        number_type = np.uint32 if are_short else np.int64
        begin = int(edges[0]) if edges.size else 0
        return cls(begin, lengths.astype(number_type))

    def shifted(self, by_ns: int) -> IntervalSet:
        """Return the intervals, later by some time."""
        if not self.lengths.size:
            return EMPTY
        begin = self.begin + by_ns
        begin_and_lengths = np.append(begin, self.lengths)
        edges = np.cumsum(begin_and_lengths)
        return IntervalSet(edges[::2], edges[1::2])


FOREVER = 2**62
_MIN_LENGTH_OF_64_BITS = 2**32
# If fewer times are looked up, it does not pay to check their order.
_MIN_TIMES_TO_CHECK = 1_000
# Rows that are handled at once, so that temporary arrays stay small.
BLOCK = 131_072
EMPTY = IntervalSet(np.empty(0, np.int64), np.empty(0, np.int64))


def counts_up_to(values: Int64, times: Int64) -> Int64:
    """Return for each time how many of some sorted values are not later than the time.

    Times are in any order.
    """
    are_many = np.ndim(times) == 1 and times.size > _MIN_TIMES_TO_CHECK
    if are_many and is_sorted(times):
        first_time, last_time = times[[0, -1]]
        first, last = np.searchsorted(values, [first_time, last_time], side="right")
        # Values that are passed from the first time to the last. They raise the count.
        n_passed = last - first
        if n_passed < times.size:
            # To look the fewer values up among the times is faster. From one of these values to the
            # next, all times have the same count.
            places = np.searchsorted(times, values[first:last], side="left")
            n_times_of_count = np.diff(places, prepend=0, append=times.size)
            counts = np.arange(first, last + 1)
            return np.repeat(counts, n_times_of_count)
    return np.searchsorted(values, times, side="right")


def union(starts: Int64, ends: Int64) -> IntervalSet:
    """Merge intervals in any order (``ends >= starts``) into an `IntervalSet`.

    Intervals that touch become one.
    """
    if not starts.size:
        return EMPTY
    # If start i + 1 is behind end i, both in sorted order, no interval runs between them: all that
    # have begun by end i have also ended. It does not matter which interval an end is of.
    sorted_starts = _sort(starts)
    sorted_ends = _sort(ends)
    is_gap = sorted_starts[1:] > sorted_ends[:-1]
    gaps = np.flatnonzero(is_gap)
    merged_starts = sorted_starts[np.append(0, gaps + 1)]
    merged_ends = sorted_ends[np.append(gaps, starts.size - 1)]
    return nonempty(merged_starts, merged_ends)


def _sort(times: Int64) -> Int64:
    """Sort times, mostly a few sorted runs. Checking the order costs less than sorting."""
    if is_sorted(times):
        return times
    return np.sort(times, kind="stable")


def union_of(*sets: IntervalSet) -> IntervalSet:
    """Return the times in any of some sets."""
    all_starts = [intervals.starts for intervals in sets]
    all_ends = [intervals.ends for intervals in sets]
    starts = np.concatenate(all_starts)
    ends = np.concatenate(all_ends)
    return union(starts, ends)


def nonempty(starts: Int64, ends: Int64) -> IntervalSet:
    """Return the sorted, disjoint intervals without those of no length."""
    is_long = ends > starts
    intervals = IntervalSet(starts, ends)
    return intervals if is_long.all() else intervals[is_long]


def is_sorted(values: Int64) -> bool:
    """Tell whether no value is smaller than the one before."""
    is_in_order = values[1:] >= values[:-1]
    return bool(is_in_order.all())


class Slices(Struct, frozen=True):
    """Slices ``[first, last)`` of a sorted column, one per range."""

    first: Int64
    last: Int64

    @classmethod
    def within(cls, times: Int64, starts: Int64, ends: Int64) -> Slices:
        """Return the sorted times that lie in each range ``[starts, ends)``."""
        first = np.searchsorted(times, starts)
        last = np.searchsorted(times, ends)
        return cls(first, last)

    @property
    def counts(self) -> Int64:
        """Number of elements of each slice."""
        return self.last - self.first

    def rows(self) -> tuple[Int64, Int64]:
        """Return the elements of all slices, one slice after the other.

        The first result is the place of each element in the column, and the second is the number of
        its slice.
        """
        counts = self.counts
        slices = np.arange(counts.size)
        slice_of_element = np.repeat(slices, counts)
        # Element k of a slice is at `first` + k in the column, and at `n_before` + k in the result.
        n_before = np.cumsum(counts) - counts
        difference = n_before - self.first
        place = np.arange(slice_of_element.size)
        place -= np.repeat(difference, counts)
        return place, slice_of_element

    def reduced(self, ufunc: np.ufunc, values: Int64) -> Int64:
        """Return the smallest value of each slice for ``np.minimum``, and so on.

        No slice may be empty.
        """
        edges = np.stack((self.first, self.last), axis=1)
        # The end of the last slice may be behind the values, which `reduceat` does not accept.
        padded_values = np.append(values, 0)
        reduced = ufunc.reduceat(padded_values, edges.ravel())
        # Every second result is that of the values between two slices, so leave it out.
        return reduced[::2]


def holders(starts: Int64, ends: Int64, times: Int64) -> Int64:
    """Return which of some sorted, disjoint ranges holds each time; -1 for none."""
    n_begun = np.searchsorted(starts, times, side="right")
    last_begun = n_begun - 1
    # Times before all ranges have -1, which reads the appended element.
    end_of_last_begun = np.append(ends, 0)[last_begun]
    is_inside = (last_begun >= 0) & (times < end_of_last_begun)
    return np.where(is_inside, last_begun, -1)


def outermost(starts: Int64, ends: Int64) -> Int64:
    """Pick intervals in order of start, of equal starts the longest first.

    The first interval is picked. The next pick is always the first interval that begins when the
    last pick has ended. If intervals are nested, the picks are the outermost ones. Returns the
    indices of the picks, in that order.
    """
    order = np.lexsort((-ends, starts))
    sorted_starts = starts[order]
    sorted_ends = ends[order]
    next_place = np.arange(1, order.size + 1)
    first_behind = np.searchsorted(sorted_starts, sorted_ends)
    # The first behind a pick of no length may be the pick itself.
    place_of_next_pick = np.maximum(first_behind, next_place)
    if (place_of_next_pick == next_place).all():
        # All intervals are picked.
        return order
    next_picks = place_of_next_pick.tolist()
    picks = []
    place = 0
    while place < order.size:
        picks.append(place)
        place = next_picks[place]
    return order[np.asarray(picks, np.int64)]


def grouped_lengths(groups: Int64, starts: Int64, ends: Int64, n_groups: int) -> Int64:
    """Return the length of the union of each group's intervals, ns; groups from 0 in any order.

    The union is as long as all intervals, without the time that is counted several times. Starts
    and ends are sorted separately in each group, as in `union`. If end i is behind start i + 1, the
    time between both is counted once more than it should be.
    """
    by_start = np.lexsort((starts, groups))
    by_end = np.lexsort((ends, groups))
    group = groups[by_start]
    start = starts[by_start]
    end = ends[by_end]
    total_ns = sums_of(group, end - start, n_groups)
    is_same_group = group[1:] == group[:-1]
    overlap_ns = end[:-1] - start[1:]
    overlapping = np.flatnonzero(is_same_group & (overlap_ns > 0))
    counted_again_ns = sums_of(group[overlapping], overlap_ns[overlapping], n_groups)
    return total_ns - counted_again_ns


def sums_of(groups: Int64 | Int32, values: Int64, n_groups: int) -> Int64:
    """Return the sum of each group's values; groups from 0 in any order."""
    sums = np.zeros(n_groups, np.int64)
    np.add.at(sums, groups, values)
    return sums


def least_of(groups: Int64 | Int32, values: Int64, n_groups: int) -> Int64:
    """Return each group's smallest value; groups from 0 in any order.

    It is the largest int64 if the group has no value.
    """
    largest = np.iinfo(np.int64).max
    least = np.full(n_groups, largest)
    np.minimum.at(least, groups, values)
    return least


def run_starts(values: Int64) -> Int64:
    """Return the index at which each run of equal values begins."""
    differs = values[1:] != values[:-1]
    is_first = np.append(True, differs)
    return np.flatnonzero(is_first[: values.size])


def places_in_runs(values: Int64) -> Int64:
    """Return the place of each value in its run of equal ones, from 0."""
    first = run_starts(values)
    lengths = np.diff(first, append=values.size)
    place = np.arange(values.size)
    place -= np.repeat(first, lengths)
    return place
