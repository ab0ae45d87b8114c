"""Sets of half-open int64 nanosecond intervals, slices of sorted times, and runs of equal values: exact, O(n log n)."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from nsyspipe.model.table import Flags, Int64


class IntervalSet(Struct, frozen=True, eq=False, dict=True):
    """Sorted, disjoint, non-empty half-open intervals ``[starts, ends)`` in ns, as `union` makes them."""

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
        for at in range(0, len(times), BLOCK):
            rows = slice(at, at + BLOCK)
            n_begun = counts_up_to(self.starts, times[rows])
            overshoot = np.maximum(self.ends[n_begun - 1] - times[rows], 0)
            # Before the first interval what is taken back is of the last one.
            covered[rows] = np.maximum(self._covered_before[n_begun] - overshoot, 0)
        return covered

    def when_covered(self, amounts: Int64) -> Int64:
        """Return the time until which each amount of ns is covered, none of them negative; `FOREVER` where there is less."""
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

    def without(self, other: IntervalSet) -> IntervalSet:
        """Return the times that lie in this set and not in the other, all between ``-2**62`` and ``2**62``."""
        return self.intersect(
            IntervalSet(np.append(-FOREVER, other.ends), np.append(other.starts, FOREVER))
        )

    def intersect(self, other: IntervalSet) -> IntervalSet:
        """Return the times that lie in both sets: O(k log n) plus the size of the answer, k being the smaller set."""
        few, many = (self, other) if len(self) <= len(other) else (other, self)
        if not len(few):
            return EMPTY
        first = np.searchsorted(many.ends, few.starts, side="right")
        partner, owner = Slices(first, np.searchsorted(many.starts, few.ends, side="left")).rows()
        starts = np.maximum(few.starts[owner], many.starts[partner])
        return IntervalSet(starts, np.minimum(few.ends[owner], many.ends[partner]))


class NarrowIntervals(Struct, frozen=True, eq=False):
    """An `IntervalSet` in a third of its memory: from its begin on, how long each interval and each gap lasts."""

    begin: int
    lengths: NDArray[np.integer]

    @classmethod
    def of(cls, intervals: IntervalSet) -> NarrowIntervals:
        """Make one of a set; exact, whatever lasts how long."""
        edges = np.stack((intervals.starts, intervals.ends), axis=1).ravel()
        lengths = np.diff(edges)
        kind = np.uint32 if (lengths < _SHORT).all() else np.int64
        return cls(int(edges[0]) if edges.size else 0, lengths.astype(kind))

    def shifted(self, by_ns: int) -> IntervalSet:
        """Return the intervals, later by some time."""
        if not self.lengths.size:
            return EMPTY
        edges = np.cumsum(np.append(self.begin + by_ns, self.lengths))
        return IntervalSet(edges[::2], edges[1::2])


FOREVER = 2**62
_SHORT = 2**32
_FEW = 1_000  # looked up at once
BLOCK = 131_072  # so many rows at a time keep what is made on the way small
EMPTY = IntervalSet(np.empty(0, np.int64), np.empty(0, np.int64))


def counts_up_to(values: Int64, times: Int64) -> Int64:
    """Return how many of some sorted values are no later than each time; any order of times."""
    if np.ndim(times) == 1 and times.size > _FEW and is_sorted(times):
        first, last = np.searchsorted(values, times[[0, -1]], side="right")
        if last - first < times.size:
            # Many times in order: look the few values up among them instead.
            places = np.searchsorted(times, values[first:last], side="left")
            return np.repeat(
                np.arange(first, last + 1), np.diff(places, prepend=0, append=times.size)
            )
    return np.searchsorted(values, times, side="right")


def union(starts: Int64, ends: Int64) -> IntervalSet:
    """Merge intervals in any order (``ends >= starts``) into an `IntervalSet`; touching intervals become one."""
    if not starts.size:
        return EMPTY
    # All that began has ended after the i-th smallest end if the next start lies behind it. Looking
    # costs less than sorting.
    sorted_starts, sorted_ends = (
        times if is_sorted(times) else np.sort(times, kind="stable")  # mostly a few sorted runs
        for times in (starts, ends)
    )
    gaps = np.flatnonzero(sorted_starts[1:] > sorted_ends[:-1])
    return nonempty(
        sorted_starts[np.append(0, gaps + 1)], sorted_ends[np.append(gaps, starts.size - 1)]
    )


def union_of(*sets: IntervalSet) -> IntervalSet:
    """Return the times that lie in any of some sets."""
    return union(
        np.concatenate([some.starts for some in sets]), np.concatenate([some.ends for some in sets])
    )


def nonempty(starts: Int64, ends: Int64) -> IntervalSet:
    """Return those of sorted, disjoint intervals that have a length."""
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
        """Return the place of each element of each slice, and which slice it is of."""
        counts = self.counts
        owner = np.repeat(np.arange(counts.size), counts)
        return np.arange(owner.size) - np.repeat(
            np.cumsum(counts) - counts - self.first, counts
        ), owner

    def reduced(self, of: np.ufunc, values: Int64) -> Int64:
        """Return, as of ``np.minimum``, the smallest value of each slice; no slice may be empty."""
        return of.reduceat(np.append(values, 0), np.stack((self.first, self.last), axis=1).ravel())[
            ::2
        ]


def holders(starts: Int64, ends: Int64, times: Int64) -> Int64:
    """Return which of some sorted, disjoint ranges holds each time; -1 for none."""
    at = np.searchsorted(starts, times, side="right") - 1
    return np.where((at >= 0) & (times < np.append(ends, 0)[at]), at, -1)


def outermost(starts: Int64, ends: Int64) -> Int64:
    """Pick intervals greedily: in order of (start, longest first), each that begins after the last pick ended.

    For nested intervals these are the outermost ones. Returns indices of the picks, in that order.
    """
    order = np.lexsort((-ends, starts))
    after = np.arange(1, order.size + 1)  # a zero-length pick hides nothing: the next one follows
    following = np.maximum(np.searchsorted(starts[order], ends[order]), after)
    picks = []
    at = 0
    if (following == after).all():
        return order  # none hides another
    following = following.tolist()
    while at < order.size:
        picks.append(at)
        at = following[at]
    return order[np.asarray(picks, np.int64)]


def grouped_lengths(groups: Int64, starts: Int64, ends: Int64, n_groups: int) -> Int64:
    """Return the union length of each group's intervals, ns; groups from 0 in any order."""
    # As in `union`, starts and ends are sorted by themselves: each start takes back what the end
    # before lies behind it.
    order = np.lexsort((starts, groups))
    group = groups[order]
    start = starts[order]
    end = ends[np.lexsort((ends, groups))]
    again = np.flatnonzero((group[1:] == group[:-1]) & (end[:-1] > start[1:]))
    return sums_of(group, end - start, n_groups) - sums_of(
        group[again], end[again] - start[again + 1], n_groups
    )


def sums_of(groups: Int64, values: Int64, n_groups: int) -> Int64:
    """Return the sum of each group's values; groups from 0 in any order."""
    sums = np.zeros(n_groups, np.int64)
    np.add.at(sums, groups, values)
    return sums


def least_of(groups: Int64, values: Int64, n_groups: int) -> Int64:
    """Return each group's smallest value, the largest number for none; groups from 0 in any order."""
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
