"""Interval arithmetic, by hand and against sets of integers."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, strategies as st

from nsyspipe.analysis.intervals import EMPTY, IntervalSet, grouped_lengths, outermost, union
from tests.build.make import ints
from tests.conftest import examples

TWO = IntervalSet(ints(0, 20), ints(10, 30))


def merged(*spans):
    return pairs(union_of(spans))


def union_of(spans):
    return union(ints(*(a for a, _ in spans)), ints(*(b for _, b in spans)))


def pairs(found):
    return list(zip(found.starts.tolist(), found.ends.tolist(), strict=True))


def picks(*spans):
    return outermost(ints(*(a for a, _ in spans)), ints(*(b for _, b in spans))).tolist()


def lengths(rows, n_groups):
    """Call `grouped_lengths` with rows of (group, start, end)."""
    columns = np.array(rows, np.int64).reshape(-1, 3).T
    return grouped_lengths(*columns, n_groups).tolist()


def test_overlapping_intervals_in_any_order_merge():
    assert merged((10, 12), (2, 6), (0, 3)) == [(0, 6), (10, 12)]


def test_touching_intervals_become_one():
    assert merged((3, 5), (0, 3)) == [(0, 5)]


def test_nested_and_equal_intervals_count_once():
    assert merged((0, 10), (2, 4), (0, 10), (9, 10)) == [(0, 10)]


def test_zero_length_intervals_cover_nothing_wherever_they_lie():
    # Alone, at both edges of an interval, inside it, and in a gap.
    assert merged((4, 4)) == []
    assert merged((0, 0), (0, 3), (2, 2), (3, 3), (5, 5), (7, 9)) == [(0, 3), (7, 9)]


def test_zero_length_intervals_do_not_bridge_a_gap():
    assert merged((0, 3), (4, 4), (5, 6)) == [(0, 3), (5, 6)]


def test_negative_times_are_times_like_others():
    assert merged((-6, 2), (-10, -5), (-20, -15)) == [(-20, -15), (-10, 2)]


def test_the_union_of_nothing_is_empty():
    assert merged() == []
    assert (len(EMPTY), EMPTY.total) == (0, 0)


def test_lengths_above_what_a_float_holds_stay_exact():
    wide = union(ints(-(2**61)), ints(2**61 + 1))
    assert wide.total == 2**62 + 1


def test_covered_until_counts_what_lies_before_each_time_in_any_order():
    times = ints(99, -5, 0, 4, 10, 15, 20, 25, 30)
    assert TWO.covered_until(times).tolist() == [20, 0, 0, 4, 10, 10, 10, 15, 20]


def test_lengths_are_what_each_window_covers():
    starts, ends = ints(-5, 5, 10, 5, 25, 3), ints(100, 25, 20, 8, 25, 4)
    assert TWO.lengths(starts, ends).tolist() == [20, 10, 0, 3, 0, 1]


def test_starts_are_inside_and_ends_are_not():
    times = ints(-1, 0, 9, 10, 19, 20, 29, 30)
    assert TWO.contains(times).tolist() == [False, True, True, False, False, True, True, False]


def test_an_empty_set_covers_and_contains_nothing():
    assert EMPTY.covered_until(ints(-1, 5)).tolist() == [0, 0]
    assert EMPTY.lengths(ints(0), ints(5)).tolist() == [0]
    assert EMPTY.contains(ints(-1, 5)).tolist() == [False, False]
    assert pairs(EMPTY.intersect(TWO)) == pairs(TWO.intersect(EMPTY)) == []


def test_total_is_the_covered_length():
    assert TWO.total == 20


@pytest.mark.parametrize(
    ("other", "common"),
    [
        ([(5, 25)], [(5, 10), (20, 25)]),
        ([(10, 20)], []),  # it touches both
        ([(-5, 0), (30, 40)], []),
        ([(2, 3), (4, 5), (28, 40)], [(2, 3), (4, 5), (28, 30)]),
        ([(0, 10), (20, 30)], [(0, 10), (20, 30)]),
    ],
)
def test_the_intersection_is_what_both_hold_whichever_is_asked(other, common):
    found = union_of(other)
    assert pairs(TWO.intersect(found)) == common
    assert pairs(found.intersect(TWO)) == common


def test_what_others_leave_is_every_other_time():
    far = 2**62
    always = union_of([(-far, far)])
    assert pairs(always.without(TWO)) == [(-far, 0), (10, 20), (30, far)]
    assert pairs(always.without(EMPTY)) == [(-far, far)]
    assert pairs(TWO.without(always.without(TWO))) == pairs(TWO)


def test_of_nested_intervals_the_outermost_is_picked():
    assert picks((2, 4), (0, 10), (12, 15), (3, 4), (10, 12)) == [1, 4, 2]


def test_partial_overlaps_are_resolved_greedily():
    # [5, 15) starts inside [0, 10); [12, 20) only overlaps what was not picked.
    assert picks((0, 10), (5, 15), (12, 20), (19, 30)) == [0, 2]


def test_of_equal_starts_the_longest_is_picked():
    assert picks((0, 3), (0, 8), (3, 5)) == [1]


def test_of_equal_intervals_the_first_row_is_picked():
    assert picks((5, 9), (0, 4), (0, 4)) == [1, 0]


def test_a_zero_length_pick_hides_nothing():
    # All three starting at 5 are taken after one another: none starts before the last pick ended.
    assert picks((5, 5), (5, 5), (0, 5), (5, 7)) == [2, 3]
    assert picks((5, 5), (5, 5), (0, 5)) == [2, 0, 1]


def test_a_zero_length_interval_inside_another_is_hidden_and_at_its_end_is_not():
    assert picks((0, 10), (4, 4), (10, 10)) == [0, 2]


def test_zero_lengths_among_partial_overlaps_are_stepped_over():
    # [0, 4), not [2, 6), then both at 6 and the one after.
    assert picks((0, 4), (2, 6), (6, 6), (6, 6), (6, 8)) == [0, 4]
    assert picks((0, 4), (2, 6), (6, 6), (6, 6), (7, 8)) == [0, 2, 3, 4]


def test_nothing_is_picked_from_nothing():
    assert picks() == []


def test_overlaps_count_once_within_a_group_and_not_across_groups():
    # 0: [0, 10) and [5, 12) = 12; 2: [0, 4) and [6, 8) = 6; 1 has none.
    rows = [(2, 6, 8), (0, 5, 12), (2, 0, 4), (0, 0, 10)]
    assert lengths(rows, 4) == [12, 0, 6, 0]


def test_groups_of_negative_times_and_zero_lengths():
    # 0: [-10, -4) and [-4, -4) = 6; 1: only a zero length.
    assert lengths([(0, -10, -4), (0, -4, -4), (1, -7, -7)], 2) == [6, 0]
    assert lengths([(0, 5, 5), (1, 5, 5)], 2) == [0, 0]


def test_without_intervals_every_group_is_zero():
    assert lengths([], 3) == [0, 0, 0]
    assert lengths([], 0) == []


@pytest.mark.parametrize("top", [2**60, 2**61 - 1, 2**61, 2**61 + 1, 2**62])
@pytest.mark.parametrize("origin", [0, -1000])
def test_groups_that_do_not_fit_on_one_axis_are_still_exact(top, origin):
    # Spans near 2**61 leave room for two groups at a time, larger ones for one.
    rows = [
        (4, top - 7, top),
        (4, top - 9, top - 3),  # 9 together
        (0, origin, top),
        (1, origin, origin + 1),
        (3, origin, origin + 5),
        (3, origin + 2, origin + 9),  # 9 together
    ]
    assert lengths(rows, 6) == [top - origin, 1, 0, 9, 9, 0]


SPANS = st.lists(
    st.tuples(st.integers(-15, 15), st.integers(0, 8)).map(lambda x: (x[0], x[0] + x[1])),
    max_size=8,
)
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
    assert picks(*spans) == kept


@quick
@given(st.lists(st.tuples(st.integers(0, 3), SPANS), max_size=4), st.sampled_from([0, 2**60, 2**61]))
def test_lengths_of_groups_equal_counting_each_group(groups, far):
    rows = [(group, start, end) for group, spans in groups for start, end in spans]
    rows.append((3, far, far + 1))  # only to widen the span
    expected = [len(ticks((a, b) for g, a, b in rows if g == group)) for group in range(4)]
    assert lengths(rows, 4) == expected
