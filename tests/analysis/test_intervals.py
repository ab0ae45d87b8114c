"""Interval arithmetic, by hand and against sets of integers."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given, strategies as st

from nsyspipe.analysis.intervals import EMPTY, IntervalSet, grouped_lengths, outermost, union
from tests.build.make import ints
from tests.conftest import examples

TWO, FAR = IntervalSet(ints(0, 20), ints(10, 30)), 2**62


def union_of(spans):
    return union(ints(*(a for a, _ in spans)), ints(*(b for _, b in spans)))


def pairs(found):
    return list(zip(found.starts.tolist(), found.ends.tolist(), strict=True))


def lengths(rows, n_groups):
    """Call `grouped_lengths` with rows of (group, start, end)."""
    return grouped_lengths(*np.array(rows, np.int64).reshape(-1, 3).T, n_groups).tolist()


def test_what_others_leave_is_every_other_time_and_exact_above_what_a_float_holds():
    always = union_of([(-FAR, FAR)])
    assert pairs(always.without(TWO)) == [(-FAR, 0), (10, 20), (30, FAR)]
    assert pairs(always.without(EMPTY)) == [(-FAR, FAR)]
    assert pairs(TWO.without(always.without(TWO))) == pairs(TWO)
    assert union_of([(-(2**61), 2**61 + 1)]).total == 2**62 + 1
    assert (len(EMPTY), EMPTY.total, lengths([], 3), lengths([], 0)) == (0, 0, [0, 0, 0], [])


SPANS = st.lists(st.tuples(st.integers(-15, 15), st.integers(0, 8)).map(lambda x: (x[0], x[0] + x[1])), max_size=8)
quick = examples(200)


def ticks(spans):
    return {tick for start, end in spans for tick in range(start, end)}


@quick
@given(SPANS)
def test_a_union_is_the_set_of_its_ticks_in_disjoint_sorted_pieces(spans):
    found = pairs(union_of(spans))
    assert ticks(found) == ticks(spans)
    assert all(start < end for start, end in found)
    assert all(a[1] < b[0] for a, b in itertools.pairwise(found))


@quick
@given(SPANS, st.lists(st.integers(-20, 30), max_size=6))
def test_measures_of_a_set_equal_counting(spans, times):
    found, covered, at = union_of(spans), ticks(spans), ints(*times)
    assert found.total == len(covered)
    assert found.contains(at).tolist() == [time in covered for time in times]
    before = [sum(tick < time for tick in covered) for time in times]
    assert found.covered_until(at).tolist() == before
    windows = ints(*(time + 7 for time in times))
    inside = [len(covered & set(range(time, time + 7))) for time in times]
    assert found.lengths(at, windows).tolist() == inside


@quick
@given(SPANS, SPANS)
def test_an_intersection_is_the_common_ticks(one, other):
    assert ticks(pairs(union_of(one).intersect(union_of(other)))) == ticks(one) & ticks(other)
    assert ticks(pairs(union_of(one).without(union_of(other)))) == ticks(one) - ticks(other)


@quick
@given(SPANS)
def test_picks_equal_going_through_them_one_by_one(spans):
    kept = []
    for row in sorted(range(len(spans)), key=lambda i: (spans[i][0], -spans[i][1])):
        if not kept or spans[row][0] >= spans[kept[-1]][1]:
            kept.append(row)
    assert outermost(*(ints(*(span[at] for span in spans)) for at in (0, 1))).tolist() == kept


@quick
@given(st.lists(st.tuples(st.integers(0, 3), SPANS), max_size=4), st.sampled_from([-1000, 0, 2**60, 2**61 - 1, 2**62]))
def test_lengths_of_groups_equal_counting_each_group(groups, far):
    rows = [(group, start, end) for group, spans in groups for start, end in spans]
    rows.append((3, far, far + 1))  # only to widen the span
    expected = [len(ticks((a, b) for g, a, b in rows if g == group)) for group in range(4)]
    assert lengths(rows, 4) == expected
